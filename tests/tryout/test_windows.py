"""How long windows are."""

from __future__ import annotations

import pytest

from loaderdoctor.settings import Settings
from loaderdoctor.tryout import Trial, windows
from tests.tryout.simulator import observed


@pytest.mark.parametrize(
    ("settings", "step_s", "cycle"),
    [
        (Settings(num_workers=8, prefetch_factor=4), 0.04, 100),  # 32 queued of an epoch of 100
        (Settings(num_workers=8, prefetch_factor=2), 0.04, 8),  # six queues: a steady middle
        (Settings(num_workers=8, prefetch_factor=2), 0.004, 100),  # not half a second
        (Settings(num_workers=8, prefetch_factor=4, keep_iterator=True), 0.01, 8),  # no epochs
        (Settings(num_workers=0), 0.01, 1),
    ],
)
def test_epochs_that_workers_mostly_fill_or_that_are_short_are_measured_whole(
    settings: Settings, step_s: float, cycle: int
) -> None:
    trial = Trial(index=1, settings=settings)
    assert windows.cycle(trial, observed(), step_s=step_s) == cycle
    cost = windows.guess(trial, observed(), step_s=step_s)
    assert cost.steps(0.1) % cycle == 0


def test_whole_epochs_are_those_of_the_trial_and_of_bounded_length() -> None:
    trial = Trial(index=1, settings=Settings(num_workers=8, portion=0.1), steps_per_epoch=10)
    assert windows.cycle(trial, observed(), step_s=0.1) == 10
    assert windows.cycle(trial, observed(), step_s=windows.LONGEST_EPOCH_S / 10 * 1.1) == 8
    assert windows.cycle(trial, observed(steps_per_epoch=None), step_s=0.1) == 10
    trial = Trial(index=1, settings=Settings(num_workers=8))
    assert windows.cycle(trial, observed(steps_per_epoch=None), step_s=0.01) == 8
