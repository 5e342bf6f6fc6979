"""The course of one sweep: its phases in a running loop, within a time budget.

    plain → calibration → ablation → ranked rounds → confirmation → more ablation → traces → plain

Traces come last: once torch.profiler has been used, its hooks into the accelerator's runtime stay
and slow small steps.

What the user sees meanwhile, on stderr: the table filling, a bar, the time left. Where stderr is no
terminal, a plain line tells each phase and round instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from loaderdoctor import format as fmt
from loaderdoctor.errors import RunError
from loaderdoctor.instrument.wire.protocol import Observed
from loaderdoctor.settings import Settings
from loaderdoctor.tryout import (
    Ablate,
    Options,
    Outcome,
    PhaseName,
    Progress,
    Trial,
    choosing,
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
            driver.carry_out(choosing.confirmed)
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


PHASES: dict[PhaseName, str] = {
    "plain": "the loop as it is",
    "calibrate": "first measurement of each trial",
    "rank": "round {round} of {n_rounds}",
    "race": "elimination, round {round}: {n_rounds} trials left",
    "ablate": "comparing with batches already in memory",
    "confirm": "confirming the candidate, round {round}",  # as many as the noise asks for
    "trace": "tracing, {round} of {n_rounds}",
    "nodes": "{round} of {n_rounds} groups done",
}
# Rows next to the table's that the display needs.
_FRAME = 6
_BAR_WIDTH = 30
# Columns next to the settings with their gaps: `>12`, `ms/step`, `windows`.
_FIGURES_WIDTH = 26


class LiveSweep:
    """Shows progress as a context manager; call `show` for each `Progress`."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, markup=False)
        self._live: Live | None = None
        self._told: str | None = None

    def __enter__(self) -> LiveSweep:
        if self._console.is_terminal:
            self._live = Live(console=self._console, transient=True, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, *raised: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    @property
    def is_drawn(self) -> bool:
        """Whether a table is being redrawn in place (else plain lines are written)."""
        return self._live is not None

    def say(self, text: str) -> None:
        """A line that stays."""
        self._console.print(Text(text, style="dim"))

    def show(self, progress: Progress) -> None:
        """The state after one more window."""
        if self._live is not None:
            self._live.update(self.render(progress), refresh=True)
            return
        line = headline(progress)
        if line != self._told:
            self._told = line
            self._console.print(Text(f"{line}, {_left(progress)}"))

    def render(self, progress: Progress) -> Group:
        """The whole display for one state."""
        bar = ProgressBar(total=1.0, completed=progress.done_share, width=_BAR_WIDTH)
        status = Table.grid(padding=(0, 2))
        status.add_row(bar, headline(progress), Text(_left(progress), style="dim"))
        width, height = self._console.size
        table = trial_table(progress, max_rows=height - _FRAME, width=width)
        return Group(table, status)


def headline(progress: Progress) -> str:
    """The phase in words."""
    return PHASES[progress.phase].format(round=progress.round, n_rounds=progress.n_rounds)


def trial_table(progress: Progress, *, max_rows: int, width: int = 80) -> Table:
    """Trials with their mean step so far, fastest first once all were measured.

    A terminal too low for all of them shows the loop's own and the fastest.
    """
    table = Table(box=None, pad_edge=False, show_edge=False, header_style="bold")
    table.add_column("#", justify="right")
    table.add_column(
        "settings", overflow="ellipsis", no_wrap=True, max_width=max(8, width - _FIGURES_WIDTH)
    )
    table.add_column("ms/step", justify="right")
    table.add_column("windows", justify="right")
    trials = list(progress.trials)
    if progress.phase not in ("plain", "calibrate"):
        trials.sort(key=lambda trial: mean_step_ms(trial) or float("inf"))
    shown = trials if len(trials) <= max_rows else _own_and_first(trials, max(2, max_rows - 1))
    fastest = min((ms for t in trials if (ms := mean_step_ms(t)) is not None), default=None)
    for trial in shown:
        step_ms = mean_step_ms(trial)
        best = step_ms is not None and step_ms == fastest
        style = "green" if best else "dim" if trial.status != "ok" or trial.dropped else ""
        marker = ">" if trial.index == progress.trial else ""
        table.add_row(
            f"{marker}{trial.index}",
            trial.settings.label() if trial.index else "as is (the loop's own)",
            trial.status if trial.status != "ok" else fmt.number(step_ms) if step_ms else "…",
            str(len(trial.measurements)) if trial.measurements else "",
            style=style,
        )
    if len(shown) < len(trials):
        table.add_row("", f"… and {len(trials) - len(shown)} more", "", "", style="dim")
    return table


def mean_step_ms(trial: Trial) -> float | None:
    """Mean step within epochs over the ranked windows, else over the first measurement."""
    measurements = trial.ranked
    if not measurements or trial.status != "ok":
        return None
    return sum(measurement.times.within_ms for measurement in measurements) / len(measurements)


def _own_and_first(trials: list[Trial], n_shown: int) -> list[Trial]:
    first = trials[:n_shown]
    own = next(trial for trial in trials if trial.index == 0)
    return first if own in first else [*first[:-1], own]


def _left(progress: Progress) -> str:
    """Traces promised to every trial may take longer than the budget: no zero is shown then."""
    return fmt.time_left(progress.left_s) if progress.left_s >= 0.5 else "past the budget"
