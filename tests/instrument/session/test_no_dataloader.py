"""What lies between some steps of a loop that makes its batches itself, told by their times."""

from __future__ import annotations

import random

import pytest

from loaderdoctor.instrument.session.no_dataloader import (
    FEWEST_PAUSED,
    MIN_STEPS,
    PAUSED_APART,
    _are_pauses,
    pauses_of,
)
from loaderdoctor.instrument.wire.measured import StackRecord

MS = 1_000_000


def loop(n: int, every: int, *, step_ms: float = 1.0, pause_ms: float = 300.0) -> list[int]:
    """Steps of about `step_ms`, each `every`th with a pause before it."""
    chance = random.Random(7)
    usual = [step_ms * chance.uniform(0.8, 1.5) for _ in range(n)]
    return [
        int((ms + (pause_ms if i % every == every - 1 else 0.0)) * MS) for i, ms in enumerate(usual)
    ]


@pytest.mark.parametrize("every", [20, 64, 400])
def test_what_comes_every_so_many_steps_is_told_with_its_time(every: int) -> None:
    step_ns = loop(1200, every)
    found = pauses_of(step_ns)
    assert found is not None
    assert found.every_steps == every
    assert found.seconds == pytest.approx(0.3, rel=0.01)
    assert found.n == sum(ns > 100 * MS for ns in step_ns[MIN_STEPS:])
    total_ms = found.usual_ms + found.seconds * 1e3 / every
    assert total_ms == pytest.approx(sum(step_ns) / len(step_ns) / MS, rel=0.1)


def test_of_one_that_was_seen_once_nobody_knows_how_often_it_comes() -> None:
    found = pauses_of(loop(150, 100))
    assert found is not None
    assert (found.n, found.every_steps) == (1, None)


@pytest.mark.parametrize(
    "step_ns",
    [
        loop(600, 10_000),  # none
        loop(600, PAUSED_APART - 1),  # so often that the profiled steps have it
        loop(600, 3),
        [900 * MS, *loop(300, 1000)],  # warming up
        loop(600, 64, pause_ms=3.0),  # steps that differ
        [random.Random(3).randrange(MS, 20 * MS) for _ in range(600)],
        loop(10, 5),
        [],
    ],
)
def test_other_loops_have_none(step_ns: list[int]) -> None:
    assert pauses_of(step_ns) is None


def test_long_steps_are_no_pauses() -> None:
    """Their samples are in backward passes as those of others; so are none of a rollout."""
    assert _are_pauses(StackRecord(n=100, n_outside=100))
    assert _are_pauses(StackRecord(n=100, n_outside=100, n_outside_backward=15))
    assert not _are_pauses(StackRecord(n=100, n_outside=100, n_outside_backward=40))
    assert not _are_pauses(StackRecord(n=100, n_outside=FEWEST_PAUSED - 1))
