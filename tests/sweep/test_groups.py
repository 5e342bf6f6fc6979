"""A sweep in groups over simulated machines whose speeds are known: what is compared, and how."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from loaderdoctor.cluster.hardware import Hardware
from loaderdoctor.commands.sweep_plan import SweepOptions
from loaderdoctor.errors import UsageError
from loaderdoctor.settings import Settings
from loaderdoctor.sweep import samples
from loaderdoctor.sweep.grid import own_settings
from loaderdoctor.sweep.grouped_evidence import GroupedEvidence
from loaderdoctor.sweep.groups import (
    Group,
    GroupedSweep,
    Measured,
    Visited,
    local_trials,
    split,
)
from loaderdoctor.sweep.outcome import Options, Part
from loaderdoctor.sweep.presets.figures import Figures
from loaderdoctor.sweep.presets.model import Row
from loaderdoctor.sweep.rank import rank
from loaderdoctor.sweep.rounds import Sweep
from loaderdoctor.sweep.rows import trial_rows, warning_rows
from loaderdoctor.sweep.trials import Trial
from tests.sweep.simulator import SimulatedBench, Truth, observed

MACHINE = Hardware(
    host="one",
    machine="1",
    cpu="EPYC",
    usable_cpus=8.0,
    memory_bytes=32 << 30,
    gpus=(),
    torch="2.14.1",
    version="0",
)
OWN_MS = 10.0
# Workers -> step time on a machine of speed 1.
STEP_MS = {1: 9.0, 2: 6.0, 3: 8.0, 4: 7.0, 5: 6.8, 6: 9.5}
PLANNED = [
    Trial(index=i, settings=Settings() if not i else Settings(num_workers=i, prefetch_factor=2))
    for i in range(7)
]


def machine(name: str, **changes: object) -> Hardware:
    return replace(MACHINE, host=name, machine=name, **changes)  # type: ignore[arg-type]


def node(
    group: Group, *, factor: float, seed: int = 0, noise: float = 0.02, budget_s: float = 40.0
) -> tuple[Measured, SimulatedBench]:
    """Measure a group on a machine that takes `factor` as long as the usual one."""

    def truth(settings: Settings) -> Truth:
        return Truth(step_ms=factor * STEP_MS[settings.num_workers or 1])

    bench = SimulatedBench(truth, Truth(step_ms=factor * OWN_MS), seed=seed, noise=noise)
    seen = observed(step_ms=factor * OWN_MS, usable_cpus=8.0)
    sweep = Sweep(
        bench,
        seen,
        local_trials(PLANNED, group),
        Options(budget_s=budget_s, seed=seed, part=group.part),
        clock=bench.clock,
    )
    outcome = sweep.run()
    made = Measured(observed=seen, notes=(), outcome=outcome, ablated=None, files={})
    return made, bench


def grouped(
    machines: Sequence[tuple[Hardware, float]], groups: Sequence[Group], *, seed: int = 0
) -> GroupedSweep:
    """Each group measured on the machine of its place in the list."""
    sweep = GroupedSweep(observed(step_ms=OWN_MS, usable_cpus=8.0), PLANNED)
    for group, (hardware, factor) in zip(groups, machines, strict=True):
        sweep.add(group)
        made, _ = node(group, factor=factor, seed=seed + group.index)
        sweep.done(group.index, hardware, made)
    return sweep


THREE = split(PLANNED, 3)


def _trials(n: int) -> list[Trial]:
    return [Trial(index=i, settings=Settings(num_workers=i)) for i in range(n)]


def _rows(*lots: int) -> list[Trial]:
    """Trial 0 and a preset's rows, so many of each group."""
    rows = [Row(name=f"row {j}", group=f"group {i}") for i, n in enumerate(lots) for j in range(n)]
    settings = Settings(num_workers=2)
    first = Trial(index=0, settings=Settings())
    return [first, *(Trial(index=i, settings=settings, row=row) for i, row in enumerate(rows, 1))]


def test_rows_that_share_a_baseline_stay_on_one_machine() -> None:
    for lots in ((11,) * 6, (2, 2, 2, 2, 2, 2), (4, 9), (1, 7, 3, 2), (5,)):
        for n_machines in range(1, 8):
            planned = _rows(*lots)
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
    planned = _rows(3, 2)
    planned[2].fail("skipped", "needs an accelerator")
    planned[5].same_as = 4
    assert [group.trials for group in split(planned, 2)] == [(1, 3), (4,)]


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
    assert results[7].by_round_ms == results[2].by_round_ms


def test_claims_never_compare_machines_of_different_kinds() -> None:
    planned = _rows(2, 2)
    figures = Figures(
        trials=planned,
        ranking=rank(planned, own=Settings(), steps_per_epoch=100),
        kinds={1: "A", 2: "A", 3: "A", 4: "B"},
    )
    assert figures._unlike(3, 4)
    assert not figures._unlike(1, 2)
    assert not figures._unlike(0, 4)  # the loop as it is was measured on both


