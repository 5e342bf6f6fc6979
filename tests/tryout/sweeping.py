"""Whole sweeps over a simulated run, and the costs they find there."""

from __future__ import annotations

from loaderdoctor.instrument.wire.protocol import WindowRequest
from loaderdoctor.settings import Settings
from loaderdoctor.sweep import Sweep
from loaderdoctor.sweep.grid import default_trials
from loaderdoctor.tryout import Options, Outcome
from loaderdoctor.tryout.measuring import Equipment
from loaderdoctor.tryout.ranking import Ranking
from tests.tryout.simulator import SimulatedRun, Truth, observed

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
    script_run: SimulatedRun, trials: tuple[Settings, ...] | None = None, **options: object
) -> tuple[Outcome, Ranking]:
    seen = observed(step_ms=script_run.own.step_ms)
    sweep = Sweep(
        seen,
        trials or default_trials(seen),
        Options(**{"budget_s": 60.0, **options}),  # type: ignore[arg-type]
        Equipment(script_run=script_run, clock=script_run.clock),
    )
    outcome = sweep.run()
    return outcome, sweep.ranking()


def timed(script_run: SimulatedRun) -> list[WindowRequest]:
    """The windows asked for that rank trials, in their order."""
    return [r for r in script_run.log if r.mode == "trial" and r.trace_path is None]
