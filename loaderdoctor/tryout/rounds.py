"""Drives the rounds: asks a policy what to measure next, measures it, writes it down, asks again.

A trial that fails is a row with its reason. What was measured by an interruption stands.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from loaderdoctor.tryout.known import Done, Known, Loop, Policy, Round, Window
from loaderdoctor.tryout.measuring import Equipment, Measurer
from loaderdoctor.tryout.trials import Options, Outcome, PhaseName, Progress, Trial


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
