"""The diagnosis driver against a simulated run whose costs are known."""

from __future__ import annotations

from pathlib import Path

import pytest

from loaderdoctor.attribution.verdict import MIN_STEPS
from loaderdoctor.diagnosis.gather import Gatherer
from loaderdoctor.instrument.wire.protocol import ProfilerSchedule
from loaderdoctor.tryout.ablating import LoopEvidence
from loaderdoctor.tryout.windows import MIN_ROUNDS, sizes
from tests.attribution.builders import observed
from tests.diagnosis.simulator import SimulatedRun


def gatherer(script_run: SimulatedRun) -> Gatherer:
    evidence = LoopEvidence(
        observed=script_run.observed, sizes=sizes(script_run.observed, budget_s=45)
    )
    return Gatherer(
        script_run,
        evidence,
        trace_path=Path("trace.json"),
        profiler=ProfilerSchedule(),
        clock=lambda: script_run.now_s,
    )


def test_known_costs_are_found_and_cover_the_truth() -> None:
    script_run = SimulatedRun({"plain": 13.0, "no_input": 2.0, "no_copy": 1.5}, device="cuda:0")
    g = gatherer(script_run)
    g.gather(until=60.0, ablate=True, with_copy=True)
    found = g.evidence.ablation()
    assert found is not None and found.input_ms is not None and found.copy_ms is not None
    assert found.input_ms.low <= 11.0 <= found.input_ms.high
    assert found.input_ms.low / found.plain_ms.value > 0.05
    assert g.evidence.profiled is not None


def test_most_valuable_evidence_comes_first() -> None:
    script_run = SimulatedRun({"plain": 10.0, "no_input": 9.0})
    g = gatherer(script_run)
    g.gather(until=60.0, ablate=True, with_copy=False)
    modes = [r.mode for r in script_run.asked]
    assert modes[:3] == ["plain", "profiled", "plain"]
    assert set(modes[3:]) == {"plain", "no_input"}


@pytest.mark.parametrize(
    ("waiting", "n_threads", "deferred"),
    [(1.6, 2, True), (0.4, 2, False), (1.6, 8, False), (1.6, 1, False)],
    ids=["hard", "hardly", "few of many", "one thread"],
)
def test_ablation_waits_for_a_trial_of_threads_where_they_fight_hard(
    waiting: float, n_threads: int, deferred: bool
) -> None:
    true_ms = {"plain": 10.0, "no_input": 9.0}
    script_run = SimulatedRun(true_ms, n_threads=n_threads, waiting_threads=waiting)
    g = gatherer(script_run)
    g.gather(until=60.0, ablate=True, with_copy=False, may_defer=True)
    assert g.deferred is deferred
    assert ("no_input" not in [r.mode for r in script_run.asked]) is deferred
    assert g.evidence.profiled is not None
    unasked = gatherer(SimulatedRun(true_ms, n_threads=n_threads, waiting_threads=waiting))
    unasked.gather(until=60.0, ablate=True, with_copy=False)
    assert not unasked.deferred
    assert unasked.evidence.rounds


def test_with_an_accelerator_the_profiler_comes_last_since_it_slows_what_follows() -> None:
    script_run = SimulatedRun({"plain": 10.0, "no_input": 9.0, "no_copy": 8.0}, device="cuda:0")
    gatherer(script_run).gather(until=60.0, ablate=True, with_copy=True)
    modes = [r.mode for r in script_run.asked]
    assert modes[0] == "plain"
    assert modes[-1] == "profiled"
    assert modes.count("profiled") == 1


def test_without_ablation_the_loop_stays_as_it_is() -> None:
    script_run = SimulatedRun({"plain": 10.0}, device="cuda:0")
    gatherer(script_run).gather(until=60.0, ablate=False, with_copy=True)
    assert [r.mode for r in script_run.asked] == ["plain", "profiled", "plain", "plain"]
    assert [r.stack_samples for r in script_run.asked] == [False, False, False, True]
    assert not script_run.asked[-1].drop_batches


def test_the_loop_is_sampled_once_and_no_time_is_taken_from_it() -> None:
    script_run = SimulatedRun({"plain": 10.0, "no_input": 9.0, "no_copy": 8.0}, device="cuda:0")
    g = gatherer(script_run)
    g.gather(until=60.0, ablate=True, with_copy=True)
    sampled = [r.id for r in script_run.asked if r.stack_samples]
    assert [w.id for w in g.evidence.sampled] == sampled
    assert len(sampled) == 1
    assert not {*sampled} & {w.id for w in g.evidence.all_plain}


