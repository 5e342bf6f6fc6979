"""What a rule returns: a finding, its kind, what it predicts, and what trials said to that.

Findings about the same time are one cause: the gravest, with the others as its aspects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Literal

from loaderdoctor import format as fmt
from loaderdoctor.estimate import MIN_GAIN_SHARE
from loaderdoctor.facts import Facts
from loaderdoctor.facts.step import MODERATE_SHARE
from loaderdoctor.settings import Settings, Value


class Kind(str, Enum):
    """Stable names of findings: defined once, never renamed."""

    MAIN_GUARD_MISSING = "main-guard-missing"
    LOADER_IN_MAIN_PROCESS = "loader-in-main-process"
    TOO_FEW_WORKERS = "too-few-workers"
    CPU_SATURATED_WORKERS = "cpu-saturated-workers"
    STORAGE_BOUND_WORKERS = "storage-bound-workers"
    OVERHEAD_BOUND_LOADER = "overhead-bound-loader"
    WORKER_STARTUP_EACH_EPOCH = "worker-startup-each-epoch"
    ITERATOR_RECREATED = "iterator-recreated"
    HEAD_OF_LINE_STALL = "head-of-line-stall"
    SAMPLER_BOUND = "sampler-bound"
    COLLATE_BOUND = "collate-bound"
    DATASET_FORMAT_BOUND = "dataset-format-bound"
    WORKERS_SHARE_A_CORE = "workers-share-a-core"
    THREAD_OVERSUBSCRIPTION = "thread-oversubscription"
    IDLE_WORKERS = "idle-workers"
    WORKERS_JUST_KEEP_UP = "workers-just-keep-up"
    GIL_CONTENTION = "gil-contention"
    LOOP_SLOWED_BY_WORKERS = "loop-slowed-by-workers"
    BATCH_PAGE_FAULTS = "batch-page-faults"
    ALLOCATOR_PAGE_FAULTS = "allocator-page-faults"
    PIN_THREAD_BOUND = "pin-thread-bound"
    PIN_INEFFECTIVE = "pin-ineffective"
    PAGEABLE_COPY = "pageable-copy"
    BLOCKING_COPY = "blocking-copy"
    COPY_NOT_OVERLAPPED = "copy-not-overlapped"
    MANY_SMALL_COPIES = "many-small-copies"
    WIDE_DTYPE_COPY = "wide-dtype-copy"
    SYNC_EVERY_STEP = "sync-every-step"
    LAUNCH_BOUND = "launch-bound"
    WORK_BETWEEN_STEPS = "work-between-steps"
    COLD_STORAGE = "cold-storage"
    MANY_SMALL_FILES = "many-small-files"
    MEMORY_SHORT = "memory-short"
    WORKERS_COPY_DATASET = "workers-copy-dataset"
    WORKER_MEMORY_GROWS = "worker-memory-grows"
    SLOW_RANK = "slow-rank"
    PASS_BEFORE_TRAINING = "pass-before-training"
    RECOMPILATION = "recompilation"
    AUTOTUNING_EACH_SHAPE = "autotuning-each-shape"
    COMPUTE_DEPENDS_ON_NEW_SHAPES = "compute-depends-on-new-shapes"
    SAMPLES_REPEATED = "samples-repeated"
    UNEVEN_SHARDS = "uneven-shards"
    SHUFFLE_COLLAPSED = "shuffle-collapsed"
    LATENCY_BOUND_STORAGE = "latency-bound-storage"
    BANDWIDTH_BOUND_STORAGE = "bandwidth-bound-storage"
    MANY_SMALL_READS = "many-small-reads"
    RETRIED_REQUESTS = "retried-requests"
    GC_PAUSES = "gc-pauses"
    GC_IN_WORKERS = "gc-in-workers"
    SUBNORMAL_NUMBERS = "subnormal-numbers"
    GPU_THROTTLED = "gpu-throttled"
    DATA_PARALLEL = "data-parallel"
    TF32_OFF = "tf32-off"
    GRAD_NOT_SET_TO_NONE = "grad-not-set-to-none"
    CUDNN_BENCHMARK_OFF = "cudnn-benchmark-off"
    BIAS_BEFORE_BATCHNORM = "bias-before-batchnorm"
    PADDING_WASTE = "padding-waste"
    TIME_OUTSIDE_STEPS = "time-outside-steps"
    TRAINS_ELSEWHERE = "trains-elsewhere"


class Severity(str, Enum):
    """How much it matters: high from 20 % of the step, moderate from 5 %, else a hint."""

    HIGH = "high"
    MODERATE = "moderate"
    LOW = "low"
    NONE = "none"
    UNCERTAIN = "uncertain"


EvidenceValue = float | int | str | bool | None | tuple[float, ...]
Came = Literal["faster", "slower", "no different", "undecided"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a finding expects of a setting: said only where no trial has tested it."""

    sentence: str  # a full one
    setting: str  # axis name
    # Values it is about, against the loop's own: more, fewer, or any other (`value`, where given).
    which: Literal["more", "fewer", "other"] = "other"
    value: Value = None  # the one it names
    gains: bool = True  # whether it says that the step gets shorter
    step_ms: float | None = None  # the step it expects
    advised: bool = False  # the finding's advice says the same, and falls with it
    instead: str | None = None  # what is left of that advice then


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Settings that a run tried next to its own, and what came of it; milliseconds a step."""

    settings: Settings  # only what was changed
    step_ms: float
    own_ms: float  # as the loop is: of the same rounds where that is known
    gain_low_ms: float | None  # 95 % bounds of the gain; None: too few windows for an interval
    gain_high_ms: float | None
    # Whether the gain is of windows taken after the trial was chosen; False: of the rounds that
    # rank, in which the best of many looks better than it is. None: not chosen among many.
    confirmed: bool | None = None
    # Of `run --tune`, which has judged by itself: what came of it, and in words. `own_ms` is of
    # the settings that served before then.
    tuned: tuple[Came, str] | None = None

    @property
    def came(self) -> Came:
        """What the interval of the gain says; never a point estimate."""
        if self.tuned is not None:
            return self.tuned[0]
        if self.gain_low_ms is None or self.gain_high_ms is None:
            return "undecided"
        if self.gain_low_ms > 0.0:
            return "faster"
        return "slower" if self.gain_high_ms < 0.0 else "no different"

    @property
    def words(self) -> str:
        """What came of it, and on what footing: nobody may take a rank for a gain."""
        if self.tuned is not None:
            return self.tuned[1]
        came, again = self.came, " when confirmed" if self.confirmed else ""
        if came == "undecided":
            return f"too few windows to tell{again}"
        if came == "no different":
            return f"{'within' if self.confirmed else 'no difference beyond'} the noise{again}"
        if self.confirmed is None:
            return came
        if not self.confirmed:
            return f"{came} in the rounds, not confirmed"
        little = came == "faster" and self.own_ms - self.step_ms < MIN_GAIN_SHARE * self.own_ms
        return f"{came}{again}{', by too little to matter' if little else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tested:
    """A prediction and the trial that tested it."""

    prediction: Prediction
    outcome: Outcome

    @property
    def refuted(self) -> bool:
        """Whether the measurement says otherwise."""
        if self.outcome.came == "undecided":
            return False
        return (self.outcome.came == "faster") != self.prediction.gains

    @property
    def sentence(self) -> str:
        """What the trial measured, for behind "Tried in this run"."""
        outcome = self.outcome
        before = "as it is" if outcome.tuned is None else "before"
        return (
            f"({outcome.settings.label()}): {fmt.ms(outcome.step_ms)} a step against "
            f"{fmt.ms(outcome.own_ms)} {before}, {outcome.words}."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One cause, with the figures it rests on. `summary` is a full sentence for the user.

    Rules keep what they expect of settings out of `summary`: see `tryout/answers.py`.
    """

    kind: Kind
    severity: Severity
    share: float | None  # of the step that this explains, 0…1
    summary: str
    evidence: Mapping[str, EvidenceValue] = field(default_factory=dict)
    loader: str | None = None  # LoaderRecord.id
    advice: str | None = None  # what to do, where no setting says it
    predictions: tuple[Prediction, ...] = ()
    tested: tuple[Tested, ...] = ()  # predictions that trials have answered
    aspect_of: Kind | None = None  # the cause whose time this is, seen from another side


