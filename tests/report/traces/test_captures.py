"""The Perfetto file: the profiler's own events unchanged, and tracks of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loaderdoctor.attribution import attribute
from loaderdoctor.attribution.pictures import tracks
from loaderdoctor.report.traces import TRACK_PID, Overlay, StepShares, write_perfetto_trace
from loaderdoctor.report.traces.raw_trace import row_id
from loaderdoctor.trace import read_trace
from tests.report.conftest import CASES, load, trace_path
from tests.report.traces.test_tensorboard import TRACKS

# Loops of an H100 whose kernels begin while those before them on the stream drain.
CROSSING = ("enough_workers", "item_every_step", "pinned_same_stream", "side_stream_overlap")


@pytest.mark.parametrize("case", CASES)
def test_the_profilers_events_are_unchanged(case: str, tmp_path: Path) -> None:
    target = tmp_path / "t.json.gz"
    n_events = write_perfetto_trace(trace_path(case), target, Overlay(worker_tracks=TRACKS))
    before, after = load(trace_path(case)), load(target)
    n = len(before["traceEvents"])
    pairs = list(zip(before["traceEvents"], after["traceEvents"], strict=False))
    moved = [(old, new) for old, new in pairs if new != old]
    assert all(new == old | {"tid": new["tid"]} for old, new in moved)
    assert {new["cat"] for _, new in moved} == ({"kernel", "ac2g"} if case in CROSSING else set())
    rows = {event["tid"] for event in before["traceEvents"]}
    assert rows.isdisjoint(new["tid"] for _, new in moved)
    assert after["traceEvents"][n : n + len(TRACKS)] == TRACKS
    assert n_events == len(after["traceEvents"])
    assert after["baseTimeNanoseconds"] == before["baseTimeNanoseconds"]


def test_waits_and_shares_have_a_process_of_their_own(tmp_path: Path) -> None:
    target = tmp_path / "t.json.gz"
    step = StepShares(at_us=100.0, shares={"input": 0.25, "compute": 0.75, "copy": None})
    write_perfetto_trace(
        trace_path("gpu_resident"),
        target,
        Overlay(
            exposed_waits=[(100.0, 5.0), (200.0, 7.5)],
            step_shares=[step],
            end_us=300.0,
        ),
    )
    ours = [e for e in load(target)["traceEvents"] if e["pid"] == TRACK_PID]
    waits = [e for e in ours if e["ph"] == "X"]
    assert [(e["ts"], e["dur"]) for e in waits] == [(100.0, 5.0), (200.0, 7.5)]
    first, last = (e["args"] for e in ours if e["ph"] == "C")
    assert first == {"input": 25.0, "compute": 75.0}
    assert last == {"input": 0.0, "compute": 0.0}
    assert all(isinstance(e["tid"], int) for e in ours)


def test_our_own_reader_finds_the_same_trace(tmp_path: Path) -> None:
    target = tmp_path / "t.json.gz"
    write_perfetto_trace(trace_path("gpu_resident"), target)
    before, after = read_trace(trace_path("gpu_resident")), read_trace(target)
    assert len(before.spans) == len(after.spans)
    assert (before.spans.start_ns == after.spans.start_ns).all()


def arrows_of(path: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[Any]]:
    """Tails and heads of the arrows to copies, and all events of the written file."""
    events = load(path)["traceEvents"]
    ours = [e for e in events if e.get("name") == "copy of the batch"]
    tails = {e["id"]: e for e in ours if e["ph"] == "s"}
    heads = {e["id"]: e for e in ours if e["ph"] == "f"}
    assert tails.keys() == heads.keys()
    return list(tails.values()), [heads[number] for number in tails], events


@pytest.mark.parametrize("case", ["pageable_big_copy", "side_stream_overlap", "respawn_each_epoch"])
def test_an_arrow_leads_from_each_batch_to_the_copy_that_moved_it(
    case: str, tmp_path: Path
) -> None:
    source, target = trace_path(case), tmp_path / "t.json.gz"
    overlay = Overlay.of(tracks(attribute(read_trace(source))))
    write_perfetto_trace(source, target, Overlay(copies=overlay.copies))
    tails, heads, events = arrows_of(target)
    spans = [e for e in events if e["ph"] == "X"]
    nexts = [e for e in spans if e["name"].endswith(".__next__")]
    copies = [e for e in spans if "HtoD" in e["name"]]
    n_steps = len({e["name"] for e in spans if e["name"].startswith("ProfilerStep#")})
    assert n_steps - 1 <= len(tails) <= n_steps + 1
    largest = max(e["args"]["bytes"] for e in copies)
    reached = set()
    for tail, head in zip(tails, heads, strict=True):
        (fetch,), (copy,) = around(tail, nexts), around(head, copies)
        assert copy["args"]["bytes"] == largest  # the images, not the labels
        assert copy["ts"] > fetch["ts"] + fetch["dur"]
        reached.add(copy["ts"])
    assert len(reached) == len(heads)


def around(end: dict[str, Any], spans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The spans of its row that an arrow's end lies in."""
    return [
        e
        for e in spans
        if (e["pid"], e["tid"]) == (end["pid"], end["tid"])
        and e["ts"] <= end["ts"] <= e["ts"] + e["dur"]
    ]


def test_where_nothing_is_copied_there_is_no_arrow() -> None:
    overlay = Overlay.of(tracks(attribute(read_trace(trace_path("gpu_resident")))))
    assert overlay.copies == ()


@pytest.mark.parametrize("text", ["Spans", "", "-", "--5", "²", "1_0", " 7", "9" * 5000])
def test_a_row_whose_id_is_no_number_has_none(text: str) -> None:
    """Ids of a trace are anyone's: `²` is a digit to Python, and no number."""
    assert row_id(text) is None
    assert (row_id("7"), row_id("-1")) == (7, -1)
