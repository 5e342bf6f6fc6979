"""Rounds of the loop as it is and a few candidates: the policy of a diagnosis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from loaderdoctor.tryout.comparing import Boundaries, Compared, by_speed, compared
from loaderdoctor.tryout.known import Done, Known, Round, Window
from loaderdoctor.tryout.windows import MIN_ROUNDS, Cost, measured_whole

# Where time is left, so many more for candidates that look better by an amount that matters and
# are not shown to be.
EXTRA_ROUNDS = 3
# The figure that is recommended is told this well, where there is time: to a part of itself.
SHARP = 0.1
# Before any was measured, of the time there is: as much again is kept for a second look.
FIRST_PART = 0.5
# A measurement pays for worker start-up and dropped batches too; before one, assume this.
MEASUREMENT_FACTOR = 2.5
# Two pools of workers started and ended, the second for the epoch boundary: four forked workers
# take 0.2 s each time on two busy cores.
MEASUREMENT_OPEN_S = 0.5
LONGEST_EPOCH_S = 2.0  # of those that are measured whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Competition:
    """Rounds of the loop as it is and of the candidates that may still change the answer, shuffled.

    One round shows a large gain, so all are looked at once before any is measured finer, the most
    promising first (the order of `among`). Then come those that may yet be the best, or be shown
    to help, while there is time; where nothing more can change what is recommended, it is over.
    """

    among: tuple[int, ...]  # trials, what should gain most first
    n_steps: int  # of a window, where no whole epochs are needed
    boundaries: Boundaries

    def __call__(self, known: Known, last: Round | None) -> Round | Done:
        """The next round, of those that may change the answer."""
        first = _next_number(known) if last is None else last.n_most - MIN_ROUNDS - EXTRA_ROUNDS
        number = first if last is None else last.number + 1
        if last is not None and not any(
            m.round == last.number for m in known.trials[0].measurements
        ):
            return Done(reason="the loop as it is was not measured again")
        every = compared(known.trials, self.boundaries)
        tried = [every[i - 1] for i in self.among if known.trials[i].status == "ok"]
        open_ = unanswered(tried)
        if not open_ or number >= first + len(self.among) + MIN_ROUNDS + EXTRA_ROUNDS:
            return Done(reason="decided")
        window_s = known.window_s or self.guess_s(known)
        left_s = known.left_s(1.0)
        if all(one.n_rounds == 0 for one in tried) and len(open_) > 1:
            left_s *= FIRST_PART
        room = max(1, int(left_s / window_s) - 1)
        left = _fitting(open_, room)
        # A pair of windows is the least that says anything.
        if window_s * (len(left) + 1) > known.left_s(1.0):
            return Done(reason="out of time")
        cost = Cost(overhead_s=0.0, step_s=known.loop.step_s, cycle=1)
        return Round(
            shown="rank",
            phase="rank",
            number=number,
            n_rounds=number,
            windows=(
                Window(trial=0, n_steps=self.n_steps, cost=cost),
                *(
                    Window(trial=one.trial.index, n_steps=self._steps(one, known), cost=cost)
                    for one in left
                ),
            ),
            n_most=first + MIN_ROUNDS + EXTRA_ROUNDS,
        )

    def guess_s(self, known: Known) -> float:
        """What a measurement takes, before there was one."""
        return MEASUREMENT_FACTOR * self.n_steps * known.loop.step_s + MEASUREMENT_OPEN_S

    def _steps(self, one: Compared, known: Known) -> int:
        """Of one window: whole epochs where workers fill most of one ahead."""
        train = known.loop.observed.main_loader
        full = one.settings.over(train.settings) if train is not None else one.settings
        step_s = one.step.value / 1e3 if one.step is not None else known.loop.step_s
        epoch = known.loop.steps_per_epoch
        queue = full.queue_length
        if epoch and measured_whole(epoch, queue=queue, step_s=step_s, longest_s=LONGEST_EPOCH_S):
            return math.ceil(self.n_steps / epoch) * epoch
        return self.n_steps


def _next_number(known: Known) -> int:
    return 1 + max((m.round for trial in known.trials for m in trial.measurements), default=0)


def unanswered(tried: Sequence[Compared]) -> list[Compared]:
    """Those of which one more window could change what is recommended; the most telling first."""
    new = [one for one in tried if not one.n_rounds]
    seen = by_speed([one for one in tried if one.n_rounds])
    leader = next((one for one in seen if one.helps and not one.in_code), None)
    wanted = [one for one in seen if _wanted(one, leader)]
    # A first look at all comes before finer intervals, but for what may be the answer already.
    first = wanted[:1] if leader is not None or any(one.promising for one in wanted) else []
    return [*first, *new, *(one for one in wanted if one not in first)]


def _wanted(one: Compared, leader: Compared | None) -> bool:
    step = one.step
    if step is None or one.n_rounds >= MIN_ROUNDS + EXTRA_ROUNDS:
        return False
    if one.n_rounds >= MIN_ROUNDS:
        return one.promising and (leader is None or one.in_code or one.may_beat(leader))
    if one is leader or (one.in_code and one.helps):
        return step.margin > SHARP * step.value
    if leader is None or one.in_code:
        return not one.hopeless
    return one.may_beat(leader)


def _fitting(tried: Sequence[Compared], room: int) -> list[Compared]:
    """The first that there is room for; settings of the loader's are among them."""
    kept = list(tried[:room])
    if kept and all(one.in_code for one in kept):
        kept[-1:] = [one for one in tried if not one.in_code][:1] or kept[-1:]
    return kept