Rule = Callable[[Facts], Finding | None]


# By the part of the step that they explain. In none: `gc-in-workers` and `uneven-shards`, whose
# time is in what making batches and waiting for the pool cost, but whose remedy no other brings, so
# that each is told as a cause of its own; `gc-pauses`, which come wherever the loop makes objects;
# `slow-rank`, which is another rank's time.
PARTS: Mapping[str, tuple[Kind, ...]] = {
    "input": (
        Kind.MAIN_GUARD_MISSING,
        Kind.LOADER_IN_MAIN_PROCESS,
        Kind.TOO_FEW_WORKERS,
        Kind.CPU_SATURATED_WORKERS,
        Kind.STORAGE_BOUND_WORKERS,
        Kind.OVERHEAD_BOUND_LOADER,
        Kind.WORKER_STARTUP_EACH_EPOCH,
        Kind.ITERATOR_RECREATED,
        Kind.HEAD_OF_LINE_STALL,
        Kind.SAMPLER_BOUND,
        Kind.COLLATE_BOUND,
        Kind.DATASET_FORMAT_BOUND,
        Kind.WORKERS_SHARE_A_CORE,
        Kind.THREAD_OVERSUBSCRIPTION,
        Kind.IDLE_WORKERS,
        Kind.GIL_CONTENTION,
        Kind.LOOP_SLOWED_BY_WORKERS,
        Kind.BATCH_PAGE_FAULTS,
        Kind.PIN_THREAD_BOUND,
        Kind.COLD_STORAGE,
        Kind.MANY_SMALL_FILES,
        Kind.LATENCY_BOUND_STORAGE,
        Kind.BANDWIDTH_BOUND_STORAGE,
        Kind.MANY_SMALL_READS,
        Kind.RETRIED_REQUESTS,
        Kind.MEMORY_SHORT,
    ),
    "copy": (
        Kind.PIN_INEFFECTIVE,
        Kind.PAGEABLE_COPY,
        Kind.BLOCKING_COPY,
        Kind.COPY_NOT_OVERLAPPED,
        Kind.MANY_SMALL_COPIES,
        Kind.WIDE_DTYPE_COPY,
    ),
    "host": (Kind.SYNC_EVERY_STEP, Kind.LAUNCH_BOUND, Kind.WORK_BETWEEN_STEPS),
}
# What explains less of a part than this is not said to be the reason for it.
CAUSE_PART = 1 / 3
# Two findings of one part overlap where together they explain more than there is of it. Shares are
# estimates: what they exceed it by may be this much of the step, the least that is a finding.
MAX_EXCESS = MODERATE_SHARE