def test_a_window_short_of_samples_is_followed_by_more_up_to_a_limit() -> None:
    script_run = SimulatedRun({"plain": 10.0})
    script_run.n_samples = 120
    gatherer(script_run).gather(until=60.0, ablate=False, with_copy=False)
    assert sum(r.stack_samples for r in script_run.asked) == 2
    script_run = SimulatedRun({"plain": 10.0})
    script_run.n_samples = 5
    gatherer(script_run).gather(until=60.0, ablate=False, with_copy=False)
    assert sum(r.stack_samples for r in script_run.asked) == 3


def test_steps_that_would_take_what_is_left_are_not_sampled() -> None:
    script_run = SimulatedRun({"plain": 10_000.0})
    gatherer(script_run).gather(until=60.0, ablate=False, with_copy=False)
    assert not any(r.stack_samples for r in script_run.asked)


@pytest.mark.parametrize("until", [10.0, 11.0, 12.0, 13.0, 14.0, 15.0])
def test_rounds_that_settle_nothing_leave_room_for_the_loops_lines(until: float) -> None:
    """Whatever is left of the last round's time: a loop beside busy programs is seldom settled."""
    script_run = SimulatedRun({"plain": 28.0, "no_input": 24.5}, noise=0.2)
    g = gatherer(script_run)
    g.gather(until=until, ablate=True, with_copy=False)
    assert not g.settled and script_run.now_s <= until + 1.0  # by how much a window is slower
    assert script_run.asked[-1].stack_samples
    assert len(g.evidence.sampled) == 1


def test_rounds_beyond_the_budget_come_behind_the_loops_lines() -> None:
    true_ms = {"plain": 28.0, "no_input": 24.5, "no_copy": 24.0}
    script_run = SimulatedRun(true_ms, noise=0.2, device="cuda:0")
    g = gatherer(script_run)
    g.gather(until=12.0, ablate=True, with_copy=True, open_until=lambda: 20.0)
    sampled = next(n for n, r in enumerate(script_run.asked) if r.stack_samples)
    assert any(r.mode == "no_copy" for r in script_run.asked[sampled:])
    assert script_run.asked[-1].mode == "profiled"


def test_every_round_holds_each_kind_once_in_changing_order() -> None:
    script_run = SimulatedRun({"plain": 10.0, "no_input": 8.9, "no_copy": 8.5}, noise=0.2)
    g = gatherer(script_run)
    g.ablate(until=1e9, with_copy=True)
    modes = [r.mode for r in script_run.asked]
    rounds = [tuple(modes[i : i + 3]) for i in range(0, len(modes), 3)]
    assert all(sorted(r) == ["no_copy", "no_input", "plain"] for r in rounds)
    assert len(set(rounds)) > 1
    assert len(rounds) >= MIN_ROUNDS


def test_drift_over_the_run_does_not_bias_the_difference() -> None:
    script_run = SimulatedRun(
        {"plain": 10.0, "no_input": 10.0}, noise=0.002, drift_per_window=0.01, seed=3
    )
    g = gatherer(script_run)
    g.ablate(until=1e9, with_copy=False)
    found = g.evidence.ablation()
    assert found is not None and found.input_ms is not None
    assert abs(found.input_ms.value) < 0.02 * found.plain_ms.value


def test_a_script_that_ends_early_keeps_what_was_measured() -> None:
    script_run = SimulatedRun({"plain": 10.0}, ends_after=1)
    g = gatherer(script_run)
    g.gather(until=60.0, ablate=True, with_copy=False)
    assert len(g.evidence.plain) == 1
    assert g.evidence.ablation() is None


def test_a_failed_ablation_is_reported_and_its_plain_window_kept() -> None:
    script_run = SimulatedRun({"plain": 10.0}, failing=frozenset({"no_input"}))
    g = gatherer(script_run)
    g.ablate(until=60.0, with_copy=False)
    assert g.evidence.ablation() is None
    assert g.evidence.ablation_reason == "broken"
    assert len(g.evidence.plain) == 1


