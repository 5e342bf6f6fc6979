"""What the measuring process and the commands say to each other, and nothing else.

The measuring process runs the user's script and executes *requests* at step boundaries of the
running loop; every decision (how many steps, which trials, when to stop) is taken by the command
that drives it. Messages are JSON over a private pipe; nothing is pickled. All `_ns` times are
CLOCK_MONOTONIC (time.perf_counter_ns) of the measuring machine, the one clock shared with workers.

    measuring process                       command (no torch)
      ------- Observed ------->               once the loop is warm: what feeds the step, how fast
      <------ Measure(requests) ------
      ------- WindowDone ---->                one for each request, as it ends
      ------- TrainingBegan ->                what was observed was none; Observed comes again
      <------ Measure / Stop ---------
      ------- Ended --------->                script over, stopped, or failed

Several ranks train in step: one that stood still would hold the others in a collective, each at
another step. So a rank of a group never pauses. It says Hello first; where a window is prepared it
says Ready and keeps stepping in the window's mode until Begin, which the command sends once every
rank is ready; after its window it steps on. Only to stop do all ranks wait, after the same step.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Literal

import msgspec

from loaderdoctor.instrument.wire.measured import (
    Block,
    CollectionRecord,
    Collections,
    CompileRecord,
    CopyRecord,
    CpuRecord,
    Dry,
    FetchRecord,
    GpuLimitRecord,
    PageRecord,
    PauseRecord,
    PoolMemoryRecord,
    QueueFill,
    ReadyRecord,
    SnapshotRecord,
    StackRecord,
    Stall,
    Sums,
    TuningRecord,
    WorkersBeat,
)
from loaderdoctor.instrument.wire.records import (
    BoundaryRecord,
    ComputeRecord,
    Environment,
    LoaderRecord,
    PassRecord,
    ScriptRecord,
    SubnormalRecord,
    TransferRecord,
    WallRecord,
    main_loader,
)
from loaderdoctor.settings import Settings

# Windows are told apart by their numbers: all who ask for some take them from here.
WINDOW_IDS: Iterator[int] = count(1)

# WindowDone.reason of a window that the end of the script cut short; Ended follows at once.
SCRIPT_ENDED = "the script ended during this window"

# Note.kind of a loop whose loader ran out, and which replays the batches of that epoch.
BATCHES_REPLAYED = "batches-replayed"
# And where other loaders that feed its steps go on.
ONE_REPLAYED = "one-loader-replayed"
LOADER_CHANGED = "loader-changed"

# Ready.id of a rank that waits for its peers before the stop.
RENDEZVOUS = -1

Mode = Literal["plain", "profiled", "no_input", "no_copy", "trial"]


class Message(msgspec.Struct, tag=True, frozen=True, kw_only=True, omit_defaults=True):
    """Root of the messages."""


# ---------------------------------------------------------------- command -> measuring process


class ProfilerSchedule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """torch.profiler's schedule in steps, and what it records; None: as the step time asks."""

    wait: int | None = None
    warmup: int | None = None
    active: int | None = None
    repeat: int = 1  # a sweep captures its first trial so often
    with_stack: bool = False
    profile_memory: bool = False

    @property
    def n_warmup_steps(self) -> int | None:
        """Steps before the first one recorded: what is not recorded may as well warm up."""
        known = [n for n in (self.wait, self.warmup) if n is not None]
        return sum(known) if known else None


class WindowRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One window to measure.

    The process first switches batches to `mode`, drops and warms up as the switch needs, then
    measures `n_steps` steps. A window that would outlast `limit_s` ends early with what it has.
    """

    id: int
    mode: Mode
    n_steps: int
    limit_s: float | None = None
    settings: Settings | None = None  # mode "trial": what to change; None elsewhere
    loader: str | None = None  # no_input: only this loader (LoaderRecord.id); None: all in the step
    # Mode "profiled", and trials to be traced: where the trace goes, and how it is recorded.
    trace_path: str | None = None
    profiler: ProfilerSchedule = ProfilerSchedule()  # `n_steps` says how many are active
    measure_boundary: bool = False  # trial: also time one epoch boundary (worker start-up)
    # no_input: the batches of the no_input window before, where those were made ahead.
    again: bool = False
    drop_batches: bool = True  # False: same mode as the window before, queues are steady
    host_memory: bool = True  # False: don't sample the process tree's memory at the window's end
    tensor_memory: bool = False  # without an accelerator: one more step, for tensor_peak_bytes
    fetch_limit_s: float | None = None  # trial: a batch that takes longer hangs; None: 120 s
    # Trial with `cache`: make samples for so long at most, and refuse a dataset whose samples vary.
    # None: all of them are made, as they come. With `resident`, where all must be, only the latter.
    cache_limit_s: float | None = None
    drain: bool = False  # trial: fetch batches back to back, the loop gets none of them
    # Record torch's memory history meanwhile, so many events of it at most; 0: don't.
    memory_entries: int = 0
    snapshot_path: str | None = None  # where its snapshot goes; of several ranks: next to it
    # Sample the training thread's stack meanwhile: times of such a window count for nothing.
    stack_samples: bool = False

    @property
    def own_batches(self) -> bool:
        """Whether a trial leaves the loop's loaders alone, and asks nothing of them."""
        keeps = self.settings is not None and self.settings.keeps_loaders
        return keeps and not self.measure_boundary


