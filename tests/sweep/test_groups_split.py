"""Which trials share a machine: a baseline's rows together, and nothing too small for a start."""

from __future__ import annotations

from loaderdoctor.settings import Settings
from loaderdoctor.sweep.groups import (
    split,
)
from loaderdoctor.tryout import Trial
from tests.sweep.machines import preset_rows


def _trials(n: int) -> list[Trial]:
    return [Trial(index=i, settings=Settings(num_workers=i)) for i in range(n)]


def test_rows_that_share_a_baseline_stay_on_one_machine() -> None:
    for lots in ((11,) * 6, (2, 2, 2, 2, 2, 2), (4, 9), (1, 7, 3, 2), (5,)):
        for n_machines in range(1, 8):
            planned = preset_rows(*lots)
            groups = split(planned, n_machines)
            assert sorted(i for group in groups for i in group.trials) == list(
                range(1, len(planned))
            )
            assert 1 <= len(groups) <= min(n_machines, len(lots))
            for name in {trial.row.group for trial in planned if trial.row is not None}:
                holding = {
                    group.index
                    for group in groups
                    for i in group.trials
                    if (row := planned[i].row) is not None and row.group == name
                }
                assert len(holding) == 1
            # Dealt evenly: no machine has more than its share and the largest lot.
            share = (len(planned) - 1) / len(groups)
            assert max(len(group.trials) for group in groups) <= share + max(lots)


def test_rows_that_do_not_run_go_to_no_machine() -> None:
    planned = preset_rows(3, 2)
    planned[2].fail("skipped", "needs an accelerator")
    planned[5].same_as = 4
    assert [group.trials for group in split(planned, 2)] == [(1, 3), (4,)]


def test_every_trial_is_in_one_group_and_no_group_is_not_worth_its_start() -> None:
    for n_trials in range(1, 60):
        for n_machines in range(1, 12):
            groups = split(_trials(n_trials), n_machines)
            assert sorted(i for group in groups for i in group.trials) == list(range(1, n_trials))
            assert 1 <= len(groups) <= n_machines
            sizes = [len(group.trials) for group in groups]
            assert max(sizes) - min(sizes) <= 1
            assert len(groups) == 1 or min(sizes) >= 2
