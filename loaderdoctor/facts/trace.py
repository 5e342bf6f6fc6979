"""What one trace says: of its steps, of copies and the host, and of how the device is used.

And what follows from that alone: what copies cost beside their own time, and whether the loop goes
at the pace of its worker processes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from loaderdoctor.estimate import Estimate
from loaderdoctor.facts.step import (
    HIGH_SHARE,
    MODERATE_SHARE,
    Bound,
    Hidden,
    LeftOut,
    Shares,
    VerdictSeverity,
)

# Fewer are a usual batch: images, labels, a mask or two, and the optimizer's scalars.
MIN_SMALL_COPIES = 8
# Tensors below this are copied in microseconds, pinned or not (a label vector, a scalar): that they
# are not pinned says nothing about the batch. 64 KiB is also where CUDA stops staging a pageable
# copy synchronously inside the call.
MIN_TENSOR_BYTES = 64 * 1024
# A `.to()` takes the host 0.02 to 0.03 ms (`traces/`, pinned labels), half of it for the profiler:
# copies that the device does in less are calls, and not bytes.
CALL_MS = 0.01
# Receiving a batch from a worker (descriptors, unpickling) is no waiting for it. Beside an
# accelerator it takes 0.1 to 0.3 ms, and 8.6 µs a tensor where there are many (129 in
# `many_small_copies`, H200); on a CPU that workers share it was seen to take 4 ms and more.
RECEIVING_MS = 0.3
RECEIVING_MS_PER_TENSOR = 0.01
BURST_PART = 0.25


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
    # Of that, what lies between the op that copied and the training thread's next op or call, where
    # this takes long: nothing is recorded there, be it Python or a wait for the interpreter.
    silent_after_ms_per_step: float = 0.0
    # Of the exposed time, what nothing waited for: the next kernel had not been launched yet.
    unwaited_ms_per_step: float = 0.0
    # Exposed host time within the outermost ops that issue them, beside the calls: what each takes.
    op_host_ms_per_step: float = 0.0
    n_beside_per_step: float = 0.0  # issued by threads beside the loop's own


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
    def has_workers(self) -> bool:
        """Whether worker processes were seen to make the batches."""
        return self.kind in ("multi-process", "mixed")

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
    held_up_ms: float = 0.0  # per step, idle though work was launched: another process's turn
    n_per_call: float = 1.0  # kernels of one launching call: a CUDA graph has many

    @property
    def n_calls_per_step(self) -> float:
        """The calls that launch them."""
        return self.n_per_step / self.n_per_call


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

    Made by `attribution.identity`, which has the measurements behind it. Milliseconds a step.
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
    launch_call_ms: float | None  # host time inside launch calls, per step
    run_ahead_steps: float | None  # how far the host ran ahead of the device, median
    profiler: ProfilerFacts | None = None  # None: no op was recorded
    # Silence in which it may free a batch of worker processes that nobody pinned, or run Python of
    # the loop's own: exposed, all.
    freeing_ms: float = 0.0
    all_freeing_ms: float = 0.0


# Of the time, held up by another process: below, nothing changes by it, and none was seen alone.
SHARED_GPU_SHARE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFacts:
    """What one trace says. Times per step are means over its steps."""

    n_steps: int
    left_out: LeftOut = field(default_factory=LeftOut)  # what these are not of
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
    trains: bool = True  # False: ops were recorded, none of a backward pass, and no optimizer
    peers_compared: bool = False  # whether waits for other ranks are known, and in no share
    device_unseen: bool = False  # of an accelerator's work nothing was recorded: no share is known

    @property
    def shared_gpu(self) -> bool:
        """Whether another process takes turns on the accelerator, as far as times go."""
        return self.wall_ms > 0 and self.kernels.held_up_ms >= SHARED_GPU_SHARE * self.wall_ms


# Of the accelerator's use; `attribution`'s `gpu`, `busy` and `user_code` hold the definitions.


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


def small_copies(trace: TraceFacts) -> tuple[CopyFacts, ...]:
    """Those of many small ones, each of which costs a call; empty where there are few."""
    small = tuple(
        c
        for c in trace.copies
        if c.median_bytes < MIN_TENSOR_BYTES or c.busy_ms_per_step < CALL_MS * c.n_per_step
    )
    n = sum(c.n_per_step - c.n_beside_per_step for c in small)
    return small if n >= MIN_SMALL_COPIES else ()


# Batches from worker processes are written three times before they are copied to the device: as
# samples, into shared memory, and by the one thread that pins them. A loop on an H100 that gets
# 2.1 GB/s so need not wait; on an H200's host (6 CPUs, 12 workers) one was held at 3.2 and one at
# 1.9 GB/s. Loops that wait for slow samples get 0.02 to 0.8. From here on bytes may be what counts.
MANY_GB_PER_S = 1.2
# Silence behind copies that makes so much of the step, and of what the accelerator idles there.
MIN_SILENT_SHARE = 0.1
MIN_SILENT_PART = 0.5


def pinned_bytes(trace: TraceFacts) -> float:
    """Bytes a step that are copied from pinned memory: what a thread may have pinned."""
    return sum(c.bytes_per_step for c in trace.copies if c.source == "pinned")


def moved_gb_per_s(trace: TraceFacts) -> float | None:
    """What worker processes hand over and a thread pins, where that is much; None: it is not."""
    if not trace.fetching.has_workers or trace.wall_ms <= 0:
        return None
    gb_per_s = pinned_bytes(trace) / trace.wall_ms / 1e6
    return gb_per_s if gb_per_s >= MANY_GB_PER_S else None


def silent_behind_copies_ms(trace: TraceFacts) -> float:
    """Silence of the training thread behind blocking copies, ms a step, that pinning may explain.

    0 where few bytes are pinned, where it is short, or where stacks were recorded and tell it.
    Fooled by: the loop's own Python between the copies of one batch.
    """
    profiler = trace.host.profiler
    if moved_gb_per_s(trace) is None or (profiler is not None and profiler.has_stacks):
        return 0.0
    silent_ms = sum(c.silent_after_ms_per_step for c in trace.copies)
    idle_ms = sum(c.idle_after_ms_per_step for c in trace.copies)
    much = max(MIN_SILENT_SHARE * trace.wall_ms, MIN_SILENT_PART * idle_ms)
    return silent_ms if silent_ms >= much else 0.0


def lead_lost_ms(trace: TraceFacts) -> float:
    """Idle time, ms a step, that blocking copies leave by waiting for all the work before them.

    Not what the training thread then stands still for, or frees: it would without the copy.
    """
    idle_ms = sum(c.idle_after_ms_per_step for c in trace.copies)
    silent_ms = sum(c.silent_after_ms_per_step for c in trace.copies)
    own_ms = max(silent_behind_copies_ms(trace), min(silent_ms, trace.host.freeing_ms))
    return max(0.0, idle_ms - own_ms)


def copy_calls_ms(trace: TraceFacts) -> float:
    """Exposed host time, ms a step, that copies cause.

    Idle time of the accelerator behind those that waited for all the work before them, but for
    silence that is none of theirs, and what the ops take that issue many small ones.
    """
    return lead_lost_ms(trace) + sum(c.op_host_ms_per_step for c in small_copies(trace))


def in_bursts(waits_ms: tuple[float, ...]) -> bool:
    """Whether half of all waiting is in a quarter of the fetches: no cost that each of them has."""
    if len(waits_ms) < 4:
        return False
    longest = sorted(waits_ms, reverse=True)[: max(1, round(len(waits_ms) * BURST_PART))]
    return 2 * math.fsum(longest) > math.fsum(waits_ms) > 0


# Copies that cost this much more than the waits are no part of them: those are for slow batches.
MAX_COPY_PER_WAIT = 1.5


def only_workers_help(trace: TraceFacts, *, input_share: float, copy_share: float) -> bool:
    """Whether the loop would but wait the longer for its workers if its copies were faster."""
    return workers_set_the_pace(trace) and copy_share <= MAX_COPY_PER_WAIT * input_share


def may_be_crowded(
    bound: Bound, severity: VerdictSeverity | None, trace: TraceFacts | None
) -> bool:
    """Whether, for all a trace says, a host verdict may be of workers that crowd the CPUs."""
    uncertain = bound == "host" and severity == "uncertain"
    return uncertain and trace is not None and trace.fetching.has_workers


def workers_set_the_pace(trace: TraceFacts) -> bool:
    """Whether the loop waits for batches that worker processes are making.

    A pool's pace is its own: what the loop does meanwhile, and what recording adds to that, is
    time that it waits less. Not where it waits for workers to start, or receives what is ready.
    Fooled by: batches that take far longer to receive than those seen.
    """
    fetching, share = trace.fetching, trace.shares.input or 0.0
    if not fetching.has_workers or trace.wall_ms <= 0:
        return False
    started_ms = fetching.all_boundaries_ms / max(1, trace.n_steps)
    waiting = share - started_ms / trace.wall_ms
    if waiting < share / 2:
        return False
    if waiting >= 2 * MODERATE_SHARE and in_bursts(fetching.waits_ms):
        return True
    if not trace.has_accelerator:
        return waiting >= HIGH_SHARE
    n_tensors = sum(c.n_per_step for c in trace.copies)
    received_ms = RECEIVING_MS + RECEIVING_MS_PER_TENSOR * n_tensors
    return waiting - received_ms * (fetching.n_per_step or 1.0) / trace.wall_ms >= MODERATE_SHARE
