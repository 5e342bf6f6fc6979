"""What a rule returns, and the closed set of kinds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Literal

from loaderdoctor.facts.whole import Facts
from loaderdoctor.settings import Value

if TYPE_CHECKING:
    from loaderdoctor.advice.predictions import Tested


class Kind(str, Enum):
    """Stable names of findings: defined once, never renamed."""

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
    GIL_CONTENTION = "gil-contention"
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
    SLOW_RANK = "slow-rank"
    DATA_PARALLEL = "data-parallel"
    TF32_OFF = "tf32-off"
    GRAD_NOT_SET_TO_NONE = "grad-not-set-to-none"
    CUDNN_BENCHMARK_OFF = "cudnn-benchmark-off"
    BIAS_BEFORE_BATCHNORM = "bias-before-batchnorm"


class Severity(str, Enum):
    """How much it matters: high from 20 % of the step, moderate from 5 %, else a hint."""

    HIGH = "high"
    MODERATE = "moderate"
    LOW = "low"
    NONE = "none"
    UNCERTAIN = "uncertain"


EvidenceValue = float | int | str | bool | None | tuple[float, ...]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One cause, with the figures it rests on. `summary` is a full sentence for the user.

    Rules keep what they expect of settings out of `summary`: see `confront`.
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


Rule = Callable[[Facts], Finding | None]