def with_aspects(found: Sequence[Finding], facts: Facts) -> tuple[Finding, ...]:
    """The findings in their order, but each aspect right behind its cause, which it names.

    A finding is an aspect where the causes before it leave too little of the same part of the step
    for it to be time of its own: `loader-in-main-process` of 68 %, and `collate-bound` of 68 % too.
    """
    causes: list[list[Finding]] = []
    for finding in found:
        part = _part(finding)
        alike = [group for group in causes if part is not None and _part(group[0]) == part]
        whole = facts.share(part) if part is not None else None
        share = finding.share
        if not alike or share is None or whole is None or _other_loader(alike, finding):
            causes.append([finding])
            continue
        taken = sum(group[0].share or 0.0 for group in alike)
        if share <= max(0.0, whole - taken) + MAX_EXCESS:
            causes.append([finding])
        else:
            alike[0].append(replace(finding, aspect_of=alike[0][0].kind))
    return tuple(finding for group in causes for finding in group)


def _part(finding: Finding) -> str | None:
    if finding.evidence.get("threads_of") == "loop":
        return None
    return next((part for part, kinds in PARTS.items() if finding.kind in kinds), None)


def _other_loader(alike: Sequence[Sequence[Finding]], finding: Finding) -> bool:
    """Whether it is about another loader than the cause that it would be an aspect of."""
    loader = alike[0][0].loader
    return finding.loader is not None and loader is not None and finding.loader != loader
