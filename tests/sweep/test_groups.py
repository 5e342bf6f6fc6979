"""A sweep in groups over simulated machines whose speeds are known: what is compared, and how."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from loaderdoctor.cluster import Hardware
from loaderdoctor.facts import own_settings
from loaderdoctor.settings import Settings
from loaderdoctor.sweep.grouped_evidence import GroupedEvidence
from loaderdoctor.sweep.groups import (
    Group,
    GroupedSweep,
    TrialUpdate,
    split,
)
from loaderdoctor.sweep.presets.model import Figures
from loaderdoctor.sweep.report_rows import trial_rows, warning_rows
from loaderdoctor.tryout import Part, Trial
from loaderdoctor.tryout.ranking import rank
from tests.sweep.machines import (
    MACHINE,
    OWN_MS,
    PLANNED,
    STEP_MS,
    THREE,
    grouped,
    machine,
    node,
    preset_rows,
)
from tests.tryout.simulator import observed


def test_a_row_that_is_the_same_as_another_has_its_figures_wherever_that_ran() -> None:
    planned = [*PLANNED, Trial(index=7, settings=Settings(num_workers=2), same_as=2)]
    sweep = GroupedSweep(observed(step_ms=OWN_MS, usable_cpus=8.0), planned)
    for index, (trials, cpu, factor) in enumerate(
        (((1, 3, 4, 5), "EPYC", 1.0), ((2, 6), "Xeon", 2.0))
    ):
        group = Group(index=index, trials=trials)
        sweep.add(group)
        sweep.done(index, machine(f"node {index}", cpu=cpu), node(group, factor=factor)[0])
    results = sweep.ranking().results
    assert results[7].index == 7
    assert results[7].apart and results[2].apart
    assert results[7].by_round == results[2].by_round


def test_claims_never_compare_machines_of_different_kinds() -> None:
    planned = preset_rows(2, 2)
    figures = Figures(
        trials=planned,
        ranking=rank(planned, own=Settings(), steps_per_epoch=100),
        kinds={1: "A", 2: "A", 3: "A", 4: "B"},
    )
    assert figures._unlike(3, 4)
    assert not figures._unlike(1, 2)
    assert not figures._unlike(0, 4)  # the loop as it is was measured on both


def test_each_group_has_the_loops_own_settings_first_and_last() -> None:
    group = split(PLANNED, 2)[0]
    _, script_run = node(group, factor=1.0)
    timed = [r for r in script_run.log if r.mode == "trial" and r.trace_path is None]
    assert not timed[0].settings or not timed[0].settings.changed()
    assert not timed[-1].settings or not timed[-1].settings.changed()


@pytest.mark.parametrize("seed", range(4))
def test_the_winner_is_found_though_it_ran_on_the_slowest_of_machines_that_are_alike(
    seed: int,
) -> None:
    """2 workers take 6.0 ms, but 9.0 on their machine; 5 workers take 6.8 and 5.4 on theirs."""
    groups = [
        Group(index=0, trials=(2, 4)),
        Group(index=1, trials=(5, 6)),
        Group(index=2, trials=(1, 3)),
    ]
    machines = [(machine("slow"), 1.5), (machine("fast"), 0.8), (machine("usual"), 1.0)]
    sweep = grouped(machines, groups, seed=10 * seed)
    ranking = sweep.ranking()
    raw = {r.index: r.wall_ms.value for r in ranking.results if r.wall_ms is not None}
    assert raw[5] < raw[2]  # by the clock alone another would have won
    assert ranking.best == 2
    assert ranking.candidate == 2
    assert ranking.gain_share is not None
    assert ranking.gain_share.value == pytest.approx(0.4, abs=0.05)


def test_costs_are_ratios_to_their_own_machine_times_the_mean_of_all_baselines() -> None:
    machines = [(machine("slow"), 1.5), (machine("fast"), 0.5)]
    groups = [Group(index=0, trials=(1, 2, 3)), Group(index=1, trials=(4, 5, 6))]
    sweep = GroupedSweep(observed(step_ms=OWN_MS, usable_cpus=8.0), PLANNED)
    for group, (hardware, factor) in zip(groups, machines, strict=True):
        sweep.add(group)
        sweep.done(group.index, hardware, node(group, factor=factor, noise=0.0)[0])
    ranking = sweep.ranking()
    baseline = ranking.results[0].wall_ms
    assert baseline is not None
    for result in ranking.results[1:]:
        assert result.cost_ms is not None
        share = STEP_MS[result.settings.num_workers or 0] / OWN_MS
        assert result.cost_ms.value == pytest.approx(share * baseline.value, rel=1e-6)
    own = ranking.results[0].cost_ms
    assert own is not None
    assert own.value == pytest.approx(baseline.value)


def test_one_group_ranks_as_a_sweep_without_groups_does() -> None:
    (group,) = split(PLANNED, 1)
    made, _ = node(group, factor=1.0, noise=0.0)
    sweep = GroupedSweep(made.observed, PLANNED)
    sweep.add(group)
    sweep.done(0, MACHINE, made)
    alone = rank(made.outcome.trials, own=own_settings(made.observed), steps_per_epoch=100)
    together = sweep.ranking()
    assert (together.best, together.tied_with, together.candidate) == (
        alone.best, alone.tied_with, alone.candidate
    )  # fmt: skip


def test_the_candidate_is_confirmed_beside_the_baseline_of_the_node_that_confirms() -> None:
    sweep = grouped([(machine(n), f) for n, f in (("a", 1.0), ("b", 1.2), ("c", 0.9))], THREE)
    assert sweep.to_confirm() == {"A": 2}
    assert not sweep.ranking().confirmed
    group = Group(index=3, trials=(2,), part="confirm")
    sweep.add(group)
    made, script_run = node(group, factor=2.0, budget_s=20.0)
    sweep.done(3, machine("b"), made)
    ranking = sweep.ranking()
    assert ranking.confirmed
    assert ranking.recommended == 2
    assert sweep.to_confirm() == {}
    assert ranking.gain_share is not None
    assert ranking.gain_share.value == pytest.approx(0.4, abs=0.03)
    asked = {r.settings.num_workers for r in script_run.log if r.settings and r.settings.changed()}
    assert asked == {2}
    # What sized its windows is no measurement of the ranking.
    assert all(v.phase == "confirm" for i, v in sweep.states[3].measurements)


def unlike(
    on_b: Callable[[Hardware], Hardware] = lambda one: replace(one, cpu="Xeon"),
) -> GroupedSweep:
    """2 workers win on A; all of B is twice as fast by the clock."""
    groups = [Group(index=0, trials=(1, 2, 3, 4)), Group(index=1, trials=(5, 6))]
    return grouped([(machine("a"), 1.0), (on_b(machine("b")), 0.5)], groups)


def test_trials_of_unlike_machines_are_never_compared() -> None:
    sweep = unlike()
    ranking = sweep.ranking()
    assert sweep.main_kind == "A"
    assert ranking.best == 2
    assert not {5, 6} & {*ranking.tied_with, ranking.candidate}
    assert [r.index for r in ranking.results if r.apart] == [5, 6]
    own = ranking.results[0].wall_ms
    assert own is not None
    assert own.value == pytest.approx(OWN_MS, rel=0.05)  # of A's machine alone
    assert sweep.ranking_of("B").best == 5
    assert sweep.to_confirm() == {"A": 2, "B": 5}


def test_unlike_machines_are_told_with_what_differs_and_what_each_kind_found(
    tmp_path: Path,
) -> None:
    sweep = unlike()
    evidence = GroupedEvidence(observed=observed(usable_cpus=8.0), sweep=sweep, trace_dir=tmp_path)
    (warning,) = [one for one in evidence.warnings() if one.kind == "unlike-hardware"]
    assert "CPU EPYC against Xeon" in warning.text
    assert "not compared" in warning.text
    a, b = evidence.cluster.hardware
    assert (a.name, a.trials, b.name, b.trials) == ("A", (1, 2, 3, 4), "B", (5, 6))
    assert a.best is not None and a.best.trial == 2
    assert b.best is not None and b.best.trial == 5
    assert a.baseline_ms == pytest.approx(OWN_MS, rel=0.05)
    assert b.baseline_ms == pytest.approx(OWN_MS / 2, rel=0.05)
    rows = trial_rows(sweep.ranking(), {}, {}, evidence.where)
    assert [row.hardware for row in rows] == ["A"] * 5 + ["B"] * 2
    assert [row.node for row in rows] == ["a"] * 5 + ["b"] * 2
    assert rows[5].label.endswith("[hardware B]")
    assert rows[5].compared_ms == pytest.approx(0.68 * OWN_MS / 2, rel=0.06)


def test_a_loop_that_sets_itself_up_otherwise_on_a_machine_is_another_kind() -> None:
    groups = [Group(index=0, trials=(1, 2, 3)), Group(index=1, trials=(4, 5, 6))]
    sweep = grouped([(machine("a"), 1.0), (machine("b"), 1.0)], groups)
    other = GroupedSweep(observed(usable_cpus=8.0), PLANNED)
    for state, own in zip(sweep.states, (Settings(), Settings(num_workers=8)), strict=True):
        assert state.measured is not None
        other.add(state.group)
        seen = observed(step_ms=OWN_MS, usable_cpus=8.0, own=own)
        other.done(
            state.group.index, machine(str(own.num_workers)), replace(state.measured, observed=seen)
        )
    assert [state.kind for state in other.states] == ["A", "B"]
    assert "own settings" in other.kinds.difference()


def test_machines_that_are_alike_need_no_warning(tmp_path: Path) -> None:
    sweep = grouped([(machine(name), 1.0) for name in "abc"], THREE)
    evidence = GroupedEvidence(observed=observed(), sweep=sweep, trace_dir=tmp_path)
    assert not evidence.warnings()
    assert len(evidence.cluster.hardware) == 1
    assert [group.node for group in evidence.cluster.groups] == ["a", "b", "c"]


def test_figures_of_a_lost_node_are_void_and_those_of_the_node_after_it_count() -> None:
    sweep = GroupedSweep(observed(step_ms=OWN_MS, usable_cpus=8.0), PLANNED)
    (group,) = split(PLANNED, 1)
    sweep.add(group)
    lost, _ = node(group, factor=9.0)
    for trial in lost.outcome.trials:
        for measurement in trial.measurements:
            sweep.told(0, machine("gone"), TrialUpdate(trial=trial.index, measurement=measurement))
    assert sweep.ranking().best is not None  # what was told is shown until then
    sweep.again(0)
    assert not any(trial.measurements for trial in sweep.recorded)
    made, _ = node(group, factor=1.0)
    sweep.done(0, machine("next"), made)
    own = sweep.ranking().results[0].wall_ms
    assert own is not None
    assert own.value == pytest.approx(OWN_MS, rel=0.05)
    assert sweep.host_of(1) == "next"


def test_a_group_that_no_node_could_measure_is_failed_with_the_reason_and_the_rest_ranked() -> None:
    sweep = GroupedSweep(observed(step_ms=OWN_MS, usable_cpus=8.0), PLANNED)
    for group in THREE:
        sweep.add(group)
    for group in THREE[:2]:
        sweep.done(group.index, machine(str(group.index)), node(group, factor=1.0)[0])
    sweep.fail(2, "lost 3 times, the last time on c: the node is gone")
    ranking = sweep.ranking()
    failed = [r.index for r in ranking.results if r.status == "failed"]
    assert tuple(failed) == THREE[2].trials
    assert all("lost 3 times" in (ranking.results[i].reason or "") for i in failed)
    assert ranking.best == 2
    told = [row for row in warning_rows(sweep.outcome, ranking) if row.kind == "group-lost"]
    assert len(told) == 1


@pytest.mark.parametrize("part", ["rank", "confirm"])
def test_a_part_does_its_part_only(part: Part) -> None:
    made, _ = node(Group(index=0, trials=(1, 2), part=part), factor=1.0)
    phases = {
        measurement.phase for trial in made.outcome.trials for measurement in trial.measurements
    }
    assert phases == ({"calibrate", "rank"} if part == "rank" else {"calibrate", "confirm"})
