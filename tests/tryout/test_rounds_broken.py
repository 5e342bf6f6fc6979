"""Trials that crash, hang, end the script or may not run, and what the sweep keeps of the rest."""

from __future__ import annotations

from collections import Counter

from loaderdoctor.instrument.wire.records import SafetyRecord
from loaderdoctor.settings import Settings
from loaderdoctor.sweep import Sweep
from loaderdoctor.sweep.advise import not_advised
from loaderdoctor.sweep.grid import asked_trials, default_trials
from loaderdoctor.tryout import Options
from loaderdoctor.tryout.measuring import RERUN, Equipment
from tests.tryout.simulator import SimulatedRun, Truth, observed
from tests.tryout.sweeping import OWN, all_the_same, swept, workers_help


def test_a_crashed_trial_is_a_row_with_its_reason_and_the_sweep_goes_on() -> None:
    def two_crash(settings: Settings) -> Truth:
        if settings.num_workers == 2:
            return Truth(step_ms=1.0, crash="RuntimeError: worker killed")
        return workers_help(settings)

    script_run = SimulatedRun(two_crash, OWN, noise=0.02)
    outcome, ranking = swept(script_run)
    crashed = [t for t in outcome.trials if t.settings.num_workers == 2]
    assert crashed
    for trial in crashed:
        assert (trial.status, trial.reason) == ("failed", "RuntimeError: worker killed")
        assert sum(r.settings == trial.settings for r in script_run.log) == 1
    assert ranking.recommended is not None
    assert ranking.results[ranking.recommended].settings.num_workers == 3


def test_a_trial_that_kills_the_process_ends_the_sweep_with_its_results() -> None:
    def one_kills(settings: Settings) -> Truth:
        return Truth(step_ms=8.0, dies=settings.num_workers == 3)

    outcome, _ = swept(SimulatedRun(one_kills, OWN))
    assert outcome.ended == "script-over"
    assert "exit code 139" in (outcome.ended_reason or "")
    assert outcome.trials[0].measurements
    (failed,) = [t for t in outcome.trials if t.status == "failed"]
    assert outcome.ended_reason == f"trial {failed.index}: {failed.reason}. {RERUN}"


def test_a_trial_that_hangs_is_failed_and_ends_the_sweep() -> None:
    def one_hangs(settings: Settings) -> Truth:
        return Truth(step_ms=8.0, hangs=settings.num_workers == 3)

    script_run = SimulatedRun(one_hangs, OWN)
    outcome, _ = swept(script_run)
    assert outcome.ended == "script-over"
    assert sum(t.status == "failed" for t in outcome.trials) == 1


def test_where_the_process_may_be_restarted_the_sweep_goes_on_after_it_died() -> None:
    def one_kills(settings: Settings) -> Truth:
        return Truth(step_ms=8.0, dies=settings.num_workers == 3)

    script_run = SimulatedRun(one_kills, OWN)
    seen = observed()
    opened: list[int] = []

    def reopen() -> SimulatedRun:
        opened.append(len(script_run.log))
        script_run.ended = None
        return script_run

    trials = asked_trials(["num_workers=1,2,3"], seen)
    outcome = Sweep(
        seen,
        trials,
        Options(budget_s=30.0),
        Equipment(script_run=script_run, reopen=reopen, clock=script_run.clock),
    ).run()
    assert outcome.ended == "done"
    assert Counter(t.status for t in outcome.trials) == {"ok": 3, "failed": 1}
    assert len(opened) == 1


def test_an_interruption_keeps_what_was_measured() -> None:
    script_run = SimulatedRun(workers_help, OWN, noise=0.02, interrupt_after=40)
    outcome, ranking = swept(script_run)
    assert outcome.ended == "interrupted"
    assert sum(len(t.measurements) for t in outcome.trials) == 39  # all but the first plain window
    assert ranking.best is not None


def test_a_script_that_ends_first_keeps_what_was_measured() -> None:
    script_run = SimulatedRun(workers_help, OWN, ends_after=30)
    outcome, ranking = swept(script_run)
    assert outcome.ended == "script-over"
    assert ranking.best is not None


def test_an_interruption_before_anything_was_measured_ranks_nothing() -> None:
    outcome, ranking = swept(SimulatedRun(workers_help, OWN, interrupt_after=0))
    assert outcome.ended == "interrupted"
    assert ranking.best is None
    assert ranking.recommended is None
    assert {t.status for t in outcome.trials} == {"skipped"}


def test_a_loader_that_opens_only_once_is_measured_as_it_runs() -> None:
    script_run = SimulatedRun(all_the_same, OWN, own_reopens=False)
    outcome, ranking = swept(script_run)
    own = outcome.trials[0]
    assert own.status == "ok"
    assert len(own.of("rank")) == outcome.n_ranked_rounds
    assert ranking.results[0].wall_ms is not None
    assert "baseline-not-reopened" in {kind for kind, _ in outcome.notes}


def test_a_withheld_trial_is_a_row_with_its_reason_and_never_run() -> None:
    script_run = SimulatedRun(workers_help, OWN)
    seen = observed()
    trials = default_trials(seen)
    sweep = Sweep(
        seen,
        trials,
        Options(budget_s=30.0),
        Equipment(script_run=script_run, clock=script_run.clock),
        refused={trials[3]: "it would repeat data"},
    )
    outcome = sweep.run()
    assert (outcome.trials[3].status, outcome.trials[3].reason) == (
        "skipped",
        "it would repeat data",
    )
    assert trials[3] not in {r.settings for r in script_run.log}
    assert [w.reason for w in not_advised(sweep.ranking())] == ["it would repeat data"]


def test_a_one_pass_loader_is_never_asked_to_open_again() -> None:
    script_run = SimulatedRun(all_the_same, OWN)
    seen = observed(safety=SafetyRecord(one_pass=True))
    Sweep(
        seen,
        default_trials(seen),
        Options(budget_s=30.0),
        Equipment(script_run=script_run, clock=script_run.clock),
    ).run()
    assert all(
        r.mode == "plain" for r in script_run.log if not (r.settings and r.settings.changed())
    )
