"""Worker lanes in a real profile: aligned, disjoint, and without effect on any number."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from loaderdoctor.instrument.wire.worker_log import WorkerLog, rows_of
from loaderdoctor.instrument.wire.worker_records import read
from loaderdoctor.instrument.workers import worker
from loaderdoctor.report.traces.worker_tracks import CATEGORY, FIRST_OWN_TID, track_events
from loaderdoctor.trace import read_trace
from loaderdoctor.trace.columns import ClockMap, Trace, calibrate
from tests.instrument import worker_cases as cases

N_STEPS = 12
PREFETCHED = 4  # 2 workers, 2 batches each


@dataclass(frozen=True)
class Recorded:
    path: Path
    trace: Trace
    log: WorkerLog
    clock: ClockMap
    tracks: list[dict[str, Any]]


def record(folder: Path, n_workers: int) -> Recorded:
    """A profiled loop whose recording began one epoch before the profile."""
    worker.install(folder / "records")
    marks: list[tuple[str, int]] = []
    try:
        source = cases.loader(
            cases.Sleeping(n=4 * N_STEPS, sleep_s=0.002),
            num_workers=n_workers,
            persistent_workers=n_workers > 0,
        )
        for _ in source:
            pass
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            iterator = iter(source)
            for step in range(N_STEPS):
                name = f"ProfilerStep#{step}"
                marks.append((name, time.perf_counter_ns()))
                with record_function(name):
                    batch = next(iterator)
                    torch.mm(batch, batch.t())
    finally:
        worker.remove()
    path = folder / "trace.json"
    profiler.export_chrome_trace(str(path))
    trace, log = read_trace(path), whole_log(folder / "records")
    clock = calibrate(trace, marks)
    return Recorded(path, trace, log, clock, track_events(log, clock, trace))


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return record(tmp_path_factory.mktemp("two"), 2)


@pytest.fixture(scope="module")
def no_workers(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return record(tmp_path_factory.mktemp("none"), 0)


def whole_log(records: Path) -> WorkerLog:
    """The records once they are complete: idle workers write out their last ones within moments."""
    end = time.monotonic() + 20.0
    while True:
        log = read(records)
        if np.isin(log.deliveries.key, log.batches.key).all() or time.monotonic() > end:
            return log
        time.sleep(0.05)


def next_spans(trace: Trace) -> Any:
    numbers = [i for i, name in enumerate(trace.names) if name.endswith(".__next__")]
    return trace.spans.where(np.isin(trace.spans.name, numbers))


def test_every_batch_is_made_before_the_next_that_returns_it_ends(two_workers: Recorded) -> None:
    nexts, log = next_spans(two_workers.trace), two_workers.log
    assert len(nexts) == N_STEPS
    profiled = log.deliveries.where(log.deliveries.epoch == 1)
    made = log.batches.where(rows_of(profiled.key, log.batches.key))
    assert profiled.idx.tolist() == list(range(N_STEPS))
    # Batch i is what the i-th __next__ of the trace returned.
    assert (two_workers.clock.to_trace(made.end_ns) < nexts.end_ns).all()
    assert (two_workers.clock.to_trace(made.send_ns) < nexts.end_ns).all()
    # The call our own hook saw lies within the span torch recorded around it.
    slack = 200_000
    assert (two_workers.clock.to_trace(profiled.start_ns) > nexts.start_ns - slack).all()
    assert (two_workers.clock.to_trace(profiled.end_ns) < nexts.end_ns + slack).all()


def test_lanes_have_integer_rows_names_and_their_own_category(two_workers: Recorded) -> None:
    names = [e["args"]["name"] for e in two_workers.tracks if e["name"] == "process_name"]
    workers = [p.worker for p in two_workers.log.processes if p.role == "worker"]
    assert sorted(names) == sorted(f"DataLoader worker {w}" for w in workers)
    for event in two_workers.tracks:
        assert type(event["pid"]) is int
        assert type(event["tid"]) is int
        assert event["name"]
        if event["ph"] == "X":
            assert event["cat"] == CATEGORY
            assert event["dur"] > 0
    assert {e["name"] for e in two_workers.tracks if e["ph"] == "X"} == {
        "fetch",
        "collate",
        "idle",
        "queue put",
    }
    assert json.loads(json.dumps(two_workers.tracks)) == two_workers.tracks


@pytest.mark.parametrize("which", ["two_workers", "no_workers"])
def test_spans_of_a_row_are_disjoint_and_within_the_trace(
    which: str, request: pytest.FixtureRequest
) -> None:
    recorded: Recorded = request.getfixturevalue(which)
    spans = recorded.trace.spans
    rows: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in recorded.tracks:
        if event["ph"] == "X":
            start = round((event["ts"] - recorded.trace.origin_us) * 1000)
            end = start + round(event["dur"] * 1000)
            assert spans.start_ns.min() - 1 <= start < end <= spans.end_ns.max() + 1
            rows.setdefault((event["pid"], event["tid"]), []).append((start, end))
    assert rows
    for row in rows.values():
        row.sort()
        assert all(a[1] <= b[0] + 1 for a, b in pairwise(row))


@pytest.mark.parametrize("which", ["two_workers", "no_workers"])
def test_an_arrow_leads_from_every_batch_to_the_next_that_returned_it(
    which: str, request: pytest.FixtureRequest
) -> None:
    recorded: Recorded = request.getfixturevalue(which)
    tails = {e["id"]: e for e in recorded.tracks if e["ph"] == "s"}
    heads = {e["id"]: e for e in recorded.tracks if e["ph"] == "f"}
    assert tails.keys() == heads.keys()
    nexts = next_spans(recorded.trace)
    # A batch made before the profile began has no span; so many may lie ready in the queue.
    assert N_STEPS - PREFETCHED <= len(heads) <= N_STEPS
    into_next = []  # Perfetto binds an arrow to what last began on the thread
    for number, head in heads.items():
        assert tails[number]["ts"] < head["ts"]
        # Within one of them; a file's microseconds are good to a nanosecond.
        at_ns = round((head["ts"] - recorded.trace.origin_us) * 1000)
        (row,) = np.flatnonzero((nexts.start_ns - 2 < at_ns) & (at_ns < nexts.end_ns + 2))
        same = recorded.trace.spans.thread == nexts.thread[row]
        begins = recorded.trace.spans.start_ns[same]
        into_next.append(begins[begins <= at_ns].max() == nexts.start_ns[row])
        thread = recorded.trace.threads[int(nexts.thread[0])]
        assert (str(head["pid"]), str(head["tid"])) == (thread.pid, thread.tid)
    # Not where the batch came after another worker's, or was made within the call itself.
    assert any(into_next) or which == "no_workers"


def test_at_no_workers_the_lane_belongs_to_the_training_process(no_workers: Recorded) -> None:
    spans = [e for e in no_workers.tracks if e["ph"] == "X"]
    assert {e["name"] for e in spans} == {"fetch", "collate"}
    assert {e["tid"] for e in spans} == {FIRST_OWN_TID}
    assert len(spans) == 2 * N_STEPS
    assert not [e for e in no_workers.tracks if e["name"] == "process_name"]


def test_a_trace_with_lanes_reads_the_same_but_for_the_lanes(two_workers: Recorded) -> None:
    document = json.loads(two_workers.path.read_text())
    document["traceEvents"] += two_workers.tracks
    with_tracks = two_workers.path.with_name("lanes.json")
    with_tracks.write_text(json.dumps(document))
    trace = read_trace(with_tracks)
    ours = [i for i, t in enumerate(trace.threads) if (t.process_name or "").startswith("DataLo")]
    kept = trace.spans.where(~np.isin(trace.spans.thread, ours))
    assert len(kept) == len(two_workers.trace.spans)
    assert (kept.start_ns == two_workers.trace.spans.start_ns).all()
    assert trace.n_dropped_events == two_workers.trace.n_dropped_events
