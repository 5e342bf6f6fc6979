"""What is known while settings are tried, what may be measured next, and the driver of the rounds.

A policy is a pure function from what is `Known` (and the round it chose last) to the next `Round`,
or to `Done`: it runs nothing and changes nothing. What is compared is measured in one round, so a
round is the least that a policy may ask for; one window alone is a round of one. `Driver` asks a
policy, measures, writes down, and asks again. A trial that fails is a row with its reason. What was
measured by an interruption stands.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loaderdoctor.facts import own_settings
from loaderdoctor.instrument.wire.protocol import Observed
from loaderdoctor.settings import Settings
from loaderdoctor.tryout import Options, Outcome, Phase, PhaseName, Progress, Trial, windows
from loaderdoctor.tryout.measuring import Equipment, Measurer
from loaderdoctor.tryout.ranking import Ranking, complexity, rank
from loaderdoctor.tryout.windows import NOTHING, Cost, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """The loop that settings are tried in, as it was when first observed."""

    observed: Observed
    own: Settings
    step_s: float

    @staticmethod
    def of(observed: Observed) -> Loop:
        """What the first steps showed."""
        step_s = windows.step_seconds(observed.step_ns, max(1, observed.batches_per_cycle))
        return Loop(observed=observed, own=own_settings(observed), step_s=max(step_s, 1e-6))

    @property
    def steps_per_epoch(self) -> int | None:
        """Of the loader that feeds the step."""
        return self.observed.steps_per_epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Everything a policy decides on, at one moment. Trials are read, never changed."""

    loop: Loop
    options: Options
    trials: Sequence[Trial]  # 0: the loop as it is
    spent_s: float  # of the budget
    ablated: bool = False  # whether ablation takes a part of the budget
    cut: bool = False  # the last round ended early, for want of time
    window_s: float | None = None  # what each window of the last round took, all told
    grid_steps: int | None = None  # of a search: what the whole grid would have taken

    @property
    def alive(self) -> list[Trial]:
        """Trials still worth a measurement."""
        return [trial for trial in self.trials if trial.alive]

    @property
    def searching(self) -> bool:
        """Whether settings are searched by elimination, not ranked as a whole."""
        return self.options.search == "auto"

    @property
    def n_timed_steps(self) -> int:
        """Steps of all timed windows."""
        return sum(trial.n_timed_steps for trial in self.trials)

    def cost(self, trial: Trial) -> Cost:
        """What one more measurement takes: as seen, else as guessed."""
        observed = self.loop.observed
        found = windows.measured(trial, observed)
        return found or windows.guess(trial, observed, step_s=self.loop.step_s)

    def end_s(self, share: float) -> float:
        """Where the phase with this share ends, in seconds of the budget."""
        return windows.end_s(share, self.options, ablated=self.ablated)

    def left_s(self, share: float) -> float:
        """Seconds left until then."""
        return self.end_s(share) - self.spent_s

    def ranking(self, *, proposing: bool = False, rest: int = 0) -> Ranking:
        """The ranking of what has been measured so far.

        `proposing`: its candidate is whom to measure beside the fastest, where that is done, in
        `rest` more rounds at most.
        """
        beside = self.options.beside_fastest
        return rank(
            self.trials,
            own=self.loop.own,
            steps_per_epoch=self.loop.steps_per_epoch,
            beside=beside,
            rest=rest,
            proposing=proposing and beside,
        )

    def by_speed(self) -> list[int]:
        """Indexes of measured trials, fastest first; the loop's own before all others."""
        results = [r for r in self.ranking().results if r.wall_ms is not None]
        results.sort(key=lambda r: r.wall_ms.value if r.index and r.wall_ms else 0.0)
        return [r.index for r in results]

    def by_relevance(self) -> list[int]:
        """Likewise, but in turn the simplest and the fastest of those not listed yet.

        What is recommended is the simplest of those that are equally fast: the simplest may be it,
        the fastest say how fast that is, and what is neither could not change the answer much.
        """
        by_speed = self.by_speed()
        simple = sorted(by_speed, key=lambda i: complexity(self.trials[i].settings, self.loop.own))
        in_turn = (index for pair in zip(simple, by_speed, strict=True) for index in pair)
        return list(dict.fromkeys((*by_speed[:1], *in_turn)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One window to measure in a round."""

    trial: int
    n_steps: int
    cost: Cost  # what is expected of it
    place: float = 0.0  # lower ones come first; equal ones in random order
    least_s: float = -math.inf  # not begun where less is left until the round's `until_s`


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a policy says besides: trials that are given up, and what the user must know."""

    dropped: tuple[int, ...] = ()
    note: str | None = None  # how the budget was too short


@dataclass(frozen=True, slots=True, kw_only=True)
class Round(Decision):
    """Windows to measure together, each of another trial as a rule; compared with one another."""

    shown: PhaseName
    phase: Phase | None  # as which measurements count; None: traced, never timed
    number: int
    n_rounds: int  # as far as is known now, for display
    windows: tuple[Window, ...]
    shuffled: bool = True  # False: in the order of `windows`
    until_s: float = math.inf  # of the budget
    plan: Plan = NOTHING  # what the policy goes on with
    n_most: int = 0  # likewise: no more rounds than these


@dataclass(frozen=True, slots=True, kw_only=True)
class Done(Decision):
    """Nothing more to measure, and why."""

    reason: str = "over"


Policy = Callable[[Known, Round | None], Round | Done]


class Driver:
    """Carries out policies on the trials of one outcome."""

    def __init__(
        self,
        loop: Loop,
        trials: Sequence[Trial],
        options: Options,
        equipment: Equipment,
        *,
        ablated: bool = False,
    ) -> None:
        self.outcome = Outcome(trials=list(trials))
        self.loop, self.options, self._ablated = loop, options, ablated
        self.measurer = Measurer(loop.observed, options, self.outcome, equipment)
        self._on_progress, self._clock = equipment.on_progress, equipment.clock
        self._rng = random.Random(options.seed)
        self._began = equipment.clock()
        self._cut = False
        self._window_s: float | None = None

    def known(self) -> Known:
        """What a policy decides on now."""
        # Starting the script again is no measuring.
        spent_s = self._clock() - self._began - self.measurer.reopening_s
        return Known(
            loop=self.loop,
            options=self.options,
            trials=self.outcome.trials,
            spent_s=spent_s,
            ablated=self._ablated,
            cut=self._cut,
            window_s=self._window_s,
            grid_steps=self.outcome.grid_steps,
        )

    def carry_out(self, policy: Policy) -> Done:
        """Measure what the policy asks for, until it is done. Raises where nothing can follow."""
        last: Round | None = None
        while True:
            decision = policy(self.known(), last)
            for index in decision.dropped:
                self.outcome.trials[index].dropped = True
            if decision.note is not None:
                text = f"{decision.note}: give a larger --budget, or fewer values in --grid"
                self.outcome.notes.append(("budget-too-short", text))
            if isinstance(decision, Done):
                return decision
            self._measure(decision)
            last = decision

    def _measure(self, one: Round) -> None:
        order = list(one.windows)
        if one.shuffled:
            self._rng.shuffle(order)
        order.sort(key=lambda window: window.place)
        began, self._cut = self._clock(), False
        for window in order:
            if window.least_s > one.until_s - self.known().spent_s:
                self._cut = True
                return
            self._one(one, window)
            self.tell(one.shown, max(1, one.number), one.n_rounds, window.trial)
        self._window_s = (self._clock() - began) / max(1, len(order))
        if one.phase == "rank" and one.number:
            self.outcome.n_ranked_rounds = one.number

    def _one(self, one: Round, window: Window) -> None:
        trial = self.outcome.trials[window.trial]
        if one.phase is None:
            self.measurer.trace(trial, window.n_steps, window.cost)
        else:
            # Of a search, the first window of the loop's own meets cold caches.
            cold = one.number == 0 and not trial.index
            phase = "calibrate" if cold else one.phase
            self.measurer.time(trial, phase, one.number, window.n_steps, window.cost)

    def tell(self, phase: PhaseName, number: int, n_rounds: int, trial: int | None) -> None:
        """Show a step of progress."""
        if self._on_progress is None:
            return
        spent_s, budget_s = self._clock() - self._began, self.options.budget_s
        self._on_progress(
            Progress(
                phase=phase,
                round=number,
                n_rounds=n_rounds,
                trial=trial,
                done_share=min(1.0, spent_s / budget_s) if budget_s else 1.0,
                left_s=max(0.0, budget_s - spent_s),
                trials=self.outcome.trials,
            )
        )
