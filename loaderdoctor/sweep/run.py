"""The course of one sweep: its phases in a running loop, within a time budget.

    plain → calibration → ablation → ranked rounds → confirmation → more ablation → traces → plain

Traces come last: once torch.profiler has been used, its hooks into the accelerator's runtime stay
and slow small steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from loaderdoctor.errors import RunError
from loaderdoctor.instrument.wire.protocol import Observed
from loaderdoctor.settings import Settings
from loaderdoctor.tryout import (
    Ablate,
    Options,
    Outcome,
    Trial,
    choosing,
    confirming,
    elimination,
    windows,
)
from loaderdoctor.tryout.measuring import Equipment, OverError
from loaderdoctor.tryout.ranking import Ranking
from loaderdoctor.tryout.rounds import Driver, Loop


class Sweep:
    """Drives one sweep over a script run; `run` it once.

    `refused` are trials that must not be run, with the reason. `ablate` is called with the script
    run and the seconds it may take: before the rounds, and again with what they leave.
    """

    def __init__(
        self,
        observed: Observed,
        trials: Sequence[Settings | Trial],
        options: Options,
        equipment: Equipment,
        *,
        refused: Mapping[Settings, str] = MappingProxyType({}),
        ablate: Ablate | None = None,
    ) -> None:
        loop = Loop.of(observed)
        made = [
            one if isinstance(one, Trial) else Trial(index=i, settings=one)
            for i, one in enumerate(trials)
        ]
        for trial in made:
            if trial.script is None:
                trial.fit(loop.own, loop.steps_per_epoch)
            if trial.alive and trial.settings in refused:
                trial.fail("skipped", refused[trial.settings])
        self._driver = driver = Driver(loop, made, options, equipment, ablated=ablate is not None)
        self.outcome, self.known = driver.outcome, driver.known
        self._options, self._ablate = options, ablate

    def ranking(self) -> Ranking:
        """The ranking of what has been measured so far."""
        return self.known().ranking()

    def run(self) -> Outcome:
        """Every phase; ends early without an exception where no more can be measured.

        A trial that takes the measuring process down ends it too, where it can't be reopened.
        """
        outcome = self.outcome
        try:
            self._phases()
        except (OverError, RunError) as over:
            outcome.ended, outcome.ended_reason = "script-over", str(over)
        except KeyboardInterrupt as interrupt:
            outcome.ended, outcome.interrupt = "interrupted", interrupt
            outcome.ended_reason = "interrupted: what was measured until then stands"
        for trial in outcome.trials:
            if trial.status == "ok" and not trial.measurements and trial.same_as is None:
                trial.fail("skipped", f"not reached: {outcome.ended_reason or 'budget over'}")
        return outcome

    def _phases(self) -> None:
        driver, options = self._driver, self._options
        self._plain()
        driver.carry_out(choosing.calibrate)
        # Verdict and claims ask what loading costs: not what the rounds leave decides that.
        first_s = windows.FIRST_ABLATE_SHARE * options.budget_s
        self._compare(first_s, fewest=not options.keep_all)
        if options.search == "auto":
            self.outcome.grid_steps = choosing.grid_steps(self.known())
            self.outcome.elimination = driver.carry_out(elimination.eliminate).reason
        elif options.part != "confirm":
            self.outcome.n_ranked_rounds = choosing.rounds_done(self.known())
            driver.carry_out(choosing.ranked)
        if options.part != "rank":
            driver.carry_out(confirming.confirmed)
        if not options.keep_all:
            self._compare(self.known().left_s(windows.ABLATE_SHARE), fewest=False)
        driver.carry_out(choosing.traced)
        self._plain()

    def _plain(self) -> None:
        """One window of the loop as it is, nothing opened again: the check on trial 0."""
        cost = self.known().cost(self.outcome.trials[0])
        self._driver.measurer.plain(cost.steps(choosing.CALIBRATE_WINDOW_S), cost)
        self._driver.tell("plain", 1, 1, None)

    def _compare(self, left_s: float, *, fewest: bool) -> None:
        if self._ablate is not None:
            self._driver.tell("ablate", 1, 1, 0)
            self._ablate(self._driver.measurer.script_run, left_s, fewest=fewest)
