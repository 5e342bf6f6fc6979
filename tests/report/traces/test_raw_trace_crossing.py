"""Spans that cross within a row get rows of their own, and nothing else changes."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import combinations
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from loaderdoctor.report.traces.raw_trace import FIRST_TID, without_crossing

Event = dict[str, Any]


def rewritten(events: list[Event]) -> list[Event]:
    return [json.loads(e) for e in without_crossing([json.dumps(e).encode() for e in events])]


def span(ts: float, dur: float, tid: Any = 7, **more: Any) -> Event:
    return {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": tid, "ts": ts, "dur": dur} | {
        "args": {"stream": 7}, **more
    }  # fmt: skip


def cross(one: Event, two: Event) -> bool:
    a, b = sorted((one, two), key=lambda e: (e["ts"], -e["dur"]))
    a_end, b_end = round((a["ts"] + a["dur"]) * 1000), round((b["ts"] + b["dur"]) * 1000)
    return bool(round(b["ts"] * 1000) < a_end < b_end)


@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(0, 20), st.sampled_from([7, 8, "s"])), max_size=14
    )
)
def test_no_row_holds_spans_that_cross_and_only_rows_changed(
    spans: list[tuple[int, int, Any]],
) -> None:
    before = [span(ts, dur, tid) for ts, dur, tid in spans]
    after = rewritten(before)
    assert [e | {"tid": 0} for e in after[: len(before)]] == [e | {"tid": 0} for e in before]
    rows = defaultdict(list)
    for event in after[: len(before)]:
        rows[event["tid"]].append(event)
    assert not any(cross(a, b) for row in rows.values() for a, b in combinations(row, 2))
    assert {e["tid"] for e in after[len(before) :]} == {t for t in rows if t not in (7, 8, "s")}
    if not any(a["tid"] == b["tid"] and cross(a, b) for a, b in combinations(before, 2)):
        assert after == before


def test_an_arrow_follows_the_span_it_leads_to() -> None:
    arrow = {"ph": "f", "bp": "e", "cat": "ac2g", "name": "ac2g", "id": 5, "pid": 0, "tid": 7}
    first, second = span(10.0, 5.0), span(14.9, 5.0)
    name = {"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "args": {"name": "stream 7 "}}
    order = {"ph": "M", "name": "thread_sort_index", "pid": 0, "tid": 7, "args": {"sort_index": 3}}
    after = rewritten([name, order, first, second, arrow | {"ts": 10.0}, arrow | {"ts": 14.9}])
    assert [e["tid"] for e in after[2:6]] == [7, FIRST_TID, 7, FIRST_TID]
    assert after[6]["args"] == {"name": "stream 7, overlapping (2)"}
    assert after[7]["args"] == {"sort_index": 3}


def test_events_it_cannot_read_stay_as_they_are() -> None:
    odd = [
        b'{"ph": "X", "pid": [1], "tid": 7, "ts": 10.0, "dur": 9.0}',
        b'{"ph": "X", "pid": 0, "tid": 7, "ts": "soon", "dur": 9.0}',
        b'{"ph": "X", "pid": 0, "tid": 7, "ts": 1e999, "dur": 9.0}',
        b'{"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "args": []}',
        b"7",
    ]
    crossing = [json.dumps(e).encode() for e in (span(10.0, 5.0), span(14.0, 5.0))]
    after = list(without_crossing([*odd, *crossing]))
    assert after[:6] == [*odd, crossing[0]]
    assert json.loads(after[6]) == span(14.0, 5.0, FIRST_TID)
