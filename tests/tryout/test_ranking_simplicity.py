"""Of settings that are equally fast the simplest: which those are, and which is simpler."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from loaderdoctor.estimate import Estimate
from loaderdoctor.settings import Settings
from loaderdoctor.tryout import Measurement, Trial
from loaderdoctor.tryout.ranking import Ranking, equally_fast, rank, simplest
from tests.attribution.builders import window

OWN = Settings(num_workers=0, pin_memory=False)


@pytest.mark.parametrize(
    ("simple", "other"),
    [
        (Settings(num_workers=3), Settings(num_workers=2, persistent_workers=True)),
        (Settings(num_workers=2), Settings(num_workers=3)),
        (Settings(num_workers=2), Settings(num_workers=2, prefetch_factor=4)),
        (Settings(num_workers=2), Settings(background="host")),
        (Settings(num_workers=2, prefetch_factor=2), Settings(num_workers=2, prefetch_factor=8)),
    ],
)
def test_fewest_differences_then_fewest_workers_then_fewest_batches_in_flight(
    simple: Settings, other: Settings
) -> None:
    assert simplest([other, simple], OWN) == 1
    assert simplest([simple, other], OWN) == 0


def around(value: float, margin: float) -> Estimate:
    return Estimate.around(value, margin, n=5)


def test_what_is_slower_by_more_than_noise_and_a_twentieth_is_not_equally_fast() -> None:
    slower = {1: around(0.2, 0.1), 2: around(0.8, 0.1), 3: around(0.6, 0.1)}
    assert equally_fast(10.0, slower, wider=1.5) == {1, 3}


def test_noise_that_explains_a_difference_makes_none_of_it() -> None:
    slower = {1: around(0.2, 1.0), 2: around(1.9, 1.0), 3: around(3.0, 0.1)}
    assert equally_fast(10.0, slower, wider=1.5) == {1, 2}


def test_without_any_interval_all_are_equally_fast() -> None:
    assert equally_fast(10.0, {1: around(5.0, float("inf"))}, wider=1.5) == {1}


def ranked(*step_ms: Sequence[float]) -> Ranking:
    """Of the loop as it is, then one, two, … workers: each round's steps, milliseconds."""
    trials = [
        Trial(
            index=n,
            settings=Settings(num_workers=n) if n else Settings(),
            measurements=[
                Measurement(phase="rank", round=i, window=window("trial", [ms] * 10), wall_s=1.0)
                for i, ms in enumerate(of_one, start=1)
            ],
        )
        for n, of_one in enumerate(step_ms)
    ]
    return rank(trials, own=OWN, steps_per_epoch=None)


def test_what_hardly_gains_does_not_stand_for_what_does() -> None:
    """However much noise allows: confirmed, it would gain nothing, and nothing be recommended."""
    own, one, two = [10.0, 11.0, 9.0], [9.9, 8.9, 11.0], [8.0, 8.8, 7.2]
    noisy = ranked(own, one, two)
    assert noisy.tied_with and noisy.candidate == 2
    # One that gains much of it is recommended, as the simpler.
    assert ranked(own, [9.0, 8.1, 9.8], two).candidate == 1
