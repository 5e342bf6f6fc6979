"""Estimates: intervals that cover, differences that cancel drift."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaderdoctor.estimate import (
    binomial_interval,
    mean,
    paired_difference,
    t95,
)


def test_interval_of_known_samples_matches_the_textbook() -> None:
    found = mean([10.0, 12.0, 14.0])
    assert found.value == 12.0
    # s = 2, t(2) = 4.303: 4.303 * 2 / sqrt(3)
    assert found.margin == pytest.approx(4.303 * 2 / math.sqrt(3))


def test_one_sample_has_no_interval() -> None:
    found = mean([3.0])
    assert not found.bounded
    assert found.low == -math.inf


def test_no_samples_is_an_error() -> None:
    with pytest.raises(ValueError, match="no samples"):
        mean([])


def test_t_intervals_cover_the_true_mean_about_95_percent_of_the_time() -> None:
    rng = random.Random(7)
    trials = 2000
    covered = 0
    for _ in range(trials):
        found = mean([rng.gauss(5.0, 1.0) for _ in range(4)])
        covered += found.low <= 5.0 <= found.high
    assert 0.93 < covered / trials < 0.97


def test_pairing_cancels_drift_that_would_hide_the_difference() -> None:
    drift = [0.0, 5.0, 10.0, 15.0]
    plain = [20.0 + d + e for d, e in zip(drift, (0.1, -0.1, 0.0, 0.1), strict=True)]
    other = [18.0 + d for d in drift]
    paired = paired_difference(plain, other)
    assert paired.low > 1.5
    assert mean(plain).low < mean(other).high


def test_pairs_of_unequal_length_are_refused() -> None:
    with pytest.raises(ValueError, match="unpaired"):
        paired_difference([1.0], [1.0, 2.0])


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=40))
def test_the_value_lies_within_its_interval(samples: list[float]) -> None:
    found = mean(samples)
    assert found.low <= found.value <= found.high
    assert found.n == len(samples)


def test_quantiles_fall_towards_the_normal_one() -> None:
    values = [t95(n) for n in range(1, 60)]
    assert values == sorted(values, reverse=True)
    assert values[-1] == pytest.approx(1.96)


def test_a_difference_without_noise_is_exact() -> None:
    found = paired_difference([2.0, 2.0], [1.0, 1.0])
    assert (found.low, found.value, found.high) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("hits", "n", "low", "high"),
    # The usual tables of exact binomial limits (Clopper and Pearson 1934, 95 %).
    [(0, 10, 0.0, 0.3085), (1, 10, 0.0025, 0.4450), (5, 10, 0.1871, 0.8129), (10, 10, 0.6915, 1.0)],
)
def test_exact_binomial_limits_are_those_of_the_tables(
    hits: int, n: int, low: float, high: float
) -> None:
    assert binomial_interval(hits, n) == pytest.approx((low, high), abs=5e-5)


def test_a_binomial_interval_holds_the_true_share_nineteen_times_in_twenty() -> None:
    chance = random.Random(4)
    held = 0
    for _ in range(1000):
        share, n = chance.random(), chance.randint(1, 60)
        hits = sum(chance.random() < share for _ in range(n))
        low, high = binomial_interval(hits, n)
        held += low <= share <= high
    assert held >= 940  # exact intervals are wider than they need be, never narrower


def test_no_looks_say_nothing_and_impossible_counts_are_refused() -> None:
    assert binomial_interval(0, 0) == (0.0, 1.0)
    for hits, n in ((3, 2), (-1, 5)):
        with pytest.raises(ValueError, match="of"):
            binomial_interval(hits, n)