class Measure(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Windows to measure back to back, in this order."""

    requests: tuple[WindowRequest, ...]


class Stop(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Stop the script now; with `to_end` remove every hook and let it run to its end.

    `at_step`: wait after so many steps of the loop (as Progress counts them) and say Ready with the
    id RENDEZVOUS; a rank that is past them already says so and steps on. Once all wait after the
    same step, with no collective under way, they are told to stop; else where to meet next.
    """

    to_end: bool = False
    at_step: int | None = None


class Begin(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Every rank of the group is ready: measure the window prepared, from this step on.

    A rank that is past it begins at once.
    """

    id: int
    at_step: int


class Reported(Message, frozen=True, kw_only=True, omit_defaults=True):
    """The report of a recorded run is written and shown; the process that waits for it may end."""

    exit_code: int  # of the command, where the script itself ended in order


class Told(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Something to say to the user, in a process whose stderr whoever listens does not have."""

    text: str


# ---------------------------------------------------------------- measuring process -> command


class Hello(Message, frozen=True, kw_only=True, omit_defaults=True):
    """First message of a rank of a group, or of a process of the script's that trains alone."""

    rank: int
    n_ranks: int
    host: str
    run_dir: str  # of this rank: traces and workers' records lie below it
    alone: bool = False  # no rank: it trains by itself, as others may next to it


class Spawned(Message, frozen=True, kw_only=True, omit_defaults=True):
    """First message of a process that starts ranks itself, on a connection for Stop."""

    ends: bool = False  # Ended follows, when all of them have ended


class Ready(Message, frozen=True, kw_only=True, omit_defaults=True):
    """The window is prepared: its batches are what it measures, queues and loop are steady."""

    id: int
    n_steps: int


class Observed(Message, frozen=True, kw_only=True, omit_defaults=True):
    """The loop is warm. `step_ns` are host times of the last warm-up steps, first to last."""

    definition: str  # "one batch of train.py:41 (which feeds the optimizer at train.py:63)"
    step_ns: tuple[int, ...]
    loaders: tuple[LoaderRecord, ...]
    transfers: tuple[TransferRecord, ...]
    boundaries: tuple[BoundaryRecord, ...]
    n_steps_so_far: int
    device: str | None  # "cuda:0"; None without an accelerator
    batches_per_cycle: (
        int  # max num_workers of the step's loaders, times batches per optimizer step
    )
    environment: Environment
    compute: ComputeRecord | None = None  # None: not watched
    n_devices: int = 0  # accelerators that the process sees
    group_size: int | None = None  # ranks of torch's process group; None: there is none
    trains: bool = True  # False: no backward pass and no optimizer step so far, as in inference
    calls_model: bool | None = None  # where it does not train: a model is called; None: not seen
    before_training: tuple[PassRecord, ...] = ()
    script: ScriptRecord | None = None  # None: a loop of a console or a notebook
    subnormals: SubnormalRecord | None = None  # None: none, an accelerator, or not looked for

    @property
    def main_loader(self) -> LoaderRecord | None:
        """The loader whose batches are the steps; None where none was seen."""
        return main_loader(self.loaders)

    @property
    def steps_per_epoch(self) -> int | None:
        """Of that loader."""
        main = self.main_loader
        return main.steps_per_epoch if main is not None else None


class TrainingBegan(Message, frozen=True, kw_only=True, omit_defaults=True):
    """What was observed and measured so far was no training, which began just now.

    Or it was of a loader that is no longer trained with (`loader` then names the one that is).
    Windows under way are void; another Observed follows once its loop is warm.
    """

    loader: str | None = None


class WindowDone(Message, frozen=True, kw_only=True, omit_defaults=True):
    """One window, measured or failed."""

    id: int
    mode: Mode
    status: Literal["ok", "failed", "skipped", "short"]  # short: ended early, figures stand
    reason: str | None = None
    n_steps: int = 0
    n_samples: int = 0
    start_ns: int = 0
    end_ns: int = 0
    # Time per step, n_steps entries. `host` between step boundaries on the host; `device` between
    # the same boundaries as the accelerator reached them (events on the step's stream), None
    # without one. The step clock is `device` where there is one: the host runs ahead.
    host_step_ns: tuple[int, ...] = ()
    device_step_ns: tuple[int, ...] | None = None
    # Which of those steps hold an epoch boundary of a loader of the step (iterator re-created,
    # first batch of the new one): indexes into host_step_ns, ascending.
    boundary_steps: tuple[int, ...] = ()
    # Of a trial: those whose batch was the first of another epoch of its own loader, which ends at
    # other steps than the loop's epochs do.
    crossed_steps: tuple[int, ...] = ()
    fetches: tuple[FetchRecord, ...] = ()
    boundaries: tuple[BoundaryRecord, ...] = ()
    worker_cpu_ns: int | None = None  # user+system time of all workers over the window
    main_cpu_ns: int | None = None  # of the training process
    cpu: CpuRecord | None = None  # who else used the CPUs
    pages: PageRecord | None = None  # of all batches thrown away so far
    host_bytes: int | None = None  # PSS of the process tree, else RSS sum
    pool_memory: PoolMemoryRecord | None = None  # at its end; None: no workers, or not told
    gpu_limits: GpuLimitRecord | None = None  # None: no NVML, or not told
    gpu_peak_allocated_bytes: int | None = None
    gpu_peak_reserved_bytes: int | None = None
    tensor_peak_bytes: int | None = None  # the most that tensors in host memory grew in one step
    trace_path: str | None = None
    # (step boundary, perf_counter_ns) marks to calibrate the trace clock: name of a span that
    # starts at that instant, and the instant.
    clock_marks: tuple[tuple[str, int], ...] = ()
    snapshot: SnapshotRecord | None = None
    stacks: StackRecord | None = None
    startup_ns: int | None = None  # trial: open the loader and get its first batch
    boundary_ns: int | None = None  # trial: one epoch boundary, as the settings make it
    copies: CopyRecord | None = None  # no_copy
    compiles: CompileRecord | None = None  # None: nothing was compiled
    collections: CollectionRecord | None = None  # None: no garbage collection, or not recorded
    ready: ReadyRecord | None = None  # no_input: None where batches were recorded earlier
    wall: WallRecord | None = None  # of the whole run up to this window's end
    epoch_length: int | None = None  # batches that the loop read in its last pass for steps


class Beat(Message, frozen=True, kw_only=True, omit_defaults=True):
    """A recorded run, every few seconds: what happened since the last one."""

    start_ns: int
    end_ns: int
    at_s: float  # seconds since the epoch, of `end_ns`
    n_steps: int  # of the loop, so far
    n_epochs: int  # that ended, so far
    sums: Sums
    blocks: tuple[Block, ...] = ()
    stalls: tuple[Stall, ...] = ()
    step_bins: dict[int, int] = {}  # see `measured.LogBins`
    wait_bins: dict[int, int] = {}
    last_step_ns: tuple[int, ...] = ()  # the last of them, in order
    collections: Collections = Collections()
    workers: WorkersBeat | None = None  # None: not recorded
    queue: QueueFill | None = None  # None: no workers
    dry: Dry | None = None
    main_cpu_ns: int | None = None  # of the training process
    thread_cpu_ns: int | None = None  # of the training thread
    minor_faults: int | None = None  # page faults of the training process; major: read from disk
    major_faults: int | None = None
    wall: WallRecord | None = None  # of the whole run so far
    tuning: TuningRecord | None = None  # None: not tuned, or nothing new


class Note(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Something the report must say: a typed warning from the run."""

    kind: str  # "no-copy-not-held", "one-pass-loader", "second-profiler", …
    text: str


class Progress(Message, frozen=True, kw_only=True, omit_defaults=True):
    """What the process is doing, for the live display."""

    text: str
    n_steps: int = 0


class NoDataLoader(Message, frozen=True, kw_only=True, omit_defaults=True):
    """In place of Observed: the script trains, and iterates no DataLoader. It waits for Stop."""

    site: str  # "train.py:57": where the optimizer steps
    n_steps: int  # optimizer steps timed without the profiler
    step_ms: float  # their mean, host time
    built: bool = False  # a DataLoader was, but torch's own `__iter__` of it was never called
    of_passes: bool = False  # all of it is of backward passes: an optimizer's step is too large
    trace_path: str | None = None  # a profiled window of some of them
    reason: str | None = None  # why there is none, or one of few steps
    stacks: StackRecord | None = None  # stack samples of some steps without the profiler
    pauses: PauseRecord | None = None  # in `step_ms`; between the profiled steps there is none


class Ended(Message, frozen=True, kw_only=True, omit_defaults=True):
    """The script is over (or stopped, or failed). Last message."""

    how: Literal["stopped", "script-ended", "script-failed", "no-loader", "interrupted"]
    exit_code: int
    n_steps: int
    reason: str | None = None  # the exception that ended the script, or how it was killed
    boundaries: tuple[BoundaryRecord, ...] = ()
    loaders: tuple[LoaderRecord, ...] = ()
    wall: WallRecord | None = None  # of the whole run
    before_training: tuple[
        PassRecord, ...
    ] = ()  # where it ended before it trained, or at least warm
    read_stdin: bool = False  # the script did, as far as its process can tell
    # Where no step was found: what optimizers and loaders did all the same.
    n_optimizer_steps: int = 0
    n_batches: int = 0


FromRun = (
    Observed
    | TrainingBegan
    | WindowDone
    | Note
    | Progress
    | Ended
    | Hello
    | Ready
    | Spawned
    | NoDataLoader
    | Beat
)
ToRun = Measure | Begin | Stop | Reported | Told
