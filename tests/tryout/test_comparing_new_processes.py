"""What a trial promises for the script's next runs: no gain that processes differ by anyway."""

from __future__ import annotations

import math

import pytest

from loaderdoctor.estimate import Estimate
from loaderdoctor.tryout.comparing import in_new_processes


def gain(own: float, changed: float, *, margin: float, first: float | None = None) -> Estimate:
    """What is promised for new processes; `margin` a part of each figure."""
    before = own if first is None else first
    found = in_new_processes(
        own,
        Estimate.around(changed, margin * changed, n=3),
        first=Estimate.around(before, margin * before, n=5),
    )
    assert found is not None
    return found


def test_a_gain_no_larger_than_processes_differ_by_is_not_promised() -> None:
    quiet = gain(12.0, 10.0, margin=0.01)
    assert quiet.value == pytest.approx(1.2)
    assert quiet.low < 1.0 < quiet.high
    assert gain(20.0, 10.0, margin=0.01).low > 1.5
    assert gain(20.0, 10.0, margin=0.5).low < 1.0  # noise of both sides counts


def test_a_loop_whose_pace_changed_before_the_trial_promises_less() -> None:
    """`pageable_big_copy` on an H200: 28.8 ms at first, 36.9 in the rounds of the trial, 30.8."""
    steady, changed = gain(14.0, 10.0, margin=0.05), gain(14.0, 10.0, margin=0.05, first=10.9)
    assert steady.low > 1.0 > changed.low
    assert changed.value == steady.value


def test_nothing_is_promised_of_figures_without_an_interval() -> None:
    one = Estimate(value=10.0, low=-math.inf, high=math.inf, n=1)
    known = Estimate.around(20.0, 1.0, n=3)
    assert in_new_processes(20.0, one, first=known) is None
    assert in_new_processes(20.0, known, first=one) is None
    assert in_new_processes(0.0, known, first=known) is None
