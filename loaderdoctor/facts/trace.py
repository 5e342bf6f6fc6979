"""What one trace says: of its steps, of copies and the host, and of how the device is used."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from loaderdoctor.estimate import Estimate
from loaderdoctor.facts.shares import Hidden, Shares


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
    # Accelerator idle, in `host`, from a call's or sync's end to the next kernel, where it was busy
    # when the call began: the host had run ahead, and this copy ended that.
    idle_after_ms_per_step: float = 0.0
    # Of the exposed time, what nothing waited for: the next kernel had not been launched yet.
    unwaited_ms_per_step: float = 0.0
    # Exposed host time within the outermost ops that issue them, beside the calls: what each takes.
    op_host_ms_per_step: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostHotspot:
    """Host work between fetch and fetch, by the deepest thing the trace names."""

    name: str  # "train.py(57): log_metrics" with stacks, else an op or annotation name
    ms_per_step: float  # exposed: the accelerator idle, or on a CPU outside ops
    file: str | None = None
    line: int | None = None
    n_per_step: float | None = None  # of silences between two ops: how often; None: not counted


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
class FetchFacts:
    """How the training thread gets its batches. What is None was not recorded."""

    recorded: bool  # False: no loader events at all; the input share then means nothing
    kind: Literal["single-process", "multi-process", "mixed", None]
    n_per_step: float | None
    raw_wait_ms: float | None  # per step, all time in getting a batch, hidden or not
    exposed_wait_ms: float | None
    waits_ms: tuple[float, ...]  # one per fetch, in order
    n_iterators_created: int  # within the trace, inferred
    n_exhausted: int  # fetches that ended an epoch
    startup_ms: tuple[float, ...]  # one per creation: creation to first batch, inferred
    # One per start-up: all waiting for its first batch, the end of the iterator before included.
    boundaries_ms: tuple[float, ...] = ()
    # Only where loader events are missing: exposed silence around the step's beginning, per step.
    # It may be waiting for batches or the loop's own Python; it is counted as host.
    unmarked_wait_ms: float | None = None

    @property
    def all_boundaries_ms(self) -> float:
        """What starting iterators, and ending those before them, took in all."""
        return math.fsum(self.boundaries_ms or self.startup_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFacts:
    """What the accelerator runs."""

    n_per_step: float
    busy_ms: float  # union over streams and devices, per step
    mean_us: float | None
    communication_ms: float | None  # per step
    held_up_ms: float = (
        0.0  # per step, idle though launched work was waiting: another process's turn
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncFacts:
    """Blocking calls that wait for compute: `.item()`, `.cpu()`, `synchronize`."""

    n_per_step: float
    wait_ms: float | None  # raw time in them, per step (never a promise)
    idle_after_ms: float | None  # accelerator idle from each one's end to the next kernel
    # Copies to the host that such calls make: how many, their bytes, and the device time of theirs
    # in which nothing else runs. None: no accelerator.
    n_to_host_per_step: float | None = None
    to_host_bytes: float | None = None
    to_host_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilerFacts:
    """What was recorded of a step on the host outside its fetches, and the time that took.

    Made by `attribution.distortion`, which has the measurements behind it. Milliseconds a step.
    """

    n_ops: float
    n_frames: float  # Python frames, with stacks; else 0
    n_memory_events: float
    least_ms: float  # surely the profiler's
    likely_ms: float
    most_ms: float

    @property
    def has_stacks(self) -> bool:
        """Whether Python frames were recorded."""
        return self.n_frames > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """What the training thread does besides fetching."""

    exposed_ms: float  # per step
    hotspots: tuple[HostHotspot, ...]
    n_launches_per_step: float
    launch_call_ms: float | None  # host time inside launch calls, per step
    run_ahead_steps: float | None  # how far the host ran ahead of the device, median
    profiler: ProfilerFacts | None = None  # None: no op was recorded


# Of the time, held up by another process: below, no time or verdict changes by it. None was seen in
# any trace of a GPU that one process had to itself.
SHARED_GPU_SHARE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFacts:
    """What one trace says. Times per step are means over its steps."""

    n_steps: int
    n_dropped_steps: int = 0  # steps at the trace's edges that could not be measured whole
    wall_ms: float  # per step, by the step clock
    step_walls_ms: tuple[float, ...]
    step_clock: Literal["device", "host-annotations", "fetches", "optimizer", "window"]
    shares: Shares
    hidden: Hidden
    has_accelerator: bool
    fetching: FetchFacts
    copies: tuple[CopyFacts, ...]
    kernels: KernelFacts
    syncs: SyncFacts
    host: HostFacts
    compute: ComputeFacts | None = None
    gpu_devices: tuple[GpuDeviceFacts, ...] = ()  # those that ran a kernel
    busy: BusyFacts | None = None  # None: no accelerator
    plain_shares: Shares | None = None  # without what recording likely took: of a step as it runs
    # Of few steps, what they say of the others: each share with its interval. Empty: enough steps.
    few_steps: Mapping[str, Estimate] = field(default_factory=dict)
    ranges: tuple[RangeFacts, ...] = ()  # the user's own, costliest first
    n_ranges_left_out: int = 0

    @property
    def shared_gpu(self) -> bool:
        """Whether another process takes turns on the accelerator, as far as times go."""
        return self.wall_ms > 0 and self.kernels.held_up_ms >= SHARED_GPU_SHARE * self.wall_ms


# What is known of the accelerator's use: each device, busy time and its idle gaps, ranges.
#
# Made by `attribution`'s `gpu`, `busy` and `user_ranges`, which hold the definitions.


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuDeviceFacts:
    """One device over all steps of a trace, by the TensorBoard plugin's definitions."""

    index: int
    name: str | None
    memory_bytes: int | None  # what the device has
    peak_allocated_bytes: int | None  # by the trace's memory events; None: it has none
    peak_reserved_bytes: int | None
    utilization_share: float | None  # a kernel runs
    sm_efficiency_share: float | None  # estimated
    occupancy_share: float | None  # estimated, achieved
    tensor_core_share: float | None  # of the kernels' time, by the names we know
    plugin_tensor_core_share: float | None  # likewise, by the plugin's list of names


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleGapFacts:
    """Times in which the accelerator falls idle, while at others it is busy."""

    spans_ms: tuple[tuple[float, float], ...]  # (begin, end), since the series' begin
    n: int
    mean_ms: float  # how long one lasts
    usual_share: float  # busy share of a typical step
    low_share: float  # busy share within the gaps
    of_window_share: float  # what the gaps take of the window
    period_ms: float | None  # begin to begin, mean; None for a single one
    period_steps: float | None  # likewise, in steps, median
    regular: bool  # they come back after about as many steps each time
    matches: Literal["worker-cycle", "epoch", None]
    match_steps: int | None  # steps of that cycle or epoch, where known
    waiting_share: float | None  # of their time: the loop waits for a batch; None: not recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyFacts:
    """How busy the accelerator is over the measured steps of a trace."""

    every_ms: float  # between two values
    over_ms: float  # each is the busy share of so long a time
    shares: tuple[float, ...]
    window_ms: float
    idle_gaps: IdleGapFacts | None  # None: there are none


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeFacts:
    """One of the user's own `record_function` ranges, over the measured steps of a trace."""

    name: str
    n_calls: int
    host_ms_per_step: float
    gpu_ms_per_step: float | None  # of kernels, copies, memsets launched inside; None: no device
    n_kernels_per_step: float | None
    depth: int  # of other ranges around it, at the least