def test_ablation_stops_at_its_deadline() -> None:
    script_run = SimulatedRun({"plain": 10.0, "no_input": 8.9}, noise=0.01)
    g = gatherer(script_run)
    round_s = 2 * 1.5 * g.evidence.sizes.window_s
    g.ablate(until=2.5 * round_s, with_copy=False)
    assert len(script_run.asked) == 2 * 2
    assert script_run.now_s < 2.5 * round_s


def test_more_rounds_are_only_begun_if_one_as_long_as_the_last_fits() -> None:
    """Also those of a later call, which knows how long the rounds before it took."""
    script_run = SimulatedRun({"plain": 13.0, "no_input": 11.4}, noise=0.1)
    g = gatherer(script_run)
    g.gather(until=20.0, ablate=True, with_copy=False)
    n_rounds, began_s = len(g.evidence.rounds), script_run.now_s
    assert n_rounds >= MIN_ROUNDS and not g.settled
    g.ablate(until=script_run.now_s + 0.1, with_copy=False, most=30)
    assert (len(g.evidence.rounds), script_run.now_s) == (n_rounds, began_s)
    g.ablate(until=script_run.now_s + 60.0, with_copy=False, most=n_rounds + 1)
    assert len(g.evidence.rounds) == n_rounds + 1


def test_a_round_that_could_decide_nothing_is_not_begun() -> None:
    script_run = SimulatedRun({"plain": 2000.0, "no_input": 20.0})
    g = gatherer(script_run)
    g.ablate(until=12.0, with_copy=False)  # windows of 8 s
    assert not script_run.asked
    assert g.evidence.ablation_reason == "there was no time for it within the budget"


@pytest.mark.parametrize("step_ms", [1000.0, 2000.0, 5000.0])
def test_slow_steps_pass_the_budget_by_no_more_than_they_must(step_ms: float) -> None:
    script_run = SimulatedRun({"plain": step_ms, "no_input": 20.0})
    g = gatherer(script_run)
    g.gather(until=20.0, first_until=39.0, ablate=True, with_copy=False)
    assert g.evidence.plain and g.evidence.profiled is not None
    assert g.evidence.plain[0].n_steps >= MIN_STEPS  # enough for a verdict
    fewest_s = 1.5 * (5 + 5) * step_ms / 1e3  # one plain window, and one profiled
    assert script_run.now_s <= 1.1 * max(39.0, fewest_s)  # windows vary


@pytest.mark.parametrize("workers", [1, 3, 4, 7])
@pytest.mark.parametrize("step_ms", [0.5, 13.0, 400.0, 10_000.0])
def test_windows_are_whole_worker_cycles(workers: int, step_ms: float) -> None:
    found = sizes(
        observed(step_ms=step_ms, n=20, workers=workers, steps_per_epoch=None), budget_s=45
    )
    assert found.n_steps % workers == 0
    assert found.n_profiled_steps % workers == 0
    assert found.n_steps >= 4


def test_short_epochs_are_measured_whole() -> None:
    found = sizes(observed(step_ms=48.0, n=20, workers=8, steps_per_epoch=4), budget_s=45)
    assert found.n_steps % 4 == 0
    assert found.n_profiled_steps % 4 == 0


@pytest.mark.parametrize("budget_s", [10.0, 45.0, 120.0])
@pytest.mark.parametrize("epoch_s", [0.5, 1.0, 1.9, 2.5, 3.0, 30.0])
def test_three_rounds_and_the_windows_before_them_fit_the_budget(
    epoch_s: float, budget_s: float
) -> None:
    """A window of a whole epoch must not be so long that one round is all there is time for."""
    found = sizes(
        observed(step_ms=25.0, n=20, steps_per_epoch=round(epoch_s / 0.025)), budget_s=budget_s
    )
    windows = 3 + 3 * 2  # plain, profiled, plain; and as many again are dropped
    assert windows * 1.5 * found.window_s <= 0.75 * budget_s


def test_step_time_is_the_mean_over_whole_cycles() -> None:
    slow_then_fast = observed(step_ms=1.0, n=8, workers=4, steps_per_epoch=None)
    waits = (255, 1, 1, 1, 255, 1, 1, 1)
    varied = type(slow_then_fast)(
        **{
            f: getattr(slow_then_fast, f)
            for f in slow_then_fast.__struct_fields__
            if f != "step_ns"
        },
        step_ns=tuple(w * 1_000_000 for w in waits),
    )
    assert sizes(varied, budget_s=45).step_s == pytest.approx(0.0645)
