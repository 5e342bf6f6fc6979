"""Steadied intervals: honest coverage with few samples, and no blindness to a noisy trial."""

from __future__ import annotations

import math
import random

import pytest

from loaderdoctor.estimate import mean
from loaderdoctor.tryout.comparing import Noise


def test_one_sample_gets_its_interval_from_the_other_trials() -> None:
    noise = Noise.of([[10.0, 10.2, 9.8], [20.0, 20.4], [5.0]])
    assert noise.mean([5.0]).bounded
    assert not Noise.of([[5.0], [7.0]]).mean([5.0]).bounded


def test_without_any_repeated_trial_nothing_can_be_told_apart() -> None:
    diff = Noise.of([[5.0], [7.0]]).difference([(1, 5.0)], [(1, 7.0)])
    assert diff is not None
    assert not diff.bounded


def test_a_trial_that_is_noisier_than_the_rest_keeps_a_wide_interval() -> None:
    quiet = [[10.0, 10.1, 9.9]] * 6
    noise = Noise.of([*quiet, [10.0, 15.0, 5.0]])
    assert noise.mean([10.0, 15.0, 5.0]).margin > 5 * noise.mean([10.0, 10.1, 9.9]).margin / 2


def test_with_many_samples_it_is_the_plain_t_interval() -> None:
    rng = random.Random(1)
    samples = [rng.gauss(10, 1) for _ in range(200)]
    assert Noise.of([samples]).mean(samples).margin == pytest.approx(mean(samples).margin, rel=0.03)


def test_pairs_cancel_what_both_trials_share() -> None:
    drift = [0.0, 3.0, 6.0, 9.0, 12.0]
    a = [(i, 20.0 + d) for i, d in enumerate(drift)]
    b = [(i, 19.0 + d) for i, d in enumerate(drift)]
    paired = Noise(variance=1e-6, weight=4).difference(a, b)
    assert paired is not None
    assert paired.value == pytest.approx(1.0)
    assert paired.low > 0.9


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    rng = random.Random(7)
    held = total = 0
    for _ in range(200):
        truths = [rng.uniform(5, 50) for _ in range(12)]
        trials = [[t * (1 + rng.gauss(0, 0.03)) for _ in range(3)] for t in truths]
        noise = Noise.of(trials)
        for truth, samples in zip(truths, trials, strict=True):
            estimate = noise.mean(samples)
            held += estimate.low <= truth <= estimate.high
            total += 1
    assert 0.93 < held / total < 0.98


def test_a_doubling_shows_with_three_noisy_windows() -> None:
    rng = random.Random(3)
    rounds = range(3)
    trials = [[(r, 10 * (1 + rng.gauss(0, 0.2))) for r in rounds] for _ in range(8)]
    slow = [(r, 20 * (1 + rng.gauss(0, 0.2))) for r in rounds]
    noise = Noise.of([[ms for _, ms in trial] for trial in [*trials, slow]])
    diff = noise.difference(slow, trials[0])
    assert diff is not None
    assert diff.low > 0
    assert math.isfinite(diff.high)
