"""Of settings that are equally fast the simplest: which those are, and which is simpler."""

from __future__ import annotations

import pytest

from loaderdoctor.estimate import Estimate
from loaderdoctor.settings import Settings
from loaderdoctor.tryout.simplicity import equally_fast, simplest

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
