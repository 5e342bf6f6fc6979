"""How well the accelerator is used, by the TensorBoard plugin's definitions, from kernel events.

Definitions as read in torch-tb-profiler 0.4.3 (`gpu_metrics_parser.py`, `event_parser.py`,
`kernel_parser.py`, `tensor_core.py`), so that report and TensorBoard show the same figures; the
code is our own. All are per device, over the plugin's own steps: from the first profiler step to
the end of the last one's device work, the first step included, which our own step clock leaves out.

What held a GPU's clock down comes from NVML's counters of plain windows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import median

import numpy as np

from loaderdoctor.attribution.clock import StepClock
from loaderdoctor.attribution.trace_rows import Flags, Index, Mask, Rows, flags_of
from loaderdoctor.facts.loop import GpuLimitFacts, Limit
from loaderdoctor.facts.trace import ComputeFacts, GpuDeviceFacts
from loaderdoctor.instrument.wire.measured import GpuLimitRecord
from loaderdoctor.instrument.wire.protocol import WindowDone
from loaderdoctor.intervals import Intervals
from loaderdoctor.trace.columns import ABSENT, F64, I64, Category, Trace

# The plugin leaves out the last step where it has less than this of the device work of the one
# before: the profiler may not have caught all of its kernels.
WHOLE_STEP = 0.8

MAX_DEVICES = 64  # of one host, as the plugin has it; of more, those with most kernels

# What the plugin takes for kernels that use tensor cores: any of these within the name.
PLUGIN_TENSOR_CORE_NAMES = (
    "h884", "s884", "h1688", "s1688", "hmma", "i8816", "16816", "dgrad_1x1_stride_2x2",
    "first_layer_wgrad_kernel", "conv1x1", "conv2d_c1_k1", "direct_group", "xmma_implicit_gemm",
    "xmma_sparse_conv", "xmma_warp_specialized_implicit_gemm", "xmma_gemm", "xmma_sparse_gemm",
    "c1688",
)  # fmt: skip
# What NVIDIA's libraries call kernels that use them: the matrix instruction (h884 … h16816, hmma,
# imma, wgmma, gmma), its shape (16816, 64x64x16 with tensorop), or "tensorop" of CUTLASS. Kernels
# that compilers make (Triton) name none: this is a lower bound.
_TENSOR_CORE = re.compile(
    r"tensorop|[hi]mma|[hi]gmma|wgmma|[hifs](?:884|1688|16816|16832|161616)|_bf16_?16816|nvjet",
    re.IGNORECASE,
)


def tensor_core_share(trace: Trace) -> float | None:
    """Share of the time in kernels, 0…1, over the whole trace; None where it holds no kernel."""
    kernels = trace.spans.of(Category.KERNEL)
    named = flags_of(trace.names, _TENSOR_CORE.search)
    return _time_share(kernels.end_ns - kernels.start_ns, named[kernels.name])


def gpu_facts(trace: Trace, rows: Rows, clock: StepClock) -> tuple[GpuDeviceFacts, ...]:
    """The figures of each device that ran a kernel, by its index."""
    kernels = rows.of_category[Category.KERNEL]
    if kernels.size == 0:
        return ()
    spans, shapes = rows.spans, trace.kernel_shapes
    window = all_steps(rows, clock)
    named = flags_of(trace.names, _TENSOR_CORE.search)
    by_plugin = flags_of(
        trace.names, lambda name: any(part in name for part in PLUGIN_TENSOR_CORE_NAMES)
    )
    known = {device.index: device for device in trace.devices}
    peaks = {peak.device: peak for peak in trace.memory_peaks}
    found = []
    indices, counts = np.unique(spans.device[kernels], return_counts=True)
    if indices.size > MAX_DEVICES:
        indices = np.sort(indices[np.argsort(-counts, kind="stable")[:MAX_DEVICES]])
    for index in indices.tolist():
        mine = spans.device[kernels] == index
        at = kernels[mine]
        start, end = spans.start_ns[at], spans.end_ns[at]
        length = end - start
        device, peak = known.get(index), peaks.get(index)
        found.append(
            GpuDeviceFacts(
                index=index,
                name=device.name if device is not None else None,
                memory_bytes=device.memory_bytes if device is not None else None,
                peak_allocated_bytes=peak.allocated_bytes if peak is not None else None,
                peak_reserved_bytes=peak.reserved_bytes if peak is not None else None,
                utilization_share=_share_of(window, Intervals.of(start, end)),
                sm_efficiency_share=(
                    sm_efficiency(start, end, shapes.blocks_per_sm[mine], window)
                    if shapes is not None
                    else None
                ),
                occupancy_share=(
                    occupancy(start, end, shapes.occupancy_percent[mine], window)
                    if shapes is not None
                    else None
                ),
                tensor_core_share=_time_share(length, named[spans.name[at]]),
                plugin_tensor_core_share=_time_share(length, by_plugin[spans.name[at]]),
            )
        )
    return tuple(found)


def sm_efficiency(
    start_ns: I64, end_ns: I64, blocks_per_sm: F64, window: Intervals
) -> float | None:
    """Estimated share of the multiprocessors that had a block to run, over all steps' time.

    At each instant the blocks per multiprocessor of all kernels running then, at most 1; its mean
    over the window, idle time counted as 0. A kernel without blocks says nothing and is left out.
    None where no kernel says.
    """
    told = blocks_per_sm > 0  # False for NaN
    if not told.any() or window.total_ns == 0:
        return None
    # More than 1 is as good as 1, for each as for the sum; small numbers are lost in huge ones.
    start, end, blocks = start_ns[told], end_ns[told], np.minimum(blocks_per_sm[told], 1.0)
    at = np.concatenate((start, end))
    order = np.argsort(at, kind="stable")
    at = at[order]
    running = np.cumsum(np.concatenate((np.ones(start.size), -np.ones(end.size)))[order])
    total = np.cumsum(np.concatenate((blocks, -blocks))[order])
    # Sums of floats don't return to 0 by themselves: nothing runs where no kernel is under way.
    level = np.where(running > 0, np.minimum(total, 1.0), 0.0)
    covered = np.diff(window.covered_before(at))
    return float((level[:-1] * covered).sum()) / window.total_ns


def occupancy(
    start_ns: I64, end_ns: I64, occupancy_percent: F64, window: Intervals
) -> float | None:
    """Mean estimated achieved occupancy of kernels, weighted by their time in the window, 0…1."""
    told = (occupancy_percent >= 0) & (occupancy_percent <= 100)  # False for NaN
    weight = window.covered_before(end_ns[told]) - window.covered_before(start_ns[told])
    total = int(weight.sum())
    if total == 0:
        return None
    return float((occupancy_percent[told] * weight).sum()) / total / 100


def all_steps(rows: Rows, clock: StepClock) -> Intervals:
    """The plugin's "all steps": one span, from the first step's begin to the last one's end.

    Steps are the `ProfilerStep` spans of the host, each drawn out to the end of the device work
    launched within it; the first begins no sooner than device work launched before it has ended.
    Without such spans, the steps we found by other marks.
    """
    spans = rows.spans
    marks = np.flatnonzero(rows.named(rows.flags.step, Category.USER_ANNOTATION))
    if marks.size == 0:
        steps = clock.window
        return Intervals.span(int(steps.starts[0]), int(steps.ends[-1])) if len(steps) else steps
    starts, ends = spans.start_ns[marks], spans.end_ns[marks]
    device, step = _launched_within(rows, starts, ends)
    if device.size == 0:
        return Intervals.span(int(starts[0]), int(ends[-1]))
    n_launched = np.bincount(step, minlength=starts.size)
    last = np.full(starts.size, np.iinfo(np.int64).min)
    np.maximum.at(last, step, spans.end_ns[device])
    begin = int(starts[0])
    if n_launched[0]:
        first = int(spans.start_ns[device[step == 0]].min())
        before = np.setdiff1d(rows.device_rows, device, assume_unique=True)
        earlier = spans.end_ns[before][spans.end_ns[before] < first]
        begin = max(begin, int(earlier.max())) if earlier.size else begin
    n_kept = int(np.flatnonzero(n_launched)[-1]) + 1
    if n_kept > 1 and n_launched[n_kept - 2] * WHOLE_STEP > n_launched[n_kept - 1]:
        n_kept -= 1
    # Ends never run backwards, and a step's end is at least its begin.
    return Intervals.span(begin, max(begin, int(ends[:n_kept].max()), int(last[:n_kept].max())))


def _launched_within(rows: Rows, starts: I64, ends: I64) -> tuple[Index, Index]:
    """Device rows whose launching call lies wholly within a step, and the number of that step."""
    spans = rows.spans
    joined = rows.launched_by != ABSENT
    call, device = rows.launched_by[joined], rows.device_rows[joined]
    step = np.searchsorted(starts, spans.start_ns[call], side="right") - 1
    inside = (step >= 0) & (spans.end_ns[call] <= ends[np.maximum(step, 0)])
    return device[inside], step[inside]


def _time_share(length_ns: I64, chosen: Mask) -> float | None:
    total_ns = int(length_ns.sum())
    return int(length_ns[chosen].sum()) / total_ns if total_ns > 0 else None


def _share_of(window: Intervals, busy: Intervals) -> float | None:
    return busy.intersect(window).total_ns / window.total_ns if window.total_ns else None


# Matrix products in float32 on the ordinary cores, as NVIDIA's libraries name them (`traces/`,
# H100, torch 2.11): cutlass_80_simt_sgemm_…, sm80_xmma_gemm_f32f32_f32f32_f32_…_ffma_…,
# ampere_sgemm_…, sgemm_largek_lds64. With TF32 they are …_tf32f32_… or …s1688gemm….
_FLOAT32_GEMM = re.compile(r"(?<![a-z0-9])sgemm|gemm_f32f32_f32f32_f32", re.IGNORECASE)
_CONVOLUTION = re.compile(
    r"fprop|dgrad|wgrad|convolve|winograd|implicit_gemm|conv_?depthwise|conv[123]d", re.IGNORECASE
)
_ZERO_FILL = frozenset(("aten::zero_", "aten::_foreach_zero_"))
_ZERO_GRAD = "Optimizer.zero_grad"
_DATA_PARALLEL = "DataParallel.forward"


def compute_facts(trace: Trace, rows: Rows, clock: StepClock) -> ComputeFacts:
    """Means over the steps that the clock keeps; without steps, totals of the window."""
    spans = rows.spans
    convolution = flags_of(rows.names, _CONVOLUTION.search)
    gemm = flags_of(rows.names, _FLOAT32_GEMM.search) & ~convolution
    kernels = rows.of_category[Category.KERNEL]
    kernels = kernels[clock.window.contains(spans.start_ns[kernels])]
    fills = _within(rows, clock, flags_of(rows.names, _ZERO_FILL.__contains__), Category.CPU_OP)
    zero_grad = flags_of(rows.names, lambda name: name.startswith(_ZERO_GRAD))
    clearing = rows.intervals(rows.named(zero_grad, *_ANNOTATIONS))
    in_zero_grad = fills[clearing.contains(spans.start_ns[fills])]
    replicated = flags_of(rows.names, _DATA_PARALLEL.__eq__)
    replicating = _within(rows, clock, replicated, *_ANNOTATIONS)
    majors = [d.compute_major for d in trace.devices if d.compute_major is not None]

    def kernel_ms(flag: Flags) -> float:
        chosen = kernels[flag[spans.name[kernels]]]
        return clock.ms_per_step(int((spans.end_ns[chosen] - spans.start_ns[chosen]).sum()))

    return ComputeFacts(
        float32_gemm_ms=kernel_ms(gemm),
        convolution_ms=kernel_ms(convolution),
        zero_fill_ms=clock.ms_per_step(_cost_ns(trace, rows, fills)),
        zero_grad_fill_ms=clock.ms_per_step(_cost_ns(trace, rows, in_zero_grad)),
        n_data_parallel_forwards=replicating.size / clock.per_step,
        n_computing_devices=int(np.unique(spans.device[kernels]).size),
        compute_major=min(majors, default=None),
    )


_ANNOTATIONS = (Category.USER_ANNOTATION, Category.CPU_OP)


def _within(rows: Rows, clock: StepClock, flag: Flags, *categories: Category) -> Index:
    """Rows of the training thread under such a name, begun in the measured steps."""
    found = np.flatnonzero(rows.named(flag, *categories) & rows.on_training_thread())
    return found[clock.host_window.contains(rows.spans.start_ns[found])]


def _cost_ns(trace: Trace, rows: Rows, ops: Index) -> int:
    """Device time of what these ops launch; without an accelerator the time inside them."""
    spans = rows.spans
    inside: Intervals = rows.intervals(ops)  # a union: `_foreach_zero_` may call `zero_`
    if not trace.has_accelerator:
        return inside.total_ns
    calls = np.maximum(rows.launched_by, 0)
    launched = (rows.launched_by != ABSENT) & inside.contains(spans.start_ns[calls])
    launched &= spans.thread[calls] == rows.training_thread
    chosen = rows.device_rows[launched]
    return int((spans.end_ns[chosen] - spans.start_ns[chosen]).sum())


def gpu_limit_facts(windows: Sequence[WindowDone]) -> GpuLimitFacts | None:
    """None where nothing was counted, or no clock is known."""
    seen = [w.gpu_limits for w in windows if w.gpu_limits is not None and w.gpu_limits.wall_ns > 0]
    clocks = [x.sm_mhz for x in seen if x.sm_mhz]
    most = max((x.max_sm_mhz for x in seen if x.max_sm_mhz), default=None)
    if not clocks or most is None:
        return None
    shares: dict[Limit, float] = {
        "power": _share(seen, "power_ns"),
        "heat": _share(seen, "thermal_ns"),
        "board": _share(seen, "board_ns"),
    }
    limit = max(shares, key=lambda x: shares[x])
    last = seen[-1]
    return GpuLimitFacts(
        limit=limit,
        share=shares[limit],
        sm_mhz=float(median(clocks)),
        max_sm_mhz=float(most),
        temperature_c=max((float(x.temperature_c) for x in seen if x.temperature_c), default=None),
        limit_w=last.limit_w,
        max_limit_w=last.max_limit_w,
        default_limit_w=last.default_limit_w,
    )


def _share(seen: Sequence[GpuLimitRecord], counter: str) -> float:
    held = sum(getattr(x, counter) or 0 for x in seen)
    return min(1.0, held / sum(x.wall_ns for x in seen))
