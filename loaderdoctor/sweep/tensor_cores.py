"""How much of the kernel time runs on tensor cores, by the kernels' names."""

from __future__ import annotations

import re

import numpy as np

from loaderdoctor.trace.columns import Category, Trace

# What NVIDIA's libraries call kernels that use them: the matrix instruction (h884 … h16816, hmma,
# imma, wgmma, gmma), its shape (16816, 64x64x16 with tensorop), or "tensorop" of CUTLASS. Kernels
# that compilers make (Triton) name none: this is a lower bound.
_TENSOR_CORE = re.compile(
    r"tensorop|[hi]mma|[hi]gmma|wgmma|[hifs](?:884|1688|16816|16832|161616)|_bf16_?16816|nvjet",
    re.IGNORECASE,
)


def tensor_core_share(trace: Trace) -> float | None:
    """Share of the time in kernels, 0…1; None where the trace holds no kernel."""
    kernels = trace.spans.of(Category.KERNEL)
    duration = kernels.end_ns - kernels.start_ns
    total_ns = int(duration.sum())
    if total_ns <= 0:
        return None
    named = np.array([_TENSOR_CORE.search(name) is not None for name in trace.names], dtype=bool)
    return float(duration[named[kernels.name]].sum()) / total_ns
