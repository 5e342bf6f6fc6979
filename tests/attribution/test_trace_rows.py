"""Which spans of a thread lie in no other, and which names tell that a loop trains."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaderdoctor.attribution.clock import trains
from loaderdoctor.attribution.trace_rows import outermost, rows_of
from loaderdoctor.trace.columns import Category
from tests.attribution.build import TraceBuilder

SPANS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6)), max_size=12)


def outermost_slowly(spans: list[tuple[int, int]]) -> list[bool]:
    """By start, the longer first, then by position: outer is what begins after all before end."""
    order = sorted(range(len(spans)), key=lambda i: (spans[i][0], -spans[i][1], i))
    outer, reach = [False] * len(spans), -1
    for i in order:
        start, length = spans[i]
        outer[i] = start >= reach
        reach = max(reach, start + length)
    return outer


@given(SPANS, st.booleans())
def test_outermost_spans_agree_with_reading_them_one_by_one(
    spans: list[tuple[int, int]], in_order: bool
) -> None:
    if in_order:
        spans = sorted(spans, key=lambda span: span[0])
    starts = np.array([s for s, _ in spans], np.int64)
    lengths = np.array([n for _, n in spans], np.int64)
    assert outermost(starts, starts + lengths).tolist() == outermost_slowly(spans)


@pytest.mark.parametrize(
    ("category", "name", "training"),
    [
        (Category.CPU_OP, "autograd::engine::evaluate_function: MmBackward0", True),
        (Category.CPU_OP, "AddmmBackward", True),
        (Category.CPU_OP, "aten::_fused_adamw_", True),
        (Category.CPU_OP, "aten::_fused_rms_norm", False),
        (Category.CPU_OP, "aten::_scaled_dot_product_fused_attention_overrideable", False),
        (Category.USER_ANNOTATION, "Optimizer.step#SGD.step", True),
        (Category.PYTHON, "torch/autograd/grad_mode.py(81): __enter__", False),
        (Category.PYTHON, "torch/_tensor.py(590): backward", True),
        (Category.PYTHON, "/venv/site-packages/torch/optim/sgd.py(90): step", True),
        (Category.RUNTIME, "cudaGraphLaunch", False),
        (Category.KERNEL, "void cunn_SoftMaxBackward<8, float>", True),
        (Category.KERNEL, "cudnn_convolve_dgrad_engine", False),  # forward, of transposed ones
    ],
)
def test_what_only_training_does_tells_that_a_loop_trains(
    category: Category, name: str, training: bool
) -> None:
    built = TraceBuilder()
    built.op(0, 5, "aten::mm")
    built.add(10, 20, category, name)
    assert trains(rows_of(built.trace())) is training
