"""The sweep over a simulated bench whose costs are known: what it picks, and how it gets there."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from loaderdoctor.instrument.bench import BenchLike
from loaderdoctor.instrument.protocol import SafetyRecord, WindowRequest
from loaderdoctor.settings import Settings
from loaderdoctor.sweep.advise import withheld
from loaderdoctor.sweep.grid import asked_trials, default_trials
from loaderdoctor.sweep.outcome import Options, Outcome, Progress
from loaderdoctor.sweep.rank import Ranking
from loaderdoctor.sweep.rounds import TRACE_OVERRUN_SHARE, Sweep
from loaderdoctor.sweep.visits import MEMORY_READINGS, RERUN
from tests.sweep.simulator import SimulatedBench, Truth, observed

OWN = Truth(step_ms=10.0)


def workers_help(settings: Settings) -> Truth:
    """Two workers halve the step; more workers only cost start-up."""
    workers = settings.num_workers or 0
    if settings.background == "host":
        return Truth(step_ms=10.2)
    step_ms = {0: 10.0, 1: 7.0, 2: 5.0, 3: 5.0}[workers]
    boundary_ms = 0.0 if settings.persistent_workers else 60.0
    return Truth(step_ms=step_ms, startup_s=0.05 * workers, boundary_ms=boundary_ms)


def all_the_same(settings: Settings) -> Truth:
    return Truth(step_ms=10.0, startup_s=0.02)


def swept(
    bench: SimulatedBench, trials: tuple[Settings, ...] | None = None, **options: object
) -> tuple[Outcome, Ranking]:
    seen = observed(step_ms=bench.own.step_ms)
    sweep = Sweep(
        bench,
        seen,
        trials or default_trials(seen),
        Options(**{"budget_s": 60.0, **options}),  # type: ignore[arg-type]
        clock=bench.clock,
    )
    outcome = sweep.run()
    return outcome, sweep.ranking()


def timed(bench: SimulatedBench) -> list[WindowRequest]:
    return [r for r in bench.log if r.mode == "trial" and r.trace_path is None]


@pytest.mark.parametrize("seed", range(5))
def test_the_known_winner_is_found_and_the_simplest_of_its_equals_recommended(seed: int) -> None:
    bench = SimulatedBench(workers_help, OWN, seed=seed, noise=0.02)
    _, ranking = swept(bench, seed=seed)
    assert ranking.recommended is not None
    picked = ranking.results[ranking.recommended].settings
    assert (picked.num_workers, picked.prefetch_factor) == (2, 2)
    assert picked.persistent_workers  # the other pays 60 ms on each epoch of 100 steps
    assert ranking.confirmed
    assert ranking.gain_ms is not None
    assert ranking.gain_ms.low < 5.0 < ranking.gain_ms.high
    assert not {0} & {ranking.best, *ranking.tied_with}


@pytest.mark.parametrize("seed", range(10))
def test_where_nothing_differs_nothing_is_recommended(seed: int) -> None:
    _, ranking = swept(SimulatedBench(all_the_same, OWN, seed=seed, noise=0.03), seed=seed)
    assert ranking.best is not None
    assert ranking.recommended is None
    assert not ranking.worth_changing


def test_settings_that_cannot_be_told_apart_are_tied() -> None:
    def pairs(settings: Settings) -> Truth:
        return Truth(step_ms=5.0 if settings.prefetch_factor == 4 else 6.0)

    trials = (
        Settings(),
        Settings(num_workers=1, prefetch_factor=4),
        Settings(num_workers=2, prefetch_factor=4),
        Settings(num_workers=1, prefetch_factor=2),
    )
    _, ranking = swept(SimulatedBench(pairs, OWN, seed=3, noise=0.02), trials)
    assert {ranking.best, *ranking.tied_with} == {1, 2}
    assert ranking.recommended == 1


def test_a_slow_drift_does_not_change_the_winner() -> None:
    bench = SimulatedBench(workers_help, OWN, noise=0.01, drift_per_s=0.01)
    _, ranking = swept(bench)
    assert ranking.recommended is not None
    assert ranking.results[ranking.recommended].settings.num_workers == 2
    assert ranking.drift is not None
    assert ranking.drift > 1.1


def test_a_cold_start_is_not_held_against_the_loops_own_settings() -> None:
    bench = SimulatedBench(all_the_same, OWN, noise=0.01, slow_start=5.0)
    _, ranking = swept(bench)
    assert ranking.recommended is None
    own = ranking.results[0].wall_ms
    assert own is not None
    assert own.high < 12.0


def test_the_loops_own_settings_come_first_and_last_and_rounds_are_shuffled() -> None:
    bench = SimulatedBench(all_the_same, OWN)
    outcome, _ = swept(bench)
    n = len(outcome.trials)
    requests = timed(bench)
    assert bench.log[0].mode == "plain"
    assert bench.log[-1].mode == "plain"
    assert requests[0].settings == Settings()
    rounds = [requests[i * n : (i + 1) * n] for i in range(outcome.n_ranked_rounds + 1)]
    for one in rounds:
        assert {r.settings for r in one} == {t.settings for t in outcome.trials}
    assert rounds[-1][-1].settings == Settings()
    orders = {tuple(r.settings for r in one) for one in rounds}
    assert len(orders) == len(rounds)


def test_the_same_seed_gives_the_same_order() -> None:
    logs = []
    for _ in range(2):
        bench = SimulatedBench(workers_help, OWN, noise=0.02)
        swept(bench, seed=7)
        logs.append([(r.mode, r.settings, r.n_steps) for r in bench.log])
    assert logs[0] == logs[1]


def test_every_trial_is_visited_several_times_for_whole_worker_cycles_or_epochs() -> None:
    bench = SimulatedBench(workers_help, OWN, noise=0.02)
    outcome, _ = swept(bench)
    assert outcome.n_ranked_rounds >= 3
    for trial in outcome.trials:
        assert len(trial.of("rank")) == outcome.n_ranked_rounds
    for request in timed(bench):
        assert request.settings is not None
        in_turn = request.n_steps % max(1, request.settings.num_workers or 0) == 0
        assert in_turn or request.n_steps % 100 == 0


def test_windows_hold_whole_accumulation_cycles() -> None:
    seen = observed(accumulation=4)
    bench = SimulatedBench(all_the_same, OWN)
    trials = asked_trials(["num_workers=0,3"], seen)
    Sweep(bench, seen, trials, Options(budget_s=30.0), clock=bench.clock).run()
    for request in timed(bench):
        assert request.settings is not None
        assert request.n_steps % (12 if request.settings.num_workers else 4) == 0


@pytest.mark.parametrize("budget_s", [10.0, 30.0, 60.0, 120.0])
@pytest.mark.parametrize("step_ms", [0.5, 10.0, 80.0])
def test_the_budget_is_respected(budget_s: float, step_ms: float, tmp_path: Path) -> None:
    def slower_opening(settings: Settings) -> Truth:
        return Truth(step_ms=step_ms, startup_s=0.1, boundary_ms=100.0)

    bench = SimulatedBench(slower_opening, Truth(step_ms=step_ms), noise=0.02)
    outcome, _ = swept(bench, budget_s=budget_s, trace_dir=tmp_path)
    # the loop's own trace and the last plain window are measured in any case
    assert bench.now < budget_s * (1.05 + TRACE_OVERRUN_SHARE) + 3.0
    if outcome.n_ranked_rounds < 3:
        assert "budget-too-short" in {kind for kind, _ in outcome.notes}


def test_a_trial_far_slower_than_thought_does_not_eat_the_budget() -> None:
    def one_crawls(settings: Settings) -> Truth:
        return Truth(step_ms=400.0 if settings.num_workers == 3 else 10.0, startup_s=0.05)

    bench = SimulatedBench(one_crawls, OWN)
    outcome, ranking = swept(bench, budget_s=40.0)
    assert bench.now < 90.0
    crawling = [t for t in outcome.trials if t.settings.num_workers == 3]
    assert all(t.visits for t in crawling)
    assert ranking.recommended is None


def test_few_seconds_drop_the_slowest_trials_and_say_so() -> None:
    def spread(settings: Settings) -> Truth:
        return Truth(step_ms=50.0 + 40.0 * (settings.num_workers or 0), startup_s=0.3)

    bench = SimulatedBench(spread, Truth(step_ms=50.0))
    outcome, ranking = swept(bench, budget_s=30.0)
    dropped = [t for t in outcome.trials if t.dropped]
    assert dropped
    assert not outcome.trials[0].dropped
    assert min(t.settings.num_workers or 0 for t in dropped) >= 1
    assert "budget-too-short" in {kind for kind, _ in outcome.notes}
    assert not {t.index for t in dropped} & {ranking.best, *ranking.tied_with}


def test_a_trial_that_was_never_reached_is_skipped_and_says_why() -> None:
    outcome, _ = swept(SimulatedBench(all_the_same, OWN), budget_s=1.0)
    unreached = [t for t in outcome.trials if not t.visits]
    assert unreached
    assert {t.status for t in unreached} == {"skipped"}
    assert all("not reached" in (t.reason or "") for t in unreached)


def test_a_fixed_number_of_rounds_is_kept_to() -> None:
    bench = SimulatedBench(all_the_same, OWN)
    outcome, _ = swept(bench, n_rounds=2)
    assert outcome.n_ranked_rounds == 2
    assert all(len(t.of("rank")) == 2 for t in outcome.trials)


def test_the_grid_of_a_gpu_machine_fits_the_default_budget(tmp_path: Path) -> None:
    def like_an_h100(settings: Settings) -> Truth:
        """16 cores: workers until 8, pinning a little more; resident is fastest."""
        workers = settings.num_workers or 0
        step_ms = 3.0 if settings.resident else max(4.0, 30.0 / max(1, workers))
        step_ms *= 0.9 if settings.pin_memory and settings.non_blocking else 1.0
        return Truth(step_ms=step_ms, startup_s=0.03 * workers, boundary_ms=20.0 * workers)

    own = Settings(num_workers=0, pin_memory=False)
    seen = observed(step_ms=30.0, own=own, device="cuda:0", usable_cpus=16, steps_per_epoch=400)
    bench = SimulatedBench(like_an_h100, Truth(step_ms=30.0), noise=0.02)
    sweep = Sweep(
        bench,
        seen,
        default_trials(seen),
        Options(budget_s=120.0, trace_dir=tmp_path),
        clock=bench.clock,
    )
    outcome, ranking = sweep.run(), sweep.ranking()
    assert len(outcome.trials) >= 24
    assert bench.now < 125.0
    assert outcome.n_ranked_rounds >= 3
    assert ranking.recommended is not None
    assert ranking.results[ranking.recommended].settings.resident
    assert ranking.confirmed


def test_a_crashed_trial_is_a_row_with_its_reason_and_the_sweep_goes_on() -> None:
    def two_crash(settings: Settings) -> Truth:
        if settings.num_workers == 2:
            return Truth(step_ms=1.0, crash="RuntimeError: worker killed")
        return workers_help(settings)

    bench = SimulatedBench(two_crash, OWN, noise=0.02)
    outcome, ranking = swept(bench)
    crashed = [t for t in outcome.trials if t.settings.num_workers == 2]
    assert crashed
    for trial in crashed:
        assert (trial.status, trial.reason) == ("failed", "RuntimeError: worker killed")
        assert sum(r.settings == trial.settings for r in bench.log) == 1
    assert ranking.recommended is not None
    assert ranking.results[ranking.recommended].settings.num_workers == 3


def test_a_trial_that_kills_the_process_ends_the_sweep_with_its_results() -> None:
    def one_kills(settings: Settings) -> Truth:
        return Truth(step_ms=8.0, dies=settings.num_workers == 3)

    outcome, _ = swept(SimulatedBench(one_kills, OWN))
    assert outcome.ended == "script-over"
    assert "exit code 139" in (outcome.ended_reason or "")
    assert outcome.trials[0].visits
    (failed,) = [t for t in outcome.trials if t.status == "failed"]
    assert outcome.ended_reason == f"trial {failed.index}: {failed.reason}. {RERUN}"


def test_memory_of_a_trial_is_read_until_it_is_known() -> None:
    bench = SimulatedBench(lambda settings: Truth(step_ms=8.0), OWN)
    swept(bench)
    visits = Counter(r.settings for r in timed(bench))
    read = Counter(r.settings for r in timed(bench) if r.host_memory)
    assert set(read) == set(visits)
    assert max(read.values()) == MEMORY_READINGS < max(visits.values())


def test_a_preset_that_runs_out_of_time_has_measured_from_its_baseline_up() -> None:
    bench = SimulatedBench(lambda settings: Truth(step_ms=900.0), Truth(step_ms=900.0))
    outcome, _ = swept(bench, budget_s=40.0, keep_all=True)
    visited = [trial.index for trial in outcome.trials if trial.visits]
    assert 1 < len(visited) < len(outcome.trials)
    assert visited == list(range(len(visited)))


def test_a_trial_that_hangs_is_failed_and_ends_the_sweep() -> None:
    def one_hangs(settings: Settings) -> Truth:
        return Truth(step_ms=8.0, hangs=settings.num_workers == 3)

    bench = SimulatedBench(one_hangs, OWN)
    outcome, _ = swept(bench)
    assert outcome.ended == "script-over"
    assert sum(t.status == "failed" for t in outcome.trials) == 1


def test_where_the_process_may_be_restarted_the_sweep_goes_on_after_it_died() -> None:
    def one_kills(settings: Settings) -> Truth:
        return Truth(step_ms=8.0, dies=settings.num_workers == 3)

    bench = SimulatedBench(one_kills, OWN)
    seen = observed()
    opened: list[int] = []

    def reopen() -> SimulatedBench:
        opened.append(len(bench.log))
        bench.ended = None
        return bench

    trials = asked_trials(["num_workers=1,2,3"], seen)
    outcome = Sweep(
        bench, seen, trials, Options(budget_s=30.0), clock=bench.clock, reopen=reopen
    ).run()
    assert outcome.ended == "done"
    assert Counter(t.status for t in outcome.trials) == {"ok": 3, "failed": 1}
    assert len(opened) == 1


def test_an_interruption_keeps_what_was_measured() -> None:
    bench = SimulatedBench(workers_help, OWN, noise=0.02, interrupt_after=40)
    outcome, ranking = swept(bench)
    assert outcome.ended == "interrupted"
    assert sum(len(t.visits) for t in outcome.trials) == 39  # all but the first plain window
    assert ranking.best is not None


def test_a_script_that_ends_first_keeps_what_was_measured() -> None:
    bench = SimulatedBench(workers_help, OWN, ends_after=30)
    outcome, ranking = swept(bench)
    assert outcome.ended == "script-over"
    assert ranking.best is not None


def test_an_interruption_before_anything_was_measured_ranks_nothing() -> None:
    outcome, ranking = swept(SimulatedBench(workers_help, OWN, interrupt_after=0))
    assert outcome.ended == "interrupted"
    assert ranking.best is None
    assert ranking.recommended is None
    assert {t.status for t in outcome.trials} == {"skipped"}


def test_a_loader_that_opens_only_once_is_measured_as_it_runs() -> None:
    bench = SimulatedBench(all_the_same, OWN, own_reopens=False)
    outcome, ranking = swept(bench)
    own = outcome.trials[0]
    assert own.status == "ok"
    assert len(own.of("rank")) == outcome.n_ranked_rounds
    assert ranking.results[0].wall_ms is not None
    assert "baseline-not-reopened" in {kind for kind, _ in outcome.notes}


def test_a_withheld_trial_is_a_row_with_its_reason_and_never_run() -> None:
    bench = SimulatedBench(workers_help, OWN)
    seen = observed()
    trials = default_trials(seen)
    sweep = Sweep(
        bench,
        seen,
        trials,
        Options(budget_s=30.0),
        clock=bench.clock,
        withheld={trials[3]: "it would repeat data"},
    )
    outcome = sweep.run()
    assert (outcome.trials[3].status, outcome.trials[3].reason) == (
        "skipped",
        "it would repeat data",
    )
    assert trials[3] not in {r.settings for r in bench.log}
    assert [w.reason for w in withheld(sweep.ranking())] == ["it would repeat data"]


def test_a_one_pass_loader_is_never_asked_to_open_again() -> None:
    bench = SimulatedBench(all_the_same, OWN)
    seen = observed(safety=SafetyRecord(one_pass=True))
    Sweep(bench, seen, default_trials(seen), Options(budget_s=30.0), clock=bench.clock).run()
    assert all(r.mode == "plain" for r in bench.log if not (r.settings and r.settings.changed()))


def test_traces_are_taken_after_all_timing_and_the_loops_own_first(tmp_path: Path) -> None:
    bench = SimulatedBench(workers_help, OWN, noise=0.02)
    outcome, _ = swept(bench, trace_dir=tmp_path)
    is_traced = [r.trace_path is not None for r in bench.log]
    first = is_traced.index(True)
    assert all(is_traced[first:-1])
    assert bench.log[first].mode == "profiled"
    assert bench.log[-1].mode == "plain"
    assert outcome.trials[0].profiles
    paths = [r.trace_path for r in bench.log if r.trace_path]
    assert len(set(paths)) == len(paths)


def test_ablation_has_its_fewest_rounds_before_ranking_and_more_before_traces(
    tmp_path: Path,
) -> None:
    simulated = SimulatedBench(workers_help, OWN)
    seen = observed()
    called: list[tuple[int, float, bool]] = []

    def ablate(bench: BenchLike, left_s: float, *, fewest: bool) -> None:
        called.append((len(simulated.log), left_s, fewest))

    sweep = Sweep(
        simulated,
        seen,
        default_trials(seen),
        Options(budget_s=60.0, trace_dir=tmp_path),
        clock=simulated.clock,
        ablate=ablate,
    )
    outcome = sweep.run()
    (first, first_s, first_fewest), (at, left_s, fewest) = called
    assert first_fewest and not fewest
    assert first == 1 + len(outcome.trials)  # the loop as it is, and each trial once
    assert first_s == pytest.approx(0.12 * 60.0)
    assert left_s > 0
    assert not any(r.trace_path for r in simulated.log[:at])
    assert all(r.trace_path for r in simulated.log[at:-1])


def test_no_timed_window_is_a_traced_one(tmp_path: Path) -> None:
    outcome, _ = swept(SimulatedBench(workers_help, OWN), trace_dir=tmp_path)
    for trial in outcome.trials:
        assert all(visit.window.trace_path is None for visit in trial.visits)


def test_every_boundary_is_timed_at_least_once_and_spread_over_the_epoch() -> None:
    bench = SimulatedBench(workers_help, OWN)
    _, ranking = swept(bench)
    for result in ranking.results[1:]:
        truth = workers_help(result.settings)
        assert result.boundary_ms == pytest.approx(truth.boundary_ms)
        assert result.wall_ms is not None
        assert result.wall_ms.value == pytest.approx(truth.step_ms + truth.boundary_ms / 100)
        assert result.epoch_s == pytest.approx(result.wall_ms.value / 10)
        assert result.samples_per_s == pytest.approx(64_000 / result.wall_ms.value)


def test_progress_is_told_after_each_window_and_never_goes_back() -> None:
    told: list[Progress] = []
    bench = SimulatedBench(workers_help, OWN)
    seen = observed()
    Sweep(
        bench,
        seen,
        default_trials(seen),
        Options(budget_s=30.0),
        clock=bench.clock,
        on_progress=told.append,
    ).run()
    assert len(told) == len(bench.log)
    shares = [p.done_share for p in told]
    assert shares == sorted(shares)
    assert {p.phase for p in told} == {"plain", "calibrate", "rank", "confirm"}