def test_every_trial_is_in_one_group_and_no_group_is_not_worth_its_start() -> None:
    for n_trials in range(1, 60):
        for n_machines in range(1, 12):
            groups = split(_trials(n_trials), n_machines)
            assert sorted(i for group in groups for i in group.trials) == list(range(1, n_trials))
            assert 1 <= len(groups) <= n_machines
            sizes = [len(group.trials) for group in groups]
            assert max(sizes) - min(sizes) <= 1
            assert len(groups) == 1 or min(sizes) >= 2


def test_each_group_has_the_loops_own_settings_first_and_last() -> None:
    group = split(PLANNED, 2)[0]
    _, bench = node(group, factor=1.0)
    timed = [r for r in bench.log if r.mode == "trial" and r.trace_path is None]
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
    made, bench = node(group, factor=2.0, budget_s=20.0)
    sweep.done(3, machine("b"), made)
    ranking = sweep.ranking()
    assert ranking.confirmed
    assert ranking.recommended == 2
    assert sweep.to_confirm() == {}
    assert ranking.gain_share is not None
    assert ranking.gain_share.value == pytest.approx(0.4, abs=0.03)
    asked = {r.settings.num_workers for r in bench.log if r.settings and r.settings.changed()}
    assert asked == {2}
    # What sized its windows is no measurement of the ranking.
    assert all(v.phase == "confirm" for i, v in sweep.states[3].visits)


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
        for visit in trial.visits:
            sweep.told(0, machine("gone"), Visited(trial=trial.index, visit=visit))
    assert sweep.ranking().best is not None  # what was told is shown until then
    sweep.again(0)
    assert not any(trial.visits for trial in sweep.recorded)
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
    phases = {visit.phase for trial in made.outcome.trials for visit in trial.visits}
    assert phases == ({"calibrate", "rank"} if part == "rank" else {"calibrate", "confirm"})


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
        for visit in made.outcome.trials[1].visits[:2]:  # this one only told
            sweep.told(group.index, where, Visited(trial=1, visit=visit))
    samples.write(folder, sweep.recorded, options={}, spent_s=9.0, groups=sweep.saved)
    return sweep


def test_a_resumed_sweep_keeps_whole_groups_and_deals_out_the_rest(tmp_path: Path) -> None:
    before = interrupted(tmp_path)
    planned = [replace(trial, visits=[]) for trial in PLANNED]
    after = GroupedSweep(observed(step_ms=OWN_MS, usable_cpus=8.0), planned)
    after.restore(*samples.read(tmp_path))
    assert [state.group.trials for state in after.states] == [(1, 2), (5, 6)]
    assert [state.host for state in after.states] == ["node 0", "node 2"]
    kept = {
        trial.index: [v.window.host_step_ns for v in trial.visits]
        for trial in before.recorded
        if trial.index in (1, 2, 5, 6)
    }
    again = {trial.index: [v.window.host_step_ns for v in trial.visits] for trial in after.recorded}
    assert {index: again[index] for index in kept} == kept
    assert not again[3] and not again[4]  # what was under way begins anew
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
    samples.write(tmp_path, after.recorded, options={}, spent_s=1.0, groups=after.saved)
    assert [group.trials for group in samples.read(tmp_path)[0].groups] == [(1, 2), (5, 6), (3, 4)]


def test_a_resumed_sweep_of_another_loop_is_refused(tmp_path: Path) -> None:
    interrupted(tmp_path)
    others = [Trial(index=i, settings=Settings(num_workers=i + 7)) for i in range(7)]
    with pytest.raises(UsageError, match="not the same"):
        GroupedSweep(observed(), others).restore(*samples.read(tmp_path))


def test_failed_trials_of_a_whole_group_stay_failed(tmp_path: Path) -> None:
    sweep = GroupedSweep(observed(step_ms=OWN_MS, usable_cpus=8.0), PLANNED)
    group = Group(index=0, trials=(1, 2))
    sweep.add(group)
    made, _ = node(group, factor=1.0)
    made.outcome.trials[1].fail("failed", "it crashed")
    sweep.done(0, MACHINE, made)
    samples.write(tmp_path, sweep.recorded, options={}, spent_s=1.0, groups=sweep.saved)
    planned = [replace(trial, visits=[]) for trial in PLANNED]
    again = GroupedSweep(observed(step_ms=OWN_MS, usable_cpus=8.0), planned)
    again.restore(*samples.read(tmp_path))
    assert (planned[1].status, planned[1].reason) == ("failed", "it crashed")
    assert planned[2].status == "ok"


@pytest.mark.parametrize(("engine", "on_cluster"), [("ray", False), ("local", True)])
def test_a_sweep_is_resumed_where_it_was_measured(
    engine: Literal["ray", "local"], on_cluster: bool
) -> None:
    options = SweepOptions(resume=Path("run"), engine=engine)
    with pytest.raises(UsageError, match="--engine ray"):
        options.resumed(SweepOptions(target=("train.py",)).saved(), on_cluster=on_cluster)
