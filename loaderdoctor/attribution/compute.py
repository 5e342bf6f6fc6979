"""How the steps of a trace compute: the figures behind hints that concern no loader."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from loaderdoctor.attribution.clock import StepClock
from loaderdoctor.attribution.rows import Index, Rows
from loaderdoctor.facts.trace import ComputeFacts
from loaderdoctor.intervals import Intervals
from loaderdoctor.trace.columns import ABSENT, Category, Trace

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

    def names(says: Callable[[str], object]) -> NDArray[np.bool_]:
        return np.fromiter((bool(says(n)) for n in rows.names), np.bool_, len(rows.names))

    convolution = names(_CONVOLUTION.search)
    gemm = names(_FLOAT32_GEMM.search) & ~convolution
    kernels = rows.of_category[Category.KERNEL]
    kernels = kernels[clock.window.contains(spans.start_ns[kernels])]
    fills = _within(rows, clock, names(_ZERO_FILL.__contains__), Category.CPU_OP)
    clearing = rows.intervals(rows.named(names(lambda n: n.startswith(_ZERO_GRAD)), *_ANNOTATIONS))
    in_zero_grad = fills[clearing.contains(spans.start_ns[fills])]
    replicating = _within(rows, clock, names(_DATA_PARALLEL.__eq__), *_ANNOTATIONS)
    majors = [d.compute_major for d in trace.devices if d.compute_major is not None]

    def ms(total_ns: int) -> float:
        return clock.ms_per_step(total_ns)

    def kernel_ms(flag: NDArray[np.bool_]) -> float:
        chosen = kernels[flag[spans.name[kernels]]]
        return ms(int((spans.end_ns[chosen] - spans.start_ns[chosen]).sum()))

    return ComputeFacts(
        float32_gemm_ms=kernel_ms(gemm),
        convolution_ms=kernel_ms(convolution),
        zero_fill_ms=ms(_cost_ns(trace, rows, fills)),
        zero_grad_fill_ms=ms(_cost_ns(trace, rows, in_zero_grad)),
        n_data_parallel_forwards=replicating.size / clock.per_step,
        n_computing_devices=int(np.unique(spans.device[kernels]).size),
        compute_major=min(majors, default=None),
    )


_ANNOTATIONS = (Category.USER_ANNOTATION, Category.CPU_OP)


def _within(rows: Rows, clock: StepClock, flag: NDArray[np.bool_], *categories: Category) -> Index:
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
