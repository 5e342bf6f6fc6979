"""report.json as types: the contract for other programs, schema `loaderdoctor.report/1`.

Every field is always present; None (null) means not recorded or not applicable, never zero.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from loaderdoctor.advice import PredictedFrom
from loaderdoctor.estimate import Interval
from loaderdoctor.report.run_model import Cpu, Gpu, HotLine, Run, Script, Wall

SCHEMA = "loaderdoctor.report/1"


class Struct(msgspec.Struct, frozen=True, kw_only=True):
    """Root of the report's structs."""


class Verdict(Struct, frozen=True, kw_only=True):
    bound: Literal["input", "copy", "communication", "compute", "host", "outside", "unknown"]
    severity: Literal["high", "moderate", "none", "uncertain"]
    summary: str


class Step(Struct, frozen=True, kw_only=True):
    """Times in milliseconds. `count` steps were measured.

    `window_ms`: of a trace that marks no steps, all of it; shares and ranges are of that.
    """

    count: int
    wall_ms: float | None
    wall_ms_ci: Interval | None
    within_epoch_ms: float | None = None
    boundary_ms: float | None = None
    loader_boundary_ms: float | None = None  # of it; the rest is the loop's own work between epochs
    steps_per_epoch: int | None = None
    definition: str
    window_ms: float | None = None


class Loader(Struct, frozen=True, kw_only=True):
    id: str
    settings: dict[str, Any]
    role: str | None = None
    dataset: str | None = None
    code: str | None = None
    n_samples: int | None = None
    batch_size: int | None = None
    steps_per_epoch: int | None = None


class Shares(Struct, frozen=True, kw_only=True):
    compute: float | None
    communication: float | None
    copy: float | None
    input: float | None
    host: float | None
    other: float | None


class Hidden(Struct, frozen=True, kw_only=True):
    input_ms: float | None
    copy_ms: float | None


class Ablation(Struct, frozen=True, kw_only=True):
    """As measured: signed. `claims`: what is said of it; `seen_ms`: what can carry `input_ms`."""

    plain_ms: float
    no_input_ms: float | None
    no_copy_ms: float | None
    input_ms: float | None
    copy_ms: float | None
    ci_ms: dict[str, Interval | None]
    n_rounds: int
    reason: str | None = None
    by_loader_ms: dict[str, float] = {}
    # Where ready batches were made ahead, as new as the loader's own: how many of them had a shape
    # of their own (0…1), and what a step takes longer with them than with the same ones again.
    new_shape_part: float | None = None
    new_shape_ms: float | None = None
    claims: dict[str, tuple[float, Interval | None]] = {}
    seen_ms: dict[str, tuple[float, Interval | None]] = {}


class FindingTest(Struct, frozen=True, kw_only=True):
    """What a trial came to of a setting that a finding expects something of. Times per step."""

    setting: str
    predicted_step_ms: float | None
    tried: str  # the trial's label
    step_ms: float
    own_step_ms: float  # the loop as it is, in the rounds of that trial where they are known
    outcome: Literal["faster", "slower", "no different", "undecided"]
    refuted: bool  # the measurement says otherwise than the finding's rule
    confirmed: bool | None = None  # as Trial.gain_confirmed; None where nothing was chosen


class Finding(Struct, frozen=True, kw_only=True):
    kind: str
    severity: str
    share: float | None
    loader: str | None
    evidence: dict[str, Any]
    summary: str
    advice: str | None = None
    tested: tuple[FindingTest, ...] = ()
    aspect_of: str | None = None  # the kind of the finding before it whose time this is too


# Where a prediction comes from; "times": what the loop's steps and batches took, without a trace.
Basis = PredictedFrom | Literal["times"]


class Recommendation(Struct, frozen=True, kw_only=True):
    """`own_step_ms` is the loop as it is in the rounds of `measured_step_ms`, or of `seen_step_ms`.

    None: not paired.
    """

    setting: str
    from_: Any = msgspec.field(name="from")  # a keyword in Python
    to: Any
    code: str
    predicted_step_ms: float | None
    measured_step_ms: float | None
    measured_ci_ms: Interval | None
    caution: str | None = None
    summary: str | None = None
    predicted_from: Basis | None = None  # None: nothing was predicted
    own_step_ms: float | None = None
    # Tried in too few windows to tell what it gains: what they took. Never with a measured step.
    seen_step_ms: float | None = None
    also: str | None = None  # what the figures need besides the settings, as code shows
    command: str | None = None  # a line for a shell, where an option of the script sets it
    idea: str | None = None  # in place of code, where none is known to fit the script
    untested: str | None = None  # of a trace alone: that nothing has tested it, and what would
    trains: str | None = None  # what it does to what is trained; None: nothing, as far as known
    # What its windows took beside other programs, which is less than an instant loader may: then
    # `measured_step_ms` is the least that one may. None: `measured_step_ms` is what they took.
    windows_step_ms: float | None = None
    # 95 % of how many times as fast a new process of the script is; None: not measured.
    speed_up_ci: Interval | None = None
    tuned: str | None = None  # `run --tune` tried it, and what came of that; None: it did not


