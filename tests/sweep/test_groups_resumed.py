"""Groups of a sweep that was interrupted: whole ones are kept, the others are dealt out again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from loaderdoctor.commands.sweep.plan import SweepOptions
from loaderdoctor.errors import UsageError
from loaderdoctor.settings import Settings
from loaderdoctor.sweep import timings_file
from loaderdoctor.sweep.groups import (
    Group,
    GroupedSweep,
    TrialUpdate,
    split,
)
from loaderdoctor.tryout import Trial
from tests.sweep.machines import MACHINE, OWN_MS, PLANNED, STEP_MS, machine, node
from tests.tryout.simulator import observed


def interrupted(folder: Path) -> GroupedSweep:
    """Three groups on unlike speeds: two measured, one under way, as samples on disk."""
    groups = [
        Group(index=0, trials=(1, 2)),
        Group(index=1, trials=(3, 4)),
        Group(index=2, trials=(5, 6)),
    ]
    sweep = GroupedSweep(observed(step_ms=OWN_MS, usable_cpus=8.0), PLANNED)
    for group, factor in zip(groups, (1.5, 0.8, 1.0), strict=True):
        sweep.add(group)
        where = machine(f"node {group.index}")
        made, _ = node(group, factor=factor, seed=group.index)
        if group.index != 1:
            sweep.done(group.index, where, made)
            continue
        for measurement in made.outcome.trials[1].measurements[:2]:  # this one only told
            sweep.told(group.index, where, TrialUpdate(trial=1, measurement=measurement))
    timings_file.write(folder, sweep.recorded, options={}, spent_s=9.0, groups=sweep.saved)
    return sweep


def test_a_resumed_sweep_keeps_whole_groups_and_deals_out_the_rest(tmp_path: Path) -> None:
    before = interrupted(tmp_path)
    planned = [replace(trial, measurements=[]) for trial in PLANNED]
    after = GroupedSweep(observed(step_ms=OWN_MS, usable_cpus=8.0), planned)
    after.restore(*timings_file.read(tmp_path))
    assert [state.group.trials for state in after.states] == [(1, 2), (5, 6)]
    assert [state.host for state in after.states] == ["node 0", "node 2"]
    kept = {
        trial.index: [v.window.host_step_ns for v in trial.measurements]
        for trial in before.recorded
        if trial.index in (1, 2, 5, 6)
    }
    again = {
        trial.index: [v.window.host_step_ns for v in trial.measurements] for trial in after.recorded
    }
    assert {index: again[index] for index in kept} == kept
    assert not again[3] and not again[4]  # what was under way begins again
    (rest,) = split(planned, 3, done=after.states)
    assert (rest.index, rest.trials) == (2, (3, 4))
    after.add(rest)
    after.done(2, machine("another"), node(rest, factor=2.0, seed=7)[0])
    ranking = after.ranking()
    assert ranking.best == 2
    whole = {r.index: r.cost_ms.value for r in ranking.results if r.cost_ms is not None}
    for index in range(1, 7):  # ratios to their own nodes, old and new
        assert whole[index] / whole[0] == pytest.approx(STEP_MS[index] / OWN_MS, rel=0.06)
    assert not after.to_confirm() or set(after.to_confirm()) == {"A"}
    timings_file.write(tmp_path, after.recorded, options={}, spent_s=1.0, groups=after.saved)
    saved = timings_file.read(tmp_path)[0]
    assert [group.trials for group in saved.groups] == [
        (1, 2),
        (5, 6),
        (3, 4),
    ]


def test_a_resumed_sweep_of_another_loop_is_refused(tmp_path: Path) -> None:
    interrupted(tmp_path)
    others = [Trial(index=i, settings=Settings(num_workers=i + 7)) for i in range(7)]
    with pytest.raises(UsageError, match="not the same"):
        GroupedSweep(observed(), others).restore(*timings_file.read(tmp_path))


def test_failed_trials_of_a_whole_group_stay_failed(tmp_path: Path) -> None:
    sweep = GroupedSweep(observed(step_ms=OWN_MS, usable_cpus=8.0), PLANNED)
    group = Group(index=0, trials=(1, 2))
    sweep.add(group)
    made, _ = node(group, factor=1.0)
    made.outcome.trials[1].fail("failed", "it crashed")
    sweep.done(0, MACHINE, made)
    timings_file.write(tmp_path, sweep.recorded, options={}, spent_s=1.0, groups=sweep.saved)
    planned = [replace(trial, measurements=[]) for trial in PLANNED]
    again = GroupedSweep(observed(step_ms=OWN_MS, usable_cpus=8.0), planned)
    again.restore(*timings_file.read(tmp_path))
    assert (planned[1].status, planned[1].reason) == ("failed", "it crashed")
    assert planned[2].status == "ok"


@pytest.mark.parametrize(("engine", "on_cluster"), [("ray", False), ("local", True)])
def test_a_sweep_is_resumed_where_it_was_measured(
    engine: Literal["ray", "local"], on_cluster: bool
) -> None:
    options = SweepOptions(resume=Path("run"), engine=engine)
    with pytest.raises(UsageError, match="--engine ray"):
        options.resumed(SweepOptions(target=("train.py",)).saved(), on_cluster=on_cluster)
