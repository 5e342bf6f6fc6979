"""Stalls that recur are told with their period; such as come at random are not."""

from __future__ import annotations

import numpy as np
import pytest

from loaderdoctor.alerts.watches import Recurrence, RecurrenceWatch, SeenStall


def stall(step: int, at_s: float, excess_ms: float = 100.0) -> SeenStall:
    return SeenStall(step=step, at_s=at_s, excess_ms=excess_ms, wait_share=1.0, gc_share=0.0)


def told(stalls: list[SeenStall]) -> list[Recurrence]:
    watch = RecurrenceWatch()
    return [found for one in stalls if (found := watch.add(one)) is not None]


@pytest.mark.parametrize("period", [3, 5, 50, 400])
def test_every_so_many_steps(period: int) -> None:
    rng = np.random.default_rng(0)
    at = np.cumsum(rng.uniform(0.05, 0.15, size=40 * period))
    (found,) = told([stall(n, float(at[n])) for n in range(period, 40 * period, period)])
    assert (found.unit, found.period) == ("steps", period)


def test_every_so_many_seconds_whatever_the_steps_take() -> None:
    rng = np.random.default_rng(0)
    steps = np.cumsum(rng.integers(80, 160, size=30))
    (found,) = told([stall(int(n), 30.0 * i) for i, n in enumerate(steps)])
    assert found.unit == "seconds"
    assert found.period == pytest.approx(30.0)


def test_small_stalls_between_do_not_hide_them() -> None:
    rng = np.random.default_rng(1)
    small = [stall(int(n), n / 10, 20.0) for n in rng.integers(1, 4000, size=60) if n % 100]
    large = [stall(n, n / 10, 400.0) for n in range(100, 4000, 100)]
    found = told(sorted([*small, *large], key=lambda s: s.step))
    assert [f.period for f in found] == [100]


@pytest.mark.parametrize("rate", [0.2, 0.02, 0.002])
def test_stalls_at_random_are_told_nothing(rate: float) -> None:
    rng = np.random.default_rng(4)
    steps = np.flatnonzero(rng.random(min(1_000_000, int(6_000 / rate))) < rate)
    assert not told([stall(int(n), n * 0.1, float(rng.exponential(100))) for n in steps])
