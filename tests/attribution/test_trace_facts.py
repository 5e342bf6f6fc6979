"""Files merged from the traces of several training processes: one is told, the others left out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from loaderdoctor.attribution import attribute
from loaderdoctor.trace.columns import ABSENT, DEVICE_CATEGORIES, Category, KernelShapes, Trace
from tests.attribution.build import BACKGROUND, MAIN, Row, TraceBuilder
from tests.trace_facts import trace_facts


def loop(*, accelerated: bool, kernel_us: float) -> TraceBuilder:
    """Six steps of 1000 us: fetch 300, work."""
    b = TraceBuilder()
    for i in range(6):
        t = i * 1000
        b.step(i, t, t + 1000)
        b.fetch(t + 1, t + 300)
        if accelerated:
            b.copy(t + 310, t + 315, t + 315, t + 340)
            b.kernel(t + 350, t + 360, t + 360 + kernel_us)
        else:
            b.op(t + 350, t + 350 + kernel_us)
        b.optimizer(t + 980, t + 990)
    return b


def of_another(row: Row, id_shift: int) -> Row:
    """The row as in the second process: its own thread and device; some ids are in both."""
    correlation = row.correlation if row.correlation == ABSENT else row.correlation + id_shift
    if row.category in DEVICE_CATEGORIES:
        return replace(row, correlation=correlation, device=1)
    return replace(row, correlation=correlation, thread=BACKGROUND)


def merged(first: TraceBuilder, second: TraceBuilder) -> Trace:
    rows = [*first.rows, *(of_another(row, 7) for row in second.rows)]
    trace = TraceBuilder(rows=rows).trace()
    threads = list(trace.threads)
    threads[BACKGROUND] = replace(threads[BACKGROUND], pid="200")
    return replace(trace, threads=tuple(threads))


@pytest.mark.parametrize("accelerated", [True, False])
def test_shares_and_steps_are_those_of_one_process_alone(accelerated: bool) -> None:
    first = loop(accelerated=accelerated, kernel_us=100)
    facts = trace_facts(merged(first, loop(accelerated=accelerated, kernel_us=600)))
    alone = trace_facts(first.trace())
    assert (facts.n_steps, facts.wall_ms) == (alone.n_steps, alone.wall_ms)
    assert facts.shares == alone.shares
    assert facts.copies == alone.copies
    assert facts.kernels.n_per_step == alone.kernels.n_per_step


def test_how_many_processes_were_left_out_is_told() -> None:
    one = loop(accelerated=True, kernel_us=100)
    assert attribute(one.trace()).n_other_processes == 0
    assert attribute(merged(one, one)).n_other_processes == 1


def test_each_kernel_left_keeps_what_it_says_of_its_launch() -> None:
    one = loop(accelerated=True, kernel_us=100)
    trace = merged(one, loop(accelerated=True, kernel_us=600))
    kernels = trace.spans.of(Category.KERNEL)
    blocks = np.where(kernels.device == 1, 6.0, 1.0)
    shapes = KernelShapes(blocks_per_sm=blocks, occupancy_percent=blocks)
    left = attribute(replace(trace, kernel_shapes=shapes)).trace.kernel_shapes
    assert left is not None
    assert left.blocks_per_sm.tolist() == [1.0] * 6


def test_a_thread_of_the_same_process_is_not_left_out() -> None:
    b = loop(accelerated=False, kernel_us=100)
    for i in range(6):
        b.op(i * 1000 + 500, i * 1000 + 700, "aten::mm", BACKGROUND)
        b.fetch(i * 1000 + 720, i * 1000 + 730, thread=BACKGROUND)
    attributed = attribute(b.trace())
    assert attributed.n_other_processes == 0
    assert attributed.rows.training_thread == MAIN
    assert attributed.partition.shares().compute == pytest.approx(0.31)
