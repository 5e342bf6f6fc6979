"""Intervals of windows: one alone has one, they hold as often as they say, noise is kept."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from loaderdoctor.estimate import BETWEEN, Noise, Sample, mean, t95


def windows(values: Sequence[float], error: float = 0.0) -> list[Sample]:
    return [Sample(value=x, error=error) for x in values]


def rounds(values: Sequence[float]) -> list[tuple[int, Sample]]:
    return list(enumerate(windows(values)))


def test_a_sample_of_steps_knows_how_well_they_know_their_mean() -> None:
    rng = random.Random(1)
    steps = [rng.gauss(20, 2) for _ in range(400)]
    assert Sample.of(steps).error == pytest.approx(2 / math.sqrt(400), rel=0.2)
    assert Sample.of([5.0]) == Sample(value=5.0)
    assert Sample.of([5.0] * 20).error == 0.0
    with pytest.raises(ValueError, match="no steps"):
        Sample.of([])


def test_steps_like_their_neighbours_tell_less_than_as_many_of_their_own() -> None:
    rng = random.Random(2)
    off, alike = 0.0, []
    for _ in range(400):
        off = 0.8 * off + rng.gauss(0, 1)
        alike.append(20 + off)
    shuffled = alike[:]
    rng.shuffle(shuffled)
    assert Sample.of(alike).error == pytest.approx(3 * Sample.of(shuffled).error, rel=0.3)


def test_waits_that_come_once_a_cycle_cancel_in_part() -> None:
    independent = 110.4 / math.sqrt(40)
    known = Sample.of([255.0, 0.0, 0.0, 0.0] * 10).error
    assert 0.0 < known < independent / 2
    assert Sample.of([0.0, 0.0, 0.0, 255.0, 0.0]).error == pytest.approx(51.0)  # too few to tell


def test_one_window_against_another_that_takes_half_is_told_apart() -> None:
    rng = random.Random(3)
    for _ in range(50):
        own = Sample.of([rng.gauss(80, 8) for _ in range(24)])
        trial = Sample.of([rng.gauss(40, 4) for _ in range(24)])
        gain = Noise.of([[own], [trial]]).difference([(0, own)], [(0, trial)])
        assert gain is not None
        assert 0 < gain.low < 40 < gain.high < 80


def test_one_window_does_not_tell_what_windows_differ_by_anyway() -> None:
    gain = Noise().difference(rounds([20.0]), rounds([20.0 * (1 - BETWEEN)]))
    assert gain is not None and gain.bounded
    assert gain.low < 0 < gain.high


def test_windows_of_the_run_take_the_place_of_what_was_recorded_elsewhere() -> None:
    quiet = [windows([10.0, 10.001, 9.999])] * 12
    assert Noise.of(quiet).mean(windows([10.0])).margin < Noise().mean(windows([10.0])).margin / 2
    wild = [windows([10.0, 14.0, 6.0])] * 12
    assert Noise.of(wild).mean(windows([10.0])).margin > 3 * Noise().mean(windows([10.0])).margin


def test_a_trial_that_is_noisier_than_the_rest_keeps_a_wide_interval() -> None:
    quiet = [windows([10.0, 10.1, 9.9])] * 6
    noise = Noise.of([*quiet, windows([10.0, 15.0, 5.0])])
    wild, usual = noise.mean(windows([10.0, 15.0, 5.0])), noise.mean(windows([10.0, 10.1, 9.9]))
    assert wild.margin > 5 * usual.margin / 2


def test_with_many_windows_it_is_the_plain_t_interval() -> None:
    rng = random.Random(1)
    values = [rng.gauss(10, 1) for _ in range(200)]
    found = Noise.of([windows(values)]).mean(windows(values))
    assert found.margin == pytest.approx(mean(values).margin, rel=0.03)


def test_pairs_cancel_what_both_trials_share() -> None:
    drift = [0.0, 3.0, 6.0, 9.0, 12.0]
    a, b = rounds([20.0 + d for d in drift]), rounds([19.0 + d for d in drift])
    paired = Noise(variance=1e-6, free=1000).difference(a, b)
    assert paired is not None
    assert paired.value == pytest.approx(1.0)
    assert paired.low > 0.9


def test_intervals_of_three_windows_hold_the_truth_about_as_often_as_they_say() -> None:
    rng = random.Random(7)
    held = total = 0
    for _ in range(200):
        truths = [rng.uniform(5, 50) for _ in range(12)]
        trials = [windows([t * (1 + rng.gauss(0, 0.03)) for _ in range(3)]) for t in truths]
        noise = Noise.of(trials)
        for truth, samples in zip(truths, trials, strict=True):
            estimate = noise.mean(samples)
            held += estimate.low <= truth <= estimate.high
            total += 1
    assert 0.93 < held / total < 0.98


def test_a_doubling_shows_with_three_noisy_windows() -> None:
    rng = random.Random(3)
    trials = [windows([10 * (1 + rng.gauss(0, 0.2)) for _ in range(3)]) for _ in range(8)]
    slow = windows([20 * (1 + rng.gauss(0, 0.2)) for _ in range(3)])
    diff = Noise.of([*trials, slow]).difference(list(enumerate(slow)), list(enumerate(trials[0])))
    assert diff is not None
    assert diff.low > 0


def test_a_window_that_is_noisy_in_itself_stays_so_among_quiet_ones() -> None:
    quiet = Noise(variance=1e-4, free=15)
    # 95 % of its own error of 1.0 at the least.
    assert quiet.mean(windows([10.0], error=1.0)).margin > 1.8


def test_whole_cycles_tell_the_mean_of_a_pool_that_falls_short() -> None:
    """Four workers, one long wait in each four steps: their sums vary little, and that is told."""
    rng = random.Random(3)

    def steps() -> list[float]:
        waits = [sum(rng.gauss(300.0, 45.0) for _ in range(4)) for _ in range(5)]
        return [x for wait in waits for x in (wait - 300.0, 100.0, 100.0, 100.0)]

    drawn = [steps() for _ in range(200)]
    true = math.sqrt(mean([(sum(x) / 20 - 300.0) ** 2 for x in drawn]).value)
    by_cycle = mean([Sample.of(x, cycle=4).error for x in drawn]).value
    alone = mean([Sample.of(x).error for x in drawn]).value
    assert true < by_cycle < 1.6 * true < alone
    # Not of fewer cycles than tell their spread, nor of a part of one.
    for part in (drawn[0][:12], drawn[0][:18]):
        assert Sample.of(part, cycle=4) == Sample.of(part)


def drifting(rng: random.Random, correlation: float, n: int, *, cycle: int = 0) -> list[float]:
    """Steps of one mean, each like the last one; one of a `cycle` also waits for its pool."""
    off, steps = rng.gauss(0.0, 20.0), []
    for i in range(n):
        wait = 300.0 * rng.uniform(0.85, 1.15) if cycle and i % cycle == 0 else 0.0
        steps.append(100.0 + off + wait)
        off = correlation * off + rng.gauss(0.0, 20.0 * math.sqrt(1 - correlation**2))
    return steps


@pytest.mark.parametrize(
    ("correlation", "n", "cycle", "waits"),
    [(0.8, 24, 2, 0), (0.9, 64, 2, 0), (0.9, 64, 8, 0), (0.8, 24, 4, 4), (0.9, 64, 4, 4)],
)
def test_steps_that_drift_do_not_make_identical_loops_differ(
    correlation: float, n: int, cycle: int, waits: int
) -> None:
    """Sums of whole cycles drift as the steps do: taken as independent, 6 to 13 % were false."""
    rng = random.Random(11)

    def window() -> Sample:
        return Sample.of(drifting(rng, correlation, n, cycle=waits), cycle=cycle)

    false = 0
    for _ in range(400):
        a, b = [window(), window()], [window(), window()]
        gain = Noise.of([a, b]).difference(list(enumerate(a)), list(enumerate(b)))
        assert gain is not None
        false += gain.low > 0 or gain.high < 0
    assert false / 400 <= 0.055


def test_whole_cycles_are_left_where_neighbours_are_alike() -> None:
    rng = random.Random(12)
    drawn = [drifting(rng, 0.8, 24) for _ in range(200)]
    true = math.sqrt(mean([(sum(x) / 24 - 100.0) ** 2 for x in drawn]).value)
    assert 0.8 * true < mean([Sample.of(x, cycle=2).error for x in drawn]).value < 1.3 * true


def test_of_cycles_one_less_than_their_number_is_known() -> None:
    """Where their own spread is all there is, it is a t interval of so many sums."""
    told = Sample(value=100.0, error=10.0, n_cycles=8)
    margin = Noise(variance=1e-12, free=10**6).mean([told]).margin
    assert margin == pytest.approx(t95(7) * 10.0, rel=0.01)
