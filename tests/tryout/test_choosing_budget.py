"""A sweep's seconds: kept to, spent on what may win, and what is dropped for want of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from loaderdoctor.settings import Settings
from loaderdoctor.sweep import Sweep
from loaderdoctor.sweep.grid import default_trials
from loaderdoctor.tryout import Options
from loaderdoctor.tryout.choosing import TRACE_OVERRUN_SHARE
from loaderdoctor.tryout.measuring import Equipment
from tests.tryout.simulator import SimulatedRun, Truth, observed
from tests.tryout.sweeping import OWN, all_the_same, swept


@pytest.mark.parametrize("budget_s", [10.0, 30.0, 60.0, 120.0])
@pytest.mark.parametrize("step_ms", [pytest.param(0.5, marks=pytest.mark.slow), 10.0, 80.0])
def test_the_budget_is_respected(budget_s: float, step_ms: float, tmp_path: Path) -> None:
    def slower_opening(settings: Settings) -> Truth:
        return Truth(step_ms=step_ms, startup_s=0.1, boundary_ms=100.0)

    script_run = SimulatedRun(slower_opening, Truth(step_ms=step_ms), noise=0.02)
    outcome, _ = swept(script_run, budget_s=budget_s, trace_dir=tmp_path)
    # the loop's own trace and the last plain window are measured in any case
    assert script_run.now < budget_s * (1.05 + TRACE_OVERRUN_SHARE) + 3.0
    if outcome.n_ranked_rounds < 3:
        assert "budget-too-short" in {kind for kind, _ in outcome.notes}


def test_a_trial_far_slower_than_thought_does_not_eat_the_budget() -> None:
    def one_crawls(settings: Settings) -> Truth:
        return Truth(step_ms=400.0 if settings.num_workers == 3 else 10.0, startup_s=0.05)

    script_run = SimulatedRun(one_crawls, OWN)
    outcome, ranking = swept(script_run, budget_s=40.0)
    assert script_run.now < 90.0
    crawling = [t for t in outcome.trials if t.settings.num_workers == 3]
    assert all(t.measurements for t in crawling)
    assert ranking.recommended is None


def test_few_seconds_drop_the_slowest_trials_and_say_so() -> None:
    def spread(settings: Settings) -> Truth:
        return Truth(step_ms=50.0 + 40.0 * (settings.num_workers or 0), startup_s=0.3)

    script_run = SimulatedRun(spread, Truth(step_ms=50.0))
    outcome, ranking = swept(script_run, budget_s=30.0)
    dropped = [t for t in outcome.trials if t.dropped]
    assert dropped
    assert not outcome.trials[0].dropped
    assert min(t.settings.num_workers or 0 for t in dropped) >= 1
    assert "budget-too-short" in {kind for kind, _ in outcome.notes}
    assert not {t.index for t in dropped} & {ranking.best, *ranking.tied_with}


def test_a_trial_that_was_never_reached_is_skipped_and_says_why() -> None:
    outcome, _ = swept(SimulatedRun(all_the_same, OWN), budget_s=1.0)
    unreached = [t for t in outcome.trials if not t.measurements]
    assert unreached
    assert {t.status for t in unreached} == {"skipped"}
    assert all("not reached" in (t.reason or "") for t in unreached)


def test_a_fixed_number_of_rounds_is_kept_to() -> None:
    script_run = SimulatedRun(all_the_same, OWN)
    outcome, _ = swept(script_run, n_rounds=2)
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
    script_run = SimulatedRun(like_an_h100, Truth(step_ms=30.0), noise=0.02)
    sweep = Sweep(
        seen,
        default_trials(seen),
        Options(budget_s=120.0, trace_dir=tmp_path),
        Equipment(script_run=script_run, clock=script_run.clock),
    )
    outcome, ranking = sweep.run(), sweep.ranking()
    assert len(outcome.trials) >= 24
    assert script_run.now < 125.0
    assert outcome.n_ranked_rounds >= 3
    assert ranking.recommended is not None
    assert ranking.results[ranking.recommended].settings.resident
    assert ranking.confirmed


def test_a_preset_that_runs_out_of_time_has_measured_from_its_baseline_up() -> None:
    script_run = SimulatedRun(lambda settings: Truth(step_ms=900.0), Truth(step_ms=900.0))
    outcome, _ = swept(script_run, budget_s=40.0, keep_all=True)
    measured = [trial.index for trial in outcome.trials if trial.measurements]
    assert 1 < len(measured) < len(outcome.trials)
    assert measured == list(range(len(measured)))
