"""Which spans of a thread lie in no other, whatever their order and their ties."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loaderdoctor.attribution.trace_rows import outermost

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
