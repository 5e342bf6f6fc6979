"""The clock map: one offset, robust to late marks, exactly invertible."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaderdoctor.errors import TraceError
from loaderdoctor.trace.columns import Category, Spans, Thread, Trace, calibrate


def trace_of(spans: list[tuple[str, int]]) -> Trace:
    """A trace with annotations of these names and starts, 10 ns long."""
    spans = sorted(spans, key=lambda span: span[1])
    names = tuple(sorted({name for name, _ in spans}))
    n = len(spans)
    starts = np.array([start for _, start in spans], dtype=np.int64)
    absent = np.full(n, -1, dtype=np.int32)
    return Trace(
        source=Path("trace.json"),
        spans=Spans(
            start_ns=starts,
            end_ns=starts + 10,
            category=np.full(n, Category.USER_ANNOTATION, dtype=np.int8),
            name=np.array([names.index(name) for name, _ in spans], dtype=np.int32),
            thread=np.zeros(n, dtype=np.int32),
            correlation=absent.astype(np.int64),
            external_id=absent.astype(np.int64),
            device=absent,
            stream=absent,
            bytes=absent.astype(np.int64),
        ),
        names=names,
        threads=(Thread(pid="1", tid="1"),),
        devices=(),
        origin_us=0.0,
        base_time_ns=0,
        rank=None,
        n_ranks=None,
        n_dropped_events=0,
    )


@given(
    offset=st.integers(-(10**18), 10**18),
    lags=st.lists(st.integers(0, 2000), min_size=5, max_size=30),
)
def test_the_offset_is_found_among_those_of_the_marks(offset: int, lags: list[int]) -> None:
    """A mark is noted just before its span opens, so spans lag behind by a little."""
    marks = [(f"ProfilerStep#{i}", i * 1_000_000) for i in range(len(lags))]
    spans = [(name, at + offset + lag) for (name, at), lag in zip(marks, lags, strict=True)]
    clock = calibrate(trace_of(spans), marks)
    assert offset + min(lags) <= clock.offset_ns <= offset + max(lags)


def test_one_late_mark_moves_nothing() -> None:
    marks = [(f"ProfilerStep#{i}", i * 1000) for i in range(9)]
    spans = [(name, at + 500) for name, at in marks]
    spans[4] = (spans[4][0], spans[4][1] + 40_000)
    clock = calibrate(trace_of(spans), marks)
    assert clock.offset_ns == 500


def test_spans_of_one_name_are_paired_in_order_or_not_at_all() -> None:
    spans = [("step", 1500), ("step", 2500), ("other", 3500), ("twice", 1), ("twice", 2)]
    marks = [("step", 2000), ("step", 1000), ("other", 3000), ("twice", 7)]
    clock = calibrate(trace_of(spans), marks)
    assert clock.offset_ns == 500


def test_marks_that_the_trace_lacks_are_an_error() -> None:
    with pytest.raises(TraceError, match="none of the 1 clock marks"):
        calibrate(trace_of([("a", 1)]), [("b", 1)])
