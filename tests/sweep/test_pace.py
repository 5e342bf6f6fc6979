"""How long windows are."""

from __future__ import annotations

import pytest

from loaderdoctor.settings import Settings
from loaderdoctor.sweep import pace
from loaderdoctor.sweep.trials import Trial
from tests.sweep.simulator import observed


@pytest.mark.parametrize(
    ("settings", "n_steps"),
    [
        (Settings(num_workers=8, prefetch_factor=4), 100),  # 32 queued of an epoch of 100
        (Settings(num_workers=8, prefetch_factor=2), 8),  # six queues in an epoch: a steady middle
        (Settings(num_workers=8, prefetch_factor=4, keep_iterator=True), 8),  # no epochs
        (Settings(num_workers=0), 8),
    ],
)
def test_epochs_that_workers_mostly_fill_ahead_are_measured_whole(
    settings: Settings, n_steps: int
) -> None:
    trial = Trial(index=1, settings=settings)
    assert pace.whole_epochs(trial, observed(), 8, step_s=0.01) == n_steps


def test_whole_epochs_are_those_of_the_trial_and_of_bounded_length() -> None:
    trial = Trial(index=1, settings=Settings(num_workers=8, portion=0.1), steps_per_epoch=10)
    assert pace.whole_epochs(trial, observed(), 8, step_s=0.01) == 10
    assert pace.whole_epochs(trial, observed(), 32, step_s=0.01) == 40
    assert pace.whole_epochs(trial, observed(), 8, step_s=0.01, end_due=True) == 10
    alone = Trial(index=2, settings=Settings(num_workers=0))
    assert pace.whole_epochs(alone, observed(), 8, step_s=0.01, end_due=True) == 100
    too_long_s = pace.SHORT_EPOCH_S / 10 * 1.1
    assert pace.whole_epochs(trial, observed(), 8, step_s=too_long_s) == 8
    assert pace.whole_epochs(trial, observed(steps_per_epoch=None), 8, step_s=0.01) == 10
    trial = Trial(index=1, settings=Settings(num_workers=8))
    assert pace.whole_epochs(trial, observed(steps_per_epoch=None), 8, step_s=0.01) == 8
