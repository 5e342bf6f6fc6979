"""Which windows were measured before the loop settled at its pace."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from loaderdoctor.attribution.step import before_steady, step_facts
from loaderdoctor.instrument.wire.measured import CpuRecord
from loaderdoctor.instrument.wire.protocol import WindowDone
from tests.attribution.builders import boundary, observed, window


def windows(times_ms: Sequence[float]) -> list[WindowDone]:
    return [window("plain", [ms] * 10) for ms in times_ms]


@pytest.mark.parametrize(
    ("times_ms", "n_before"),
    [
        ((25.0, 20.0, 20.2, 19.9, 20.1), 1),
        ((25.0, 24.6, 20.2, 19.9, 20.1), 2),
        ((25.0, 20.0, 20.2), 0),  # two windows tell no spread worth having
        ((22.0, 20.0, 20.2, 19.9, 20.1), 0),  # within 15 %
        ((20.0, 25.0, 25.1, 24.9, 25.0), 0),  # slower later on: no start
        ((20.0, 25.0, 20.2, 19.9, 20.1), 0),  # one slow window in between
        ((25.0, 20.0, 27.0, 17.0, 22.0), 0),  # nothing beyond the noise
        ((40.0, 30.0, 20.2, 19.9, 20.1), 2),  # in two strides
    ],
)
def test_only_first_windows_slower_than_all_later_ones_are_of_another_pace(
    times_ms: Sequence[float], n_before: int
) -> None:
    known = windows(times_ms)
    assert before_steady(known) == known[:n_before]


def test_the_parts_of_a_short_epoch_are_no_start() -> None:
    """Two datasets joined, of which one is slow: 58 % of the step were told as 9."""
    known = windows((25.0, 25.2, 24.9, 25.1, 20.0, 20.2, 19.9))  # of 10 steps each
    assert not before_steady(known, steps_per_epoch=40)
    assert before_steady(known, steps_per_epoch=30) == known[:4]  # a whole one at that pace
    assert before_steady(known, steps_per_epoch=50) == known[:4]  # the first was not over


@pytest.mark.parametrize(("noise", "limit"), [(0.04, 0), (0.15, 6)])
def test_noise_alone_is_no_change_of_pace(noise: float, limit: int) -> None:
    found = 0
    for seed in range(100):
        rng = random.Random(seed)
        times_ms = [20.0 * (1 + rng.gauss(0, noise)) for _ in range(12)]
        found += bool(before_steady(windows(times_ms)))
    assert found <= limit  # of 100


def test_windows_in_which_other_programs_had_the_cpu_are_no_other_pace() -> None:
    def waiting(ms: float, waited_ms: float) -> WindowDone:
        cpu = CpuRecord(wall_ns=1, main_ns=1, thread_waited_ns=int(20e6 * waited_ms))
        steps_ns = (int(ms * 1e6),) * 20
        return WindowDone(
            id=1, mode="plain", status="ok", n_steps=20, host_step_ns=steps_ns, cpu=cpu
        )

    later = [waiting(20.0, 0.0), waiting(20.2, 0.1), waiting(19.9, 0.0)]
    assert not before_steady([waiting(25.0, 4.5), *later])
    assert len(before_steady([waiting(25.0, 0.1), *later])) == 1


def test_the_step_is_of_one_pace_and_keeps_the_boundaries_seen_at_both() -> None:
    first = window("plain", [25.0] * 9 + [125.0], boundary_steps=[9], boundaries=[boundary(100.0)])
    later = windows((20.0, 20.2, 19.8))
    facts = step_facts(observed(steps_per_epoch=100), later, [first])
    assert facts is not None
    assert facts.n_steps == 30
    assert facts.within_epoch_ms.n == facts.wall_ms.n == len(facts.windows_ms) == 3
    assert facts.within_epoch_ms.value == pytest.approx(20.0)
    assert facts.boundary_ms == pytest.approx(100.0)
    assert facts.wall_ms.value == pytest.approx(21.0)
    assert facts.n_iterators_created == 0  # within the steps that count