class NotAdvised(Struct, frozen=True, kw_only=True):
    """Advice not given because it would break the run, and why."""

    setting: str
    reason: str


class Trial(Struct, frozen=True, kw_only=True):
    settings: dict[str, Any]
    label: str
    status: Literal["ok", "failed", "skipped"]
    reason: str | None = None
    step_ms: float | None = None
    step_ms_ci: Interval | None = None
    samples_per_s: float | None = None
    within_epoch_ms: float | None = None
    startup_s: float | None = None
    epoch_s: float | None = None
    shares: Shares | None = None
    gpu_peak_allocated_bytes: int | None = None
    gpu_peak_reserved_bytes: int | None = None
    host_bytes: int | None = None
    tensor_peak_bytes: int | None = None  # without an accelerator: what one step's tensors took
    # Pages that only its workers have: as seen, and what they may come to once each has read the
    # whole dataset.
    workers_bytes: int | None = None
    workers_forecast_bytes: int | None = None
    trace: str | None = None
    n_windows: int = 0
    window_ms: tuple[float, ...] = ()
    # Against the loop as it is in the same rounds: positive is faster. None: not paired.
    gain_ms: float | None = None
    gain_ms_ci: Interval | None = None
    gain_confirmed: bool | None = None  # by windows after it was chosen; False: by the ranking's
    changes_numerics: bool = False  # or training: tried because it was asked for
    # Time for as many samples as the loop's own step has: trials compare by it. None: step_ms is.
    cost_ms: float | None = None

    @property
    def compared_ms(self) -> float | None:
        """What this trial is compared by."""
        return self.cost_ms if self.cost_ms is not None else self.step_ms

    row: str | None = None  # of a preset, as are those below: as the published table names it
    group: str | None = None  # rows of one group share a baseline (a portion, a control group)
    same_as: int | None = None  # identical on this machine: run once, figures are that trial's
    time_ratio: float | None = None  # time of the same work / the group's baseline
    note: str | None = None  # what differs from the published row, and what to know
    gpu_busy_share: float | None = None  # of the wall time; None without a trace of it
    tensor_core_share: float | None = None  # of the time in kernels

    # Of a sweep on a cluster:
    node: str | None = None  # where it was ranked
    hardware: str | None = None  # the kind of it, as `cluster.hardware` names it


class Best(Struct, frozen=True, kw_only=True):
    trial: int
    tied_with: tuple[int, ...] = ()


class Rank(Struct, frozen=True, kw_only=True):
    """One rank of a job; the report's top level is the rank that the others wait for.

    `peer_wait_ms` is spent, each step, in collectives that a later rank has not come to: that is
    not communication. `shares` are those of `own_ms`, the step (where it was profiled) without it.
    """

    rank: int
    host: str
    step: Step
    shares: Shares | None
    peer_wait_ms: float | None
    own_ms: float | None = None
    trace: str | None = None


class Hardware(Struct, frozen=True, kw_only=True):
    """Machines that are alike. Trials are compared within one kind only.

    `baseline_ms` is the loop's own step there, over all its nodes; `best` among its trials.
    """

    name: str
    cpu: str | None
    usable_cpus: float
    memory_bytes: int
    gpus: tuple[str, ...]
    torch: str | None
    trials: tuple[int, ...]
    baseline_ms: float | None = None
    baseline_ms_ci: Interval | None = None
    best: Best | None = None
    summary: str | None = None


class Group(Struct, frozen=True, kw_only=True):
    """Trials that one node measured next to the loop's own settings; times by its own baseline.

    `drift` is how its baseline changed meanwhile, `n_lost` how many nodes were lost under it.
    """

    node: str | None
    hardware: str | None
    purpose: Literal["rank", "confirm"]
    trials: tuple[int, ...]
    status: Literal["ok", "failed", "running"]
    reason: str | None = None
    baseline_ms: float | None = None
    drift: float | None = None
    n_lost: int = 0


class Cluster(Struct, frozen=True, kw_only=True):
    """Where a sweep on a cluster was measured."""

    hardware: tuple[Hardware, ...]
    groups: tuple[Group, ...]


