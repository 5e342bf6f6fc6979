"""Trials in processes of their own: one process a visit, and a dead one is a result."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from loaderdoctor.errors import RunError
from loaderdoctor.instrument.command.endings import NOT_BEGUN
from loaderdoctor.instrument.command.launch_config import Target as Script
from loaderdoctor.instrument.command.launched_run import ScriptRunLike
from loaderdoctor.instrument.wire.protocol import WindowDone, WindowRequest
from loaderdoctor.settings import Settings
from loaderdoctor.sweep import Sweep
from loaderdoctor.tryout import Options, Outcome, Place, Trial
from loaderdoctor.tryout.measuring import Equipment, FreshRuns
from tests.tryout.simulator import SimulatedRun, Truth, observed

OWN = Truth(step_ms=10.0)


def truth(settings: Settings) -> Truth:
    workers = settings.num_workers or 0
    return Truth(step_ms=10.0 - 2 * workers, dies=workers == 3)


class Processes:
    """Opens simulated processes and remembers them."""

    def __init__(self, clock: SimulatedRun) -> None:
        self.opened: list[tuple[Script | None, SimulatedRun]] = []
        self._clock = clock
        self.refuse = False

    @contextmanager
    def __call__(self, script: Script | None) -> Iterator[ScriptRunLike]:
        if self.refuse:
            raise RunError("train.py: the script failed with exit code 3 before its loop was warm.")
        script_run = SimulatedRun(truth, OWN, noise=0.01, seed=len(self.opened))
        script_run.observed = observed()
        self.opened.append((script, script_run))
        yield script_run
        self._clock.now += 8.0 + script_run.now


def isolated(place: Place, n_workers: tuple[int, ...]) -> tuple[Outcome, Processes, Sweep]:
    main = SimulatedRun(truth, OWN, noise=0.01)
    processes = Processes(main)
    trials = [
        Trial(index=i, settings=Settings(num_workers=n) if n else Settings(), place=place)
        for i, n in enumerate(n_workers)
    ]
    sweep = Sweep(
        observed(),
        trials,
        Options(budget_s=900.0, n_rounds=3),
        Equipment(script_run=main, fresh=FreshRuns(processes), clock=main.clock),
    )
    return sweep.run(), processes, sweep


def test_each_visit_has_a_process_of_its_own_and_measures_one_window() -> None:
    outcome, processes, sweep = isolated("process", (0, 1, 2))
    n_measurements = sum(len(trial.measurements) for trial in outcome.trials)
    assert len(processes.opened) == n_measurements
    assert all(len(script_run.log) == 1 for _, script_run in processes.opened)
    assert sweep.ranking().recommended == 2


def test_figures_of_processes_agree_with_those_of_the_running_loop() -> None:
    walls = []
    for place in ("loop", "process"):
        _, _, sweep = isolated(place, (0, 1, 2))
        walls.append([r.wall_ms.value for r in sweep.ranking().results if r.wall_ms is not None])
    for inside, outside in zip(*walls, strict=True):
        assert abs(inside / outside - 1) < 0.03


def test_a_process_that_dies_is_a_failed_trial_and_the_sweep_goes_on() -> None:
    outcome, _, _ = isolated("process", (0, 3, 1))
    assert outcome.ended == "done"
    assert [trial.status for trial in outcome.trials] == ["ok", "failed", "ok"]
    assert "exit code 139" in (outcome.trials[1].reason or "")


def test_a_process_that_never_gets_warm_is_a_failed_trial() -> None:
    main = SimulatedRun(truth, OWN)
    processes = Processes(main)
    processes.refuse = True
    trials = [
        Trial(index=0, settings=Settings()),
        Trial(index=1, settings=Settings(), place="process", script=Script(script="other.py")),
    ]
    options = Options(budget_s=60.0)
    fresh = FreshRuns(processes)
    outcome = Sweep(
        observed(), trials, options, Equipment(script_run=main, fresh=fresh, clock=main.clock)
    ).run()
    assert outcome.trials[1].status == "failed"
    assert "exit code 3" in (outcome.trials[1].reason or "")


def test_a_script_of_its_own_brings_its_own_batch_and_epoch() -> None:
    main = SimulatedRun(truth, OWN)
    processes = Processes(main)
    script = Script(script="train.py", args=("--batch-size", "64"))
    trials = [
        Trial(index=0, settings=Settings()),
        Trial(index=1, settings=Settings(), place="process", script=script),
    ]
    options = Options(budget_s=300.0, n_rounds=3)
    sweep = Sweep(
        observed(),
        trials,
        options,
        Equipment(script_run=main, fresh=FreshRuns(processes), clock=main.clock),
    )
    outcome = sweep.run()
    assert {opened for opened, _ in processes.opened} == {script}
    assert outcome.trials[1].steps_per_epoch == 100
    assert outcome.trials[1].samples_per_step == 64.0


class Ending(SimulatedRun):
    """A script that ends by itself while a trial is asked for."""

    def _one(self, request: WindowRequest, timeout_s: float | None) -> WindowDone | None:
        done = super()._one(request, timeout_s)
        if done is not None or request.mode != "trial":
            return done
        return WindowDone(id=request.id, mode="trial", status="skipped", reason=NOT_BEGUN)


def test_the_end_of_the_script_is_no_result_of_the_settings_asked_for_then() -> None:
    run = Ending(truth, OWN, noise=0.01, ends_after=2)
    run.observed = observed()
    trials = [Trial(index=i, settings=Settings(num_workers=i or None)) for i in range(3)]
    equipment = Equipment(script_run=run, clock=run.clock)
    outcome = Sweep(observed(), trials, Options(budget_s=900.0, n_rounds=3), equipment).run()
    assert len(run.log) == 3  # nothing more is asked of a script that has ended
    assert [t.reason for t in outcome.trials[1:]] == [
        "not reached: the script ended before the sweep did"
    ] * 2
    assert outcome.ended == "script-over"
