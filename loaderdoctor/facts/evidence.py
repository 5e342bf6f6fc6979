"""The facts that findings decide on: what was measured, in one place, each with its evidence.

Built by `attribution` from a trace (`TraceFacts`) and from the run's window records and worker
records (the rest); read by `findings` and `report`. A fact that was not recorded is None, and
the rule that needs it abstains.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from loaderdoctor.attribution.device_use import BusyFacts, GpuDeviceFacts, RangeFacts
from loaderdoctor.attribution.shares import Hidden, Shares
from loaderdoctor.estimate import Estimate, binomial_interval
from loaderdoctor.instrument.wire.protocol import (
    Allocator,
    ComputeRecord,
    LoaderRecord,
    TransferRecord,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyFacts:
    """Host-to-device copies of one kind of source memory and stream, over the steps of a trace."""

    source: Literal["pinned", "pageable", "unknown"]
    n_per_step: float
    bytes_per_step: float
    busy_ms_per_step: float  # device time of the copies
    exposed_ms_per_step: float  # as the identity counts it: `copy` share
    bandwidth_gb_per_s: float | None  # bytes / device time
    host_blocked_ms_per_step: float  # the thread inside the copy's runtime call or stream sync
    same_stream_as_compute: bool | None
    median_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HostHotspot:
    """Host work between fetch and fetch, by the deepest thing the trace names."""

    name: str  # "train.py(57): log_metrics" with stacks, else an op or annotation name
    ms_per_step: float  # exposed: the accelerator idle, or on a CPU outside ops
    file: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeFacts:
    """How the steps of a trace compute. Milliseconds a step; device time where there is one."""

    float32_gemm_ms: float  # float32 matrix products that use no tensor cores
    convolution_ms: float  # kernels of convolutions, forward and backward
    zero_fill_ms: float  # tensors filled with zeros by the training thread
    zero_grad_fill_ms: float  # of these, inside an optimizer's zero_grad
    n_data_parallel_forwards: float  # calls of nn.DataParallel a step
    n_computing_devices: int
    compute_major: int | None  # CUDA compute capability of the weakest device


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFacts:
    """What one trace says. Times per step are means over its steps."""

    n_steps: int
    wall_ms: float  # per step, by the step clock
    step_walls_ms: tuple[float, ...]
    step_clock: Literal["device", "host-annotations", "fetches", "optimizer", "window"]
    shares: Shares
    hidden: Hidden
    has_accelerator: bool
    loader_events: bool  # False: "no loader events recorded"; input share then means nothing
    # fetching
    fetch_kind: Literal["single-process", "multi-process", "mixed", None]
    n_fetches_per_step: float | None
    raw_wait_ms: float | None  # per step, all time in getting a batch, hidden or not
    exposed_wait_ms: float | None
    waits_ms: tuple[float, ...]  # one per fetch, in order
    n_iterators_created: int  # within the trace, inferred
    n_exhausted: int  # fetches that ended an epoch
    startup_ms: tuple[float, ...]  # one per creation: creation to first batch, inferred
    # copies
    copies: tuple[CopyFacts, ...]
    # launching
    n_kernels_per_step: float
    kernel_busy_ms: float  # union over streams and devices, per step
    mean_kernel_us: float | None
    n_launches_per_step: float
    launch_call_ms: float | None  # host time inside launch calls, per step
    host_exposed_ms: float  # per step
    n_syncs_per_step: float  # blocking calls that wait for compute: .item(), .cpu(), synchronize
    sync_wait_ms: float | None  # raw time in them, per step (never a promise)
    idle_after_sync_ms: float | None  # accelerator idle from each sync's end to the next kernel
    host_hotspots: tuple[HostHotspot, ...]
    communication_ms: float | None
    run_ahead_steps: float | None  # how far the host ran ahead of the device, median
    n_dropped_steps: int = 0  # steps at the trace's edges that could not be measured whole
    # Only where loader events are missing: exposed silence around the step's beginning, per step.
    # It may be waiting for batches or the loop's own Python; it is counted as host.
    # At least this much of the host's time per step is the profiler's own: see
    # attribution.trace_facts.PROFILER_US_PER_OP. None: no op was recorded.
    profiler_ms: float | None = None
    unmarked_wait_ms: float | None = None
    gpu_devices: tuple[GpuDeviceFacts, ...] = ()  # those that ran a kernel
    busy: BusyFacts | None = None  # None: no accelerator
    ranges: tuple[RangeFacts, ...] = ()  # the user's own, costliest first
    n_ranges_left_out: int = 0
    compute: ComputeFacts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """The innermost Python function at some looks: the line's own, or what it had called."""

    file: str
    function: str
    n_stack_samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LineHotspot:
    """A line of the user's code inside dataset, collate or sampler, and how often it was seen."""

    file: str
    line: int
    function: str
    code: str | None
    n_stack_samples: int
    of_stack_samples: int  # in the same phase, at all lines, those left out here too
    # Looks fall where the interpreter is let go, which collating does more than most samples: so
    # each phase counts for its measured time, and looks only say how that is spread.
    phase: Literal["fetch", "collate", "sampler"] = "fetch"
    phase_share: float = 1.0  # of the time that all phases of a batch take
    leaves: tuple[Leaf, ...] = ()  # most looks first

    @property
    def share(self) -> float:
        """Of making a batch; an estimate, whose noise `share_ci` tells."""
        return self.phase_share * self.n_stack_samples / self.of_stack_samples

    @property
    def share_ci(self) -> tuple[float, float]:
        """95 % interval of the share."""
        low, high = binomial_interval(self.n_stack_samples, self.of_stack_samples)
        return self.phase_share * low, self.phase_share * high


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFacts:
    """What happened where one loader's batches are made: in workers, or in the loop's own process.

    Nothing of other loaders is in it, even of those over the same dataset object.
    """

    n_workers: int
    n_batches: int
    batch_ms: float  # fetch + collate, mean over whole worker cycles
    fetch_ms: float  # samples only
    collate_ms: float | None
    sampler_ms: float | None  # per batch, in the main process
    cpu_share: float | None  # CPU time / wall time while making a batch
    sample_ms_quantiles: tuple[float, ...] | None  # 0, 5, 25, 50, 75, 95, 99, 100 %
    n_samples: int
    queue_put_ms: float | None
    idle_share: float | None  # waiting for an index, of the worker's life in the window
    n_idle_workers: int  # made no batch while others did
    n_threads: int | None  # intra-op and BLAS threads a worker would use
    cores: tuple[tuple[int, ...], ...]  # CPU affinity of each worker
    head_of_line_ms: float | None  # per step: ready batches waited behind an earlier one
    pin_ms: float | None  # pin-memory thread, per batch
    pin_busy_share: float | None
    transforms: tuple[tuple[str, float], ...]  # each transform of a Compose: ms per sample
    lines: tuple[LineHotspot, ...]
    first_touch_ratio: float | None  # sample time in the first epoch / later ones
    first_touch_ms: float | None = None  # a sample touched for the first time
    # Of a worker's life, ready to run and no CPU free: it waits for a CPU, not for storage.
    run_wait_share: float | None = None
    loader: str | None = None  # LoaderRecord.id; None: the records do not say


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFacts:
    """Memory of batches that workers hand over: mapped by page faults, freed when dropped."""

    batch_bytes: int
    faults_per_batch: int  # minor faults of a batch's first read
    touch_ms: float  # a batch's first read of each page, beyond what reading it again takes
    release_ms: float  # dropping a batch
    # Minor faults of the thread that trains, a step: median of rounds, and of the differences to
    # steps with ready batches.
    faults_per_step: float
    extra_faults_per_step: float

    @property
    def part(self) -> float:
        """How much of each batch the training thread is the first to read, 0…1."""
        if self.faults_per_batch <= 0:
            return 0.0
        return min(1.0, max(0.0, self.extra_faults_per_step / self.faults_per_batch))


