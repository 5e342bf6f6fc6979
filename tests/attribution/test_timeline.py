"""Steps as pictures: what each row shows is what was recorded, on one clock."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from loaderdoctor.attribution import attribute
from loaderdoctor.attribution.timeline import MAX_SPANS, step_timelines
from loaderdoctor.facts.step import StepTimeline, TimelineRow
from loaderdoctor.trace import read_trace
from tests.attribution.build import BACKGROUND, PIN, TraceBuilder
from tests.attribution.recorded import as_one_step, recorded
from tests.instrument import worker_cases as cases

TRACES = sorted((Path(__file__).parents[2] / "traces").glob("*.pt.trace.json.gz"))


def row(step: StepTimeline, name: str) -> TimelineRow:
    return next(r for r in step.rows if r.name == name)


def spans(step: StepTimeline, name: str, doing: str) -> list[tuple[float, float]]:
    """(start, length) in milliseconds, rounded to nanoseconds."""
    return [
        (round(start, 6), round(length, 6))
        for strip in row(step, name).strips
        if strip.doing == doing
        for start, length, _ in strip.spans
    ]


@pytest.mark.parametrize("path", TRACES, ids=lambda p: p.name.split(".")[0])
def test_the_shares_of_a_step_fill_it_and_no_row_leaves_it(path: Path) -> None:
    attributed = attribute(read_trace(path))
    steps = step_timelines(attributed)
    assert [s.which for s in steps] == ["typical", "slowest"]
    assert steps[0].wall_ms <= steps[1].wall_ms
    for step in steps:
        counted = sum(strip.total_ms for strip in row(step, "counted as").strips)
        assert counted == pytest.approx(step.wall_ms)
        for shown in step.rows:
            drawn = sorted(s for strip in shown.strips for s in strip.spans)
            assert all(at >= 0 and at + length <= step.wall_ms + 1e-9 for at, length, _ in drawn)
            for (at, length, _), (following, _, _) in pairwise(drawn):
                assert at + length <= following + 1e-9  # a row does one thing at a time


def test_rows_show_who_did_what_when() -> None:
    built = TraceBuilder()
    for i in range(4):
        t = 10_000.0 * i
        built.step(i, t, t + 9_990)
        built.fetch(t + 1_000, t + 4_000)
        built.fetch(t + 500, t + 3_500, thread=BACKGROUND)
        built.call(t + 3_600, t + 3_800, "cudaHostAlloc", thread=PIN)
        built.copy(t + 4_100, t + 4_200, t + 4_200, t + 5_000, synced=t + 5_100)
        built.kernel(t + 5_200, t + 5_300, t + 8_000)
        built.call(t + 8_100, t + 9_000, "cudaStreamSynchronize")
    step = step_timelines(attribute(built.trace()))[0]
    # A step lasts from the end of one step's last kernel (8 ms) to the next one's.
    assert step.wall_ms == pytest.approx(10.0)
    assert spans(step, "kernels", "compute") == [(7.3, 2.7)]
    assert spans(step, "copies to the device", "copy") == [(6.2, 0.8)]
    assert (3.0, 3.0) in spans(step, "training thread", "input")
    assert (6.1, 1.0) in spans(step, "training thread", "copy")  # the call and its own sync
    assert spans(step, "training thread", "sync") == [(0.1, 0.9)]
    assert spans(step, "other threads", "fetch") == [(2.5, 3.0)]
    assert spans(step, "other threads", "pin") == [(5.6, 0.2)]


def test_without_an_accelerator_ops_are_compute() -> None:
    built = TraceBuilder()
    for i in range(3):
        t = 10_000.0 * i
        built.step(i, t, t + 10_000)
        built.fetch(t, t + 4_000)
        built.op(t + 5_000, t + 9_000)
    step = step_timelines(attribute(built.trace()))[0]
    assert spans(step, "training thread", "input") == [(0.0, 4.0)]
    assert spans(step, "training thread", "compute") == [(5.0, 4.0)]
    assert [r.name for r in step.rows] == ["counted as", "training thread"]


def test_the_slowest_step_is_the_longest_and_the_typical_one_near_the_median() -> None:
    built = TraceBuilder()
    at = 0.0
    for i, length in enumerate((9_000, 10_000, 10_050, 50_000, 10_000)):
        built.step(i, at, at + length)
        built.op(at, at + length)
        at += length
    typical, slowest = step_timelines(attribute(built.trace()))
    assert (typical.number, slowest.number) == (2, 4)
    assert slowest.wall_ms == pytest.approx(50.0)


def test_a_trace_without_step_marks_has_no_pictures() -> None:
    built = TraceBuilder()
    built.op(0, 10)
    assert step_timelines(attribute(built.trace())) == ()


def test_spans_too_many_to_draw_are_joined_and_keep_their_total() -> None:
    built = TraceBuilder()
    n = 3 * MAX_SPANS
    for i in range(2):
        t = 100_000.0 * i
        built.step(i, t, t + 100_000)
        for k in range(n):
            built.op(t + k * 20, t + k * 20 + 5)
    step = step_timelines(attribute(built.trace()))[0]
    (strip,) = (s for s in row(step, "training thread").strips if s.doing == "compute")
    assert len(strip.spans) == MAX_SPANS
    assert strip.total_ms == pytest.approx(n * 5 / 1000)
    assert all(0 < covered <= 1 for _, _, covered in strip.spans)


def test_workers_have_rows_at_the_time_they_made_their_batches(tmp_path: Path) -> None:
    loader = cases.loader(cases.Sleeping(n=32, sleep_s=0.005), num_workers=2)
    log, start_ns, end_ns = recorded(tmp_path, [loader])
    step = as_one_step(log, start_ns, end_ns)
    assert step.which == "only"
    made_ms = 0.0
    for name in ("worker 0", "worker 1"):
        fetched = sum(s.total_ms for s in row(step, name).strips if s.doing == "fetch")
        collated = sum(s.total_ms for s in row(step, name).strips if s.doing == "collate")
        assert fetched > 2 * collated  # 80 ms of sleep; a first collating may be held up for 20
        made_ms += fetched + collated
    batches = log.batches
    mine = batches.worker >= 0
    recorded_ms = float(np.sum((batches.end_ns - batches.begin_ns)[mine])) / 1e6
    assert made_ms == pytest.approx(recorded_ms)


def test_workers_started_anew_share_a_row_and_another_loaders_have_their_own(
    tmp_path: Path,
) -> None:
    train = cases.loader(cases.Sleeping(n=8, sleep_s=0.002), num_workers=1)
    other = cases.loader(cases.Sleeping(n=8, sleep_s=0.002), num_workers=1)
    names = {id(train): "train.py:10", id(other): "train.py:20"}
    epochs = (train, other, train)
    step = as_one_step(*recorded(tmp_path, epochs, lambda loader: names.get(id(loader))))
    drawn = [r for r in step.rows if r.name.startswith("worker")]
    assert [r.name for r in drawn] == [
        "worker 0 of train.py:10 (started 2 times)",
        "worker 0 of train.py:20",
    ]
    made = [sum(len(s.spans) for s in r.strips if s.doing == "fetch") for r in drawn]
    assert made == [4, 2]


def test_a_trials_workers_that_were_ended_by_force_have_no_rows(tmp_path: Path) -> None:
    loader = cases.loader(cases.Sleeping(n=32, sleep_s=0.002), num_workers=2)
    log, start_ns, end_ns = recorded(tmp_path, [loader])
    worker = next(p for p in log.processes if p.role == "worker")
    killed = replace(worker, pid=2**22, worker=2, serial=99, started_ns=start_ns - 1, exit_ns=None)
    step = as_one_step(replace(log, processes=(*log.processes, killed)), start_ns, end_ns)
    drawn = [r.name for r in step.rows if r.name.startswith("worker")]
    assert drawn == ["worker 0", "worker 1"]
