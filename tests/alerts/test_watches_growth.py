"""Memory that will be full is told with the time left; what wanders, fills and stops is not."""

from __future__ import annotations

import numpy as np
import pytest

from loaderdoctor.alerts.watches import Growth, GrowthWatch

GB = 1_000_000_000


def told(used: np.ndarray, *, every_s: float = 5.0, limit: int = 64 * GB) -> list[Growth]:
    watch = GrowthWatch()
    found = []
    for i, n in enumerate(used):
        one = watch.add(i * every_s, int(n), max(0, limit - int(n)))
        if one is not None:
            found.append(one)
    return found


def test_steady_growth_is_told_and_again_when_half_of_the_time_is_gone() -> None:
    found = told(np.linspace(4 * GB, 60 * GB, 4000))
    assert 2 <= len(found) <= 8
    first = found[0]
    assert first.bytes_per_h == pytest.approx(56 * GB / (4000 * 5 / 3600), rel=0.1)
    assert first.full_in_h == pytest.approx((64 * GB - first.now_bytes) / first.bytes_per_h)


@pytest.mark.parametrize("seed", range(5))
def test_memory_that_wanders_is_not(seed: int) -> None:
    rng = np.random.default_rng(seed)
    near = np.zeros(5000)
    for i in range(1, near.size):
        near[i] = 0.95 * near[i - 1] + rng.normal()
    assert not told(8 * GB + 0.1 * GB * near)


def test_a_cache_that_fills_and_stops_is_not() -> None:
    n = np.arange(5000)
    assert not told(4 * GB + 2 * GB * (1 - np.exp(-n / 6)))


def test_growth_that_takes_weeks_is_not() -> None:
    assert not told(np.linspace(4 * GB, 4.2 * GB, 4000))
