"""Marks and waits become steps, sums, blocks and stalls; no time is lost or made."""

from __future__ import annotations

import numpy as np

from loaderdoctor.instrument.recording.stretch import (
    BESIDES,
    GAP,
    STARTS,
    Blocks,
    StepMarks,
    stalls_of,
    steps_of,
    sums_of,
)

MS = 1_000_000


def test_waits_fall_into_the_step_they_begin_in_and_open_ones_are_left_out() -> None:
    at = [0, 10 * MS, 20 * MS, 30 * MS]
    waits = [(0, 3 * MS), (10 * MS, 11 * MS), (12 * MS, 13 * MS), (20 * MS, 29 * MS)]
    steps = steps_of(at, {}, waits, n_steps=43)
    assert steps.wait_ns is not None
    assert steps.wait_ns.tolist() == [3 * MS, 2 * MS, 9 * MS]
    assert steps.number.tolist() == [41, 42, 43]


def test_a_gap_counts_as_no_step() -> None:
    steps = steps_of([0, 1, 2, 3], {1: GAP}, [], n_steps=10)
    assert steps.number.tolist() == [9, 9, 10]


def test_a_mark_whose_fetch_fails_begins_no_step() -> None:
    marks = StepMarks()
    for now in range(4):
        marks.add(now)
        if now == 1:
            marks.failed()
    steps = steps_of(*marks.take(), [], n_steps=10)
    assert steps.flags.tolist() == [0, GAP, 0]
    assert marks.left == 0  # somebody has to look


def test_sums_hold_all_the_time_once() -> None:
    rng = np.random.default_rng(0)
    at = [0, *np.cumsum(rng.integers(1 * MS, 9 * MS, size=200)).tolist()]
    flags = {int(i): int(rng.choice([STARTS, GAP, BESIDES])) for i in rng.integers(0, 200, 40)}
    waits = [(a, a + MS // 2) for a in at[:-1]]
    sums = sums_of(steps_of(at, flags, waits, 200), typical_ns=4 * MS)
    total = sums.steps_ns + sums.starts_ns + sums.gaps_ns + sums.besides_ns
    assert total == at[-1]
    assert sums.n_steps + sums.n_gaps == 200


def test_a_step_that_saves_is_charged_a_usual_step_and_the_rest_to_saving() -> None:
    steps = steps_of([0, 10 * MS, 110 * MS], {1: BESIDES}, [], 2)
    sums = sums_of(steps, typical_ns=10 * MS)
    assert (sums.steps_ns, sums.besides_ns) == (20 * MS, 90 * MS)


def test_a_stall_tells_its_wait_and_its_garbage_collection() -> None:
    at = [i * 10 * MS for i in range(11)]
    at += [at[-1] + 300 * MS, at[-1] + 310 * MS]
    waits = [(at[10], at[10] + 250 * MS)]
    (stall,) = stalls_of(
        steps_of(at, {}, waits, 12), 10.0 * MS, [(at[10] + 5 * MS, at[10] + 45 * MS)]
    )
    assert (stall.step, stall.took_ns) == (11, 300 * MS)
    assert (stall.wait_ns, stall.gc_ns) == (250 * MS, 40 * MS)


def test_blocks_go_on_over_stretches_and_leave_out_what_is_no_plain_step() -> None:
    blocks = Blocks(4)
    first = steps_of([i * MS for i in range(4)], {}, [], 3)
    assert blocks.add(first) == ()
    more = steps_of([3 * MS, 4 * MS, 90 * MS, 91 * MS, 92 * MS], {1: STARTS}, [], 7)
    (block,) = blocks.add(more)
    assert (block.n, block.total_ns, block.longest_ns) == (4, 4 * MS, MS)


def test_no_marks_are_no_steps() -> None:
    for at in ([], [5]):
        steps = steps_of(at, {}, [(1, 2)], 0)
        assert sums_of(steps, 0.0).n_steps == 0
        assert Blocks(4).add(steps) == ()


def test_marks_that_are_taken_leave_the_open_step_with_what_it_holds() -> None:
    marks = StepMarks()
    marks.add(1)
    marks.add(2)
    marks.exhausted(0)
    at, flags = marks.take()
    assert at == [1, 2] and marks.at == [2] and marks.outside
    marks.add(9)
    assert not marks.outside
    marks.add(12)
    _, flags = marks.take()
    assert flags == {0: GAP, 1: STARTS}