class ReportWarning(Struct, frozen=True, kw_only=True):
    """Something the reader must know about this run or report."""

    kind: str
    text: str


class Workers(Struct, frozen=True, kw_only=True):
    """What the workers' own records say; milliseconds unless the name says otherwise."""

    n_workers: int
    batch_ms: float
    fetch_ms: float
    collate_ms: float | None
    cpu_share: float | None
    sample_ms_quantiles: tuple[float, ...] | None
    idle_share: float | None
    pin_ms: float | None
    transforms: dict[str, float]
    lines: tuple[HotLine, ...]
    loader: str | None = None  # whose batches these were
    receive_ms: float | None = None  # in the loop's fetch, once a batch was ready
    spread: str | None = None  # what lines have in common of which none alone was seen enough


class UserRange(Struct, frozen=True, kw_only=True):
    """One of the user's own `record_function` ranges, over the steps of the profiled window."""

    name: str
    n_calls: int
    host_ms_per_step: float
    gpu_ms_per_step: float | None  # of kernels, copies, memsets launched inside; summed
    n_kernels_per_step: float | None
    depth: int  # of other ranges around it


class MemoryHistory(Struct, frozen=True, kw_only=True):
    """torch's memory snapshot, and what recording it cost: steps with it / steps without."""

    path: str  # relative to the run folder
    n_bytes: int | None
    n_entries: int
    max_entries: int
    overhead: float | None
    overhead_ci: Interval | None


class PassBeforeTraining(Struct, frozen=True, kw_only=True):
    """Passes over one loader at one place before training began: they train nothing."""

    loader: str
    site: str  # "train.py:28": where the loop reads it
    code: str | None
    n_passes: int
    n_batches: int  # of all these passes
    took_s: float | None  # in all; null: windows were measured in them meanwhile
    calls_model: bool | None  # null: not looked at
    without_grad: bool
    skips: bool  # training went on in the same pass: these batches were thrown away


class Report(Struct, frozen=True, kw_only=True):
    schema: str = SCHEMA
    command: Literal["diagnose", "sweep", "analyze", "run"]
    target: str  # the script, recipe or trace
    verdict: Verdict
    step: Step
    loaders: tuple[Loader, ...]
    shares: Shares | None
    trace_shares: Shares | None
    hidden: Hidden
    ablation: Ablation | None
    profiler_overhead: float | None
    workers: Workers | None
    findings: tuple[Finding, ...]
    recommendations: tuple[Recommendation, ...]
    not_advised: tuple[NotAdvised, ...] = msgspec.field(name="withheld")
    trials: tuple[Trial, ...]
    best: Best | None
    claims: tuple[dict[str, Any], ...]
    ranks: tuple[Rank, ...]
    cluster: Cluster | None = None
    warnings: tuple[ReportWarning, ...]
    environment: dict[str, Any]
    method: tuple[str, ...]  # how each number was measured, one sentence each

    @property
    def by_hardware(self) -> tuple[tuple[str | None, float | None, tuple[int, ...]], ...]:
        """(kind, step of the loop's own settings there, trials): what may be compared together.

        One entry with all trials where they were measured on machines that are alike.
        """
        own = self.trials[0] if self.trials else None
        first = (own.hardware if own else None, own.compared_ms if own else None)
        kinds = (
            {kind.name: kind.baseline_ms for kind in self.cluster.hardware} if self.cluster else {}
        )
        known = [first, *((name, ms) for name, ms in kinds.items() if name != first[0])]
        found = []
        for name, ms in known:
            members = tuple(
                i
                for i, trial in enumerate(self.trials)
                if trial.hardware == name or (name == first[0] and trial.hardware is None)
            )
            if members:
                found.append((name, ms, members))
        return tuple(found)

    gpu: Gpu | None = None  # None: no accelerator
    ranges: tuple[UserRange, ...] = ()  # costliest first
    memory_history: MemoryHistory | None = None  # None: not asked for, or not to be had
    other_workers: tuple[Workers, ...] = ()  # of loaders that do not feed the step
    cpu: Cpu | None = None  # None: from a trace alone
    trains: bool = True  # False: no backward pass and no optimizer step was seen
    calls_model: bool | None = None  # of a loop that does not train
    before_training: tuple[PassBeforeTraining, ...] = ()
    # The loop's own work by line, from stack samples of windows without the profiler; null: none.
    loop_lines: dict[str, Any] | None = None
    wall: Wall | None = None  # None: only steps were recorded
    script: Script | None = None  # None: a trace, a loop in Python, or not recorded
    run: Run | None = None  # None: not recorded to its end
