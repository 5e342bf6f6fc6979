"""Rounds of the loop as it is and a few candidates: the policy of a diagnosis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import fmean

from loaderdoctor.estimate import MIN_CYCLES
from loaderdoctor.tryout.comparing import Boundaries, Compared, by_speed, compared
from loaderdoctor.tryout.rounds import Done, Known, Round, Window
from loaderdoctor.tryout.windows import MIN_ROUNDS, Cost, measured_whole
from loaderdoctor.units import NS_PER_S

# Where time is left, so many more for candidates that look better by an amount that matters and
# are not shown to be.
EXTRA_ROUNDS = 3
# The figure that is recommended is told this well, where there is time: to a part of itself.
SHARP = 0.1
# A headline's figure is to hold within 15 %. Of two windows or more it does where its interval is
# of this part of itself, or narrower: of 120 simulated slow pools 115 did. One window has no other
# to stand by it: imagenet's told 158 ms, ± 53 %.
HOLDS, ONE_HOLDS = 0.25, 0.15
# Before any was measured, of the time there is: as much again is kept for a second look.
FIRST_PART = 0.5
# A measurement pays for worker start-up and dropped batches too; before one, assume this.
MEASUREMENT_FACTOR = 2.5
# Two pools of workers started and ended, the second for the epoch boundary: four forked workers
# take 0.2 s each time on two busy cores.
MEASUREMENT_OPEN_S = 0.5
# Of epochs that are measured whole, less than a sweep's: its few rounds come out of a short budget.
LONGEST_OF_DIAGNOSIS_S = 2.0
# Where a pool is opened anew for each window, its start and the batches that are dropped take most
# of the time: the windows of a round take this part of that again, which adds more to what they
# tell than to what they take, up to so many steps. Of an imagenet loop of 297 ms a step with four
# workers rounds of 4 and 4 steps took 20 s, of which 2 were measured, and two of them told nothing.
OF_OVERHEAD = 0.5
ENOUGH_STEPS = 24
# Of a trial's own pool up to so many, where that makes them the cycles that their own spread can be
# taken from: the windows of twelve workers had an interval of ± 50 % with 24 steps, 24 % with 48
# (simulated; it lay off the truth by 7 % both times).
ENOUGH_OF_A_POOL = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    """Of a round's windows, before whole cycles of the workers that each has."""

    n_steps: int
    n_cycles: int  # at least so many, where that is no more than enough steps
    enough: int = ENOUGH_STEPS

    def whole(self, cycle: int) -> int:
        """Steps, whole cycles of them."""
        fewest = self.n_cycles * cycle
        n_steps = max(self.n_steps, fewest) if fewest <= self.enough else self.n_steps
        return math.ceil(n_steps / max(1, cycle)) * max(1, cycle)


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
        first_look = all(one.n_rounds == 0 for one in tried) and len(open_) > 1
        first_is_code = bool(tried) and tried[0].in_code and not tried[0].n_rounds
        unseen = not any(one.n_rounds for one in tried if not one.in_code)
        needs_setting = unseen and not first_is_code
        most = max(self._n_steps(known, one) for one in open_)
        slow = self.n_steps < ENOUGH_STEPS
        sizes = [
            _Size(n_steps=most, n_cycles=MIN_CYCLES if slow else 1),
            _Size(n_steps=max(most // 2, self.n_steps), n_cycles=1),
        ]
        own_sizes = sizes
        if slow:
            # Opening a pool takes longer than its steps, which are quick where it helps; where that
            # is known the loop's own only stand beside them.
            confirms = all(one.helps for one in open_)
            own_sizes = [sizes[1 if confirms else 0], *sizes]
            sizes = [replace(sizes[0], enough=ENOUGH_OF_A_POOL), *sizes]
        for own_size, size in zip(own_sizes, sizes, strict=True):
            n_own = own_size.whole(known.loop.observed.batches_per_cycle)
            left = self._that_fit(
                known, open_, size, n_own, first_look=first_look, needs_setting=needs_setting
            )
            if left:
                break
        else:
            return Done(reason="out of time")
        cost = Cost(overhead_s=0.0, step_s=known.loop.step_s, cycle=1)
        return Round(
            shown="rank",
            phase="rank",
            number=number,
            n_rounds=number,
            windows=(
                Window(trial=0, n_steps=n_own, cost=cost),
                *(
                    Window(trial=one.trial.index, n_steps=self._steps(one, known, size), cost=cost)
                    for one in left
                ),
            ),
            n_most=first + MIN_ROUNDS + EXTRA_ROUNDS,
        )

    def _that_fit(
        self,
        known: Known,
        open_: Sequence[Compared],
        size: _Size,
        n_own: int,
        *,
        first_look: bool,
        needs_setting: bool,
    ) -> list[Compared]:
        """Those that there is time for in a round; none where not even a pair of windows fits."""
        left_s, own_s = known.left_s(1.0), self.expected_s(known, 0, n_own)
        expected_s = {
            one.trial.index: self.expected_s(known, one.trial.index, self._steps(one, known, size))
            for one in open_
        }
        ends_s = accumulate((expected_s[one.trial.index] for one in open_), initial=own_s)
        until_s = left_s * (FIRST_PART if first_look else 1.0)
        room = max(1, sum(s <= until_s for s in ends_s) - 1)
        left = _fitting(open_, room, needs_setting=needs_setting)
        fits = own_s + sum(expected_s[one.trial.index] for one in left) <= left_s
        return left if fits else []

    def expected_s(self, known: Known, index: int, n_steps: int) -> float:
        """What a measurement of so many steps will take: as the last one of this trial did.

        Before there was one, what opening others took, else a guess. An epoch's boundary is timed
        but once.
        """
        trial, step_s = known.trials[index], known.loop.step_s
        if trial.measurements:
            last = trial.measurements[-1]
            step_s = last.window_s / last.times.n_steps
            overhead_s = last.wall_s - last.window_s - (last.window.boundary_ns or 0) / NS_PER_S
        else:
            seen = [
                other.measurements[0].wall_s - other.measurements[0].window_s
                for other in known.trials[1:]
                if other.measurements
            ]
            guess_s = (MEASUREMENT_FACTOR - 1.0) * self.n_steps * step_s + MEASUREMENT_OPEN_S
            overhead_s = fmean(seen) if seen and index else guess_s
        if index == 0 and known.loop.own.num_workers:
            # Its queue filled while a trial had the loop, and is dropped.
            overhead_s = max(overhead_s, 2 * known.loop.own.queue_length * known.loop.step_s)
        return max(0.0, overhead_s) + n_steps * step_s

    def _n_steps(self, known: Known, one: Compared) -> int:
        """How many steps a round of the loop and this trial should measure, before whole cycles."""
        if self.n_steps >= ENOUGH_STEPS:
            return self.n_steps
        own, trial = known.trials[0], known.trials[one.trial.index]
        overhead_s = known.cost(own).overhead_s + known.cost(trial).overhead_s
        step_s = known.loop.step_s
        both_s = step_s + (one.step.value / 1e3 if one.step is not None else step_s)
        n_told = round(OF_OVERHEAD * overhead_s / both_s)
        return max(self.n_steps, min(ENOUGH_STEPS, n_told))

    def _steps(self, one: Compared, known: Known, size: _Size) -> int:
        """Of one window: whole cycles of its workers, whole epochs that they fill ahead."""
        train = known.loop.observed.main_loader
        full = one.settings.over(train.settings) if train is not None else one.settings
        step_s = one.step.value / 1e3 if one.step is not None else known.loop.step_s
        epoch = known.loop.steps_per_epoch
        queue = full.queue_length
        if epoch and measured_whole(
            epoch, queue=queue, step_s=step_s, longest_s=LONGEST_OF_DIAGNOSIS_S
        ):
            return math.ceil(size.n_steps / epoch) * epoch
        return size.whole(full.num_workers or 1)


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
    told = one is leader or (one.in_code and one.helps)
    if one.n_rounds >= MIN_ROUNDS:
        if told:
            return is_loose(one)
        return one.promising and (leader is None or one.in_code or one.may_beat(leader))
    if told:
        return step.margin > SHARP * step.value
    if leader is None or one.in_code:
        return not one.hopeless
    return one.may_beat(leader)


def is_loose(one: Compared) -> bool:
    """Whether its own step is not known well enough for a headline: worth more than the budget."""
    step, to = one.step, HOLDS if one.n_rounds > 1 else ONE_HOLDS
    return step is not None and step.margin > to * step.value


def _fitting(tried: Sequence[Compared], room: int, *, needs_setting: bool) -> list[Compared]:
    """The first that there is room for.

    Settings of the loader's are among them, until one was looked at: where there is room for one
    trial in a round, code that looks better would be measured again and again, and they never.
    """
    kept = list(tried[:room])
    if needs_setting and all(one.in_code for one in kept):
        kept[-1:] = [one for one in tried if not one.in_code][:1] or kept[-1:]
    return kept
