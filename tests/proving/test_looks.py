"""How many turns a proof takes, and how often its interval holds the truth, in turns made up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from loaderdoctor.estimate import Estimate
from loaderdoctor.instrument.entry.checked_run import _whole_epochs
from loaderdoctor.instrument.wire.channel import CheckedRun
from loaderdoctor.proving.speed import _ratio_of, decided, looks, may_decide, ratio, surely

N_PROOFS = 3000


def played(
    logs: Sequence[float], n_turns: int = 3, max_turns: int = 12
) -> tuple[Estimate, tuple[int, ...]]:
    """As `in_turns` goes on, of log ratios that each turn would show."""
    after = looks(n_turns, max_turns)
    for n in after:
        found = _ratio_of(logs[:n], len(after))
        if decided(found) or not may_decide(found, after[-1]):
            break
    return found, after


@pytest.mark.parametrize(
    ("n_turns", "max_turns", "after"),
    [(3, 12, (3, 6, 12)), (3, 8, (3, 6, 8)), (3, 3, (3,)), (2, 3, (2, 3)), (5, 2, (5,))],
)
def test_the_ratio_is_looked_at_three_times_at_most(
    n_turns: int, max_turns: int, after: tuple[int, ...]
) -> None:
    assert looks(n_turns, max_turns) == after


@pytest.mark.parametrize(("low", "high", "ends"), [
    (1.01, 3.0, True), (0.5, 0.99, True), (0.86, 1.14, True), (0.84, 1.1, False),
    (0.5, 3.29, False), (0.9, 1.2, False),
])  # fmt: skip
def test_turns_end_where_it_gains_loses_or_is_about_as_fast(
    low: float, high: float, ends: bool
) -> None:
    assert decided(Estimate(value=math.sqrt(low * high), low=low, high=high, n=3)) is ends


@pytest.mark.parametrize("max_turns", [3, 8, 12])
@pytest.mark.parametrize("heavy", [False, True])
@pytest.mark.parametrize("spread", [0.03, 0.1, 0.15, 0.2, 0.4])
def test_more_looks_mislead_no_more_often_than_one(
    spread: float, heavy: bool, max_turns: int
) -> None:
    random = np.random.default_rng(7)
    shape = (N_PROOFS, 12)
    noise = random.standard_t(4, shape) / math.sqrt(2) if heavy else random.standard_normal(shape)
    proofs = [played(row, max_turns=max_turns)[0] for row in (spread * noise).tolist()]
    held = sum(x.low <= 1.0 <= x.high for x in proofs) / N_PROOFS
    assert held >= 0.94  # 0.95 less the noise of 3,000


def test_noise_alone_hardly_ever_sets_two_forms_that_far_apart() -> None:
    """Runs that differ by 40 %, of two forms that are as fast as each other."""
    random = np.random.default_rng(11)
    times = np.exp(0.4 / math.sqrt(2) * random.standard_normal((N_PROOFS, 3, 2)))
    turns = [[(of(a), of(b)) for a, b in row] for row in times.tolist()]
    assert sum(surely(row) is not None for row in turns) <= 1
    assert surely([(of(30.0), of(2.0)), (of(20.0), of(1.0)), (of(60.0), of(1.5))]) == 10.0
    assert surely([(of(30.0), of(2.0)), (of(20.0), of(1.0))]) is None  # two are none


def of(ms: float) -> CheckedRun:
    """A run whose only step takes so long."""
    return CheckedRun(steps=(), step_ns=(0, round(1e6 * ms)), ended="stopped")


def test_a_gain_that_three_noisy_turns_leave_open_is_shown_by_more() -> None:
    """1.6 times as fast, in turns that differ by 20 %, as on two busy CPUs."""
    logs = (math.log(1.6) + 0.2 * np.random.default_rng(3).standard_normal((500, 12))).tolist()
    first = sum(_ratio_of(row[:3], 1).low > 1.0 for row in logs)
    found = [played(row)[0] for row in logs]
    assert first < 400 < 490 <= sum(x.low > 1.0 for x in found)
    assert np.mean([x.n for x in found]) < 7  # and most end early


@pytest.mark.parametrize(("gain", "most", "shown"), [(1.0, 8.0, 0.0), (1.3, 9.5, 0.6)])
def test_noise_that_no_turns_end_takes_no_more_of_them(
    gain: float, most: float, shown: float
) -> None:
    """Turns that differ by 20 %: of no gain 12 leave it open in 86 of 100 proofs."""
    logs = math.log(gain) + 0.2 * np.random.default_rng(5).standard_normal((1000, 12))
    found = [played(row)[0] for row in logs.tolist()]
    assert np.mean([x.n for x in found]) < most
    assert np.mean([x.low > 1.0 for x in found]) >= shown


def test_turns_are_projected_from_six_of_them_on() -> None:
    open_ = Estimate(value=1.0, low=0.7, high=1.43, n=3)
    assert may_decide(open_, 12)
    assert not may_decide(replace(open_, n=6), 12)
    assert may_decide(replace(open_, n=6), 40)  # as long as it takes
    assert may_decide(Estimate(value=1.2, low=0.97, high=1.48, n=6), 12)


def test_runs_without_timed_steps_have_no_ratio() -> None:
    run = CheckedRun(steps=(), step_ns=(0, 10, 20), ended="stopped")
    none = CheckedRun(steps=(), step_ns=(), ended="stopped")
    assert ratio([(run, run), (run, none)]) is None
    both = ratio([(run, run), (run, run)], n_looks=3)
    assert both is not None and (both.value, both.low, both.high) == (1.0, 1.0, 1.0)


def ends_of(epoch: Sequence[int], n_steps: int) -> tuple[list[int], list[tuple[int, int]]]:
    """Ends of steps, and passes of one loader: `epoch` holds the steps' times."""
    times = [epoch[i % len(epoch)] for i in range(n_steps)]
    passes = [(1, i) for i in range(1, n_steps) if i % len(epoch) == 0]
    return np.cumsum(times).tolist(), passes


@pytest.mark.parametrize("n_steps", [50, 54, 59, 61])
def test_short_epochs_are_timed_whole(n_steps: int) -> None:
    """Workers start for 300 ms in each epoch of 20 steps of 30: 45 ms a step, whatever the turn."""
    ends, passes = ends_of([330, *[30] * 19], n_steps)
    cut = _whole_epochs(ends, passes, first=0)
    assert (cut[-1] - cut[0]) / (len(cut) - 1) == pytest.approx(45.0)
    behind = _whole_epochs(ends[3:], passes, first=3)  # a warm-up was left out
    assert (behind[-1] - behind[0]) / (len(behind) - 1) == pytest.approx(45.0)


def test_long_epochs_and_validation_leave_the_steps_as_they_are() -> None:
    ends, passes = ends_of([330, *[30] * 99], 150)  # one beginning
    assert _whole_epochs(ends, passes, first=0) == ends
    most_lost = ends_of([30] * 12, 200)[0]
    assert _whole_epochs(most_lost, [(1, 5), (1, 17)], first=0) == most_lost
    cut = _whole_epochs(most_lost, [(1, 5), (2, 60), (1, 150)], first=0)
    assert cut == most_lost[4:150]  # of the first loader's passes
