"""What report.json says of a run besides its steps: GPUs, CPUs, script, and the run to its end.

Part of `model.Report`; null where not recorded. Seconds and milliseconds by name. Imports little:
what listens to a run writes `Run` every minute, and stays small.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec
from msgspec import Struct

from loaderdoctor.estimate import Interval
from loaderdoctor.instrument.wire.measured import TuningRecord
from loaderdoctor.instrument.wire.records import ScriptRecord
from loaderdoctor.secrets import masked

Quantiles = tuple[float, float, float, float]  # 50, 90, 99, 99.9 %


class RunAlert(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was told while the run went on. `at_s`: since the run began."""

    kind: str
    at_s: float
    step: int
    text: str
    cause: str | None = None
    advice: str | None = None
    rank: int | None = None  # of several


class RunTime(msgspec.Struct, frozen=True, kw_only=True):
    """Where recorded seconds went; but for `gc_s` and `waited_s`, they sum to `recorded_s`."""

    recorded_s: float
    n_steps: int
    step_s: float
    input_s: float  # waits for a batch that nothing hid
    starts_s: float  # steps in which an epoch starts
    validation_s: float
    saving_s: float
    other_s: float
    gc_s: float
    waited_s: float
    copy_s: float | None = None  # copies that the step's own work waits for; None: not recorded


class RunEpoch(msgspec.Struct, frozen=True, kw_only=True):
    """Epochs `first` to `last`, counted from 0 since the recording began."""

    first: int
    last: int
    time: RunTime


class RunStretch(msgspec.Struct, frozen=True, kw_only=True):
    """One stretch of the time line; since the run began."""

    start_s: float
    end_s: float
    time: RunTime
    run_bytes: int | None = None


class RunRank(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    host: str
    time: RunTime
    n_steps: int


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The run as a whole; of several ranks, the lowest."""

    took_s: float  # from its start to its end, or to when this was written
    before_s: float  # of it, before the recording: imports, first steps, the first window
    time: RunTime
    n_steps: int  # of the loop, since it began
    step_ms_quantiles: Quantiles | None  # each within 9 %
    wait_ms_quantiles: Quantiles | None
    epochs: tuple[RunEpoch, ...] = ()
    timeline: tuple[RunStretch, ...] = ()
    alerts: tuple[RunAlert, ...] = ()
    ranks: tuple[RunRank, ...] = ()
    last_step_ms: tuple[float, ...] = ()
    tuning: TuningRecord | None = None  # without --tune
    complete: bool = False  # the script has ended; False: it was running when this was written
    how: str | None = None  # it ended, as `Ended.how`
    exit_code: int | None = None

    @property
    def input_share(self) -> float | None:
        """Of the recorded time."""
        return self.time.input_s / self.time.recorded_s if self.time.recorded_s > 0 else None


class GpuDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One device over all steps of the profiled window: docs/gpu.md has the definitions."""

    index: int
    name: str | None
    memory_bytes: int | None
    utilization_share: float | None
    sm_efficiency_share: float | None
    occupancy_share: float | None
    tensor_core_share: float | None  # of the time in kernels
    plugin_tensor_core_share: float | None  # likewise, as TensorBoard shows it


class GpuIdleGaps(msgspec.Struct, frozen=True, kw_only=True):
    """When the GPU falls idle: how deep, how long, how often, and what goes with it."""

    n: int
    mean_ms: float
    usual_share: float  # busy share of a typical step
    low_share: float  # within the gaps
    of_window_share: float
    period_ms: float | None
    period_steps: float | None
    regular: bool
    matches: Literal["worker-cycle", "epoch", None]
    match_steps: int | None
    waiting_share: float | None  # of their time: the loop waits for a batch
    spans_ms: tuple[Interval, ...]  # since the window's begin


class GpuBusy(msgspec.Struct, frozen=True, kw_only=True):
    """Busy share over the profiled window's steps: every `every_ms`, each of `over_ms`."""

    summary: str
    window_ms: float
    every_ms: float
    over_ms: float
    shares: tuple[float, ...]
    idle_gaps: GpuIdleGaps | None = msgspec.field(name="dips")  # None: there are none


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """How well the GPU is used.

    Peaks are torch's allocator's in a plain window; without one, those of the trace's memory
    events, of the device that holds most.
    """

    devices: tuple[GpuDevice, ...]
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    busy: GpuBusy | None


class Outside(msgspec.Struct, frozen=True, kw_only=True):
    """What the run pays for outside its training steps, of one kind and place."""

    what: Literal["training", "gradients", "validation", "saving", "other"]
    site: str | None
    ms_per_step: float | None  # spread over the training steps; None: too few seen to know
    seconds: float  # each
    n: int  # seen
    every_steps: float | None
    at_epoch_end: bool = False
    in_steps: bool = False  # the step's own time holds it
    wait_share: float | None = None  # of a pass, getting its batches
    n_batches: float | None = None
    with_grad: bool = False


class Wall(msgspec.Struct, frozen=True, kw_only=True):
    """All of the run's time, spread over its training steps; milliseconds a step."""

    total_ms: float
    step_ms: float  # as in Step.wall_ms
    outside_ms: float
    outside_share: float  # of total_ms
    n_steps: int  # that were watched
    outside: tuple[Outside, ...]  # the largest first
    elsewhere: tuple[Outside, ...] = ()  # training on other loaders: in none of the sums


class HotLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the user's code that makes batches, and how often stack samples found it."""

    file: str
    line: int
    function: str
    code: str | None
    share: float | None  # of making a batch
    share_ci: Interval | None = None
    n_looks: int
    of_looks: int  # in the same phase
    phase: Literal["fetch", "collate", "sampler"] = "fetch"
    named: bool = True  # it was seen often enough to be named


class Cpu(msgspec.Struct, frozen=True, kw_only=True):
    """Who used the CPUs while plain windows were timed; CPU time / wall time, on average."""

    usable: float | None
    training: float | None  # the training process
    workers: float | None
    others: float | None  # other programs, of the usable ones; null: this system does not tell
    waiting_threads: float | None  # of the training process: ready to run and no CPU free
    throttled_share: float | None  # of a quota's periods; null: there is no quota


class Script(Struct, frozen=True, kw_only=True):
    """How it was started, and which of the user's files it read."""

    given: str | None  # the path that was typed; None: with -m
    module: str | None
    args: tuple[str, ...]  # values that look like secrets are `***`
    cwd: str
    n_ranks: int
    sources: dict[str, str]  # `text_hash` of each, by path
    launched: bool = False  # by torch's launcher
    n_added_args: int = 0  # the first of `args`, which the user did not type: a recipe's


def script_of(record: ScriptRecord | None) -> Script | None:
    """As the report holds it: hashes in place of the files' text."""
    if record is None or not record.sources:
        return None
    return Script(
        given=record.given,
        module=record.module,
        args=masked(record.args),
        n_added_args=record.n_added_args,
        cwd=record.cwd,
        n_ranks=record.n_ranks,
        launched=record.launched,
        sources={path: text_hash(text) for path, text in record.sources.items()},
    )


def text_hash(text: str) -> str:
    """sha256 of a file's text with line feeds as line ends."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
