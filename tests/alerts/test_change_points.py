"""Changes of a level are told soon and once; noise whose level stays is not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from loaderdoctor.alerts.change_points import DriftWatch, Effect, LevelWatch

PACE = Effect(share=0.10, least=0.0)


def correlated(rng: np.random.Generator, n: int) -> np.ndarray:
    """Neighbours are alike over some hundred steps; its standard deviation is 1."""
    steps, at = np.empty(n), 0.0
    for i, more in enumerate(rng.normal(size=n).tolist()):
        at = 0.99 * at + 0.141 * more
        steps[i] = at
    return steps


def blocks(steps: np.ndarray, n: int = 10) -> list[float]:
    return [float(x) for x in steps[: steps.size // n * n].reshape(-1, n).mean(axis=1)]


def changes(values: list[float], effect: Effect = PACE) -> list[tuple[int, int]]:
    """(block that told it, block from which on) of each change."""
    watch = LevelWatch(effect)
    found = []
    for i, value in enumerate(values):
        change = watch.add(value)
        if change is not None:
            found.append((i, change.at))
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("noise", ["gauss", "lognormal", "pareto", "correlated", "bimodal"])
def test_stationary_noise_is_told_nothing(noise: str, seed: int) -> None:
    rng, n = np.random.default_rng(seed), 100_000
    made: dict[str, Callable[[], np.ndarray]] = {
        "gauss": lambda: 1 + 0.05 * rng.normal(size=n),
        "lognormal": lambda: np.exp(0.5 * rng.normal(size=n)),
        "pareto": lambda: 1 + 0.2 * rng.pareto(1.5, size=n),
        "bimodal": lambda: np.where(rng.random(n) < 0.05, 20.0, 1.0),
        "correlated": lambda: np.exp(0.3 * correlated(rng, n)),
    }
    steps = made[noise]()
    assert not changes(blocks(steps))


@pytest.mark.parametrize("factor", [0.5, 1.5, 3.0])
def test_a_change_is_told_within_two_hundred_steps_and_dated_to_its_block(factor: float) -> None:
    rng = np.random.default_rng(1)
    steps = 1 + 0.05 * rng.normal(size=4000)
    steps[1000:] *= factor
    ((told, since),) = changes(blocks(steps))
    assert told * 10 <= 1200
    assert 96 <= since <= 104


def test_a_change_too_small_to_matter_is_not_told() -> None:
    rng = np.random.default_rng(1)
    steps = 1 + 0.01 * rng.normal(size=20_000)
    steps[10_000:] *= 1.06
    assert not changes(blocks(steps))


def test_excursions_that_return_are_told_no_more_once_they_are_known() -> None:
    rng = np.random.default_rng(2)
    steps = 1 + 0.02 * rng.normal(size=60_000)
    for start in range(3000, 60_000, 3000):
        steps[start : start + 300] *= 2
    assert len(changes(blocks(steps))) <= 4  # there and back, twice at most


def test_a_series_of_zeros_that_stays_zero_is_told_nothing() -> None:
    watch = LevelWatch(Effect(share=0.0, least=0.08), floor_share=0.0, floor=0.01)
    assert all(watch.add(0.0) is None for _ in range(2000))


def test_a_level_that_creeps_is_told_although_its_reference_creeps_too() -> None:
    rng = np.random.default_rng(3)
    ramp = np.linspace(1.0, 1.6, 6000)
    watch = DriftWatch(Effect(share=0.15, least=0.0))
    values = [1 + 0.03 * float(x) for x in rng.normal(size=3000)]
    values += [float(r * (1 + 0.03 * x)) for r, x in zip(ramp, rng.normal(size=6000), strict=True)]
    told = [i for i, value in enumerate(values) if watch.add(value) is not None]
    assert told and told[0] > 3000