@dataclass(frozen=True, slots=True, kw_only=True)
class AblationFacts:
    """Plain against substituted batches, same process, interleaved. Signed; milliseconds a step."""

    plain_ms: Estimate
    no_input_ms: Estimate | None
    no_copy_ms: Estimate | None
    input_ms: Estimate | None  # plain - no_input, paired by round
    copy_ms: Estimate | None  # no_input - no_copy
    n_rounds: int
    reason: str | None = None  # why a part is missing
    by_loader_ms: tuple[tuple[str, Estimate], ...] = ()  # each loader alone, where several
    # Of input_ms, what other processes may account for, since the CPUs were full; else None.
    contended_ms: float | None = None
    main_cpu_ms: float | None = None  # of the training process, a step with ready batches
    pages: PageFacts | None = None  # None: no batch was thrown away, or faults are not counted
    # Minor page faults of the thread that trains, a step with ready batches: of the round with
    # fewest, as validation between steps takes its own. None: not counted.
    synthetic_faults_per_step: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuFacts:
    """Who used the CPUs during plain windows, beside the run itself, and who waited for one."""

    # CPUs, of those this run may use, that other programs kept busy on average.
    other_cores: float | None
    # Threads of the training process that stood ready to run with no CPU free, on average.
    waiting_threads: float | None
    train_wait_share: float | None  # of the time of the thread that trains
    throttled_share: float | None  # periods in which a quota held the run back; None: no quota


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadTrial:
    """The loop with another number of intra-op threads, measured beside plain windows."""

    n_threads: int
    step_ms: Estimate
    gain_ms: Estimate  # plain - this, paired by round
    decided: bool  # enough was seen to say that it helps, or that it was not shown to


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """The step in plain windows: the figures that rank and judge."""

    definition: str
    wall_ms: Estimate  # within_epoch + boundary / steps_per_epoch
    within_epoch_ms: Estimate
    boundary_ms: float | None  # one epoch boundary
    steps_per_epoch: int | None
    n_steps: int
    raw_wait_ms: float | None  # in __next__ per step, plain windows
    waits_ms: tuple[float, ...]
    samples_per_step: float | None
    clock: Literal["device", "host"]
    n_iterators_created: int
    worker_cpu_cores: float | None  # worker CPU time / wall
    main_cpu_cores: float | None
    # Of torch's allocator in the first window, before anything was substituted.
    gpu_peak_allocated_bytes: int | None = None
    gpu_peak_reserved_bytes: int | None = None
    # Of `boundary_ms`, what is the loader's: its iterator, workers' start and end, the first batch.
    # The rest is the loop's own work between epochs. None: not told apart.
    loader_boundary_ms: float | None = None
    input_ms: float | None = None  # getting batches, a step: waits and the loader's boundary
    windows_ms: tuple[float, ...] = ()  # mean step within the epoch, of each window in order
    cpu: CpuFacts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """What the machine offers."""

    usable_cpus: float
    memory_available_bytes: int | None
    shm_free_bytes: int | None
    open_files_limit: int | None
    device_name: str | None
    device_memory_bytes: int | None
    n_threads: int | None  # intra-op threads of the training process
    swap_used_bytes: int | None = None
    start_method: str | None = None  # of worker processes, where a loader names none
    cudnn_benchmark: bool | None = None
    tf32: bool | None = None
    allocator: Allocator | None = None
    fault_us: float | None = None  # CPU time of a page fault of anonymous memory


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """One rank of a job, from its trace, beside the others. Milliseconds a step."""

    rank: int
    host: str | None
    source: str  # its trace
    n_steps: int
    wall_ms: float
    own_ms: float  # wall_ms without what it waits for peers
    shares: Shares  # of own_ms
    peer_wait_ms: float | None  # in collectives that a later rank had not come to; None: unknown

    def part_ms(self, name: str) -> float | None:
        """One share in milliseconds a step; None where it was not recorded."""
        share: float | None = getattr(self.shares, name)
        return None if share is None else share * self.own_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStep:
    """One rank's step in plain windows."""

    rank: int
    host: str
    step: StepFacts | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything known about one run. From a trace alone only `trace` is there."""

    command: Literal["diagnose", "sweep", "analyze"]
    shares: Shares | None  # the best estimate
    shares_low: dict[str, float] | None  # lower bounds of input and copy shares, from ablation
    hidden: Hidden | None
    step: StepFacts | None
    trace: TraceFacts | None
    loaders: tuple[LoaderRecord, ...]  # loaders of the training step first
    transfers: tuple[TransferRecord, ...]
    workers: WorkerFacts | None  # of the loader that feeds the step
    ablation: AblationFacts | None
    machine: MachineFacts | None
    profiler_overhead: float | None  # profiled / plain step time
    compute: ComputeRecord | None = None  # how the loop was seen to compute
    ranks: tuple[RankFacts, ...] = ()  # of a job of several; the other facts are the slowest's
    other_workers: tuple[WorkerFacts, ...] = ()  # of the other loaders seen, validation mostly
    thread_trials: tuple[ThreadTrial, ...] = ()  # empty: not tried, or not yet

    @property
    def step_ms(self) -> float | None:
        """The step's wall time: plain windows, else the trace."""
        if self.step is not None:
            return self.step.wall_ms.value
        return self.trace.wall_ms if self.trace is not None else None

    @property
    def main_loader(self) -> LoaderRecord | None:
        """The loader that feeds the step, if one was seen."""
        return next((x for x in self.loaders if x.role == "train"), None)

    def share(self, name: str) -> float | None:
        """One share of the best estimate, 0…1; None where there is none."""
        return self.shares.as_dict()[name] if self.shares is not None else None
