"""Tries settings in a running training and keeps what is proven. Knows no torch and no clock.

    watching → trying ⇄ resting → confirming → returning → done → (if the loop waits again) trying

It is told of every step and answers with settings to go over to. One is kept where its steps are
shorter by an interval above zero and by what is worth a change, and dropped once it can't be.
Trying may cost MAX_LOST_SHARE of the time that the run takes for sure. Before the end the loop's
own serve a few windows again, once that is paid for: a machine that became faster is no gain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from loaderdoctor.estimate import MIN_GAIN_SHARE
from loaderdoctor.settings import Settings
from loaderdoctor.tuning.budget import Budget
from loaderdoctor.tuning.candidates import (
    LAST_WINDOWS,
    MIN_WAIT_SHARE,
    Ask,
    BatchCost,
    Outcome,
    State,
    Tried,
    TunedLoop,
    Verdict,
    candidates,
    in_vain,
    on_the_way,
    tried,
)
from loaderdoctor.tuning.step_windows import (
    MIN_BOUNDARIES,
    WINDOW_MS,
    Gathering,
    Served,
    Step,
    StepWindow,
    became_slower,
    gained,
    is_slower,
    queued,
    saves_boundaries,
    undecided,
)

# Windows of the loop's own before anything is tried: with four, Student's factor is 3.2.
MIN_OWN_WINDOWS = 4
# The loop's first steps: caches, compilation, autotuning.
WARM_UP_STEPS = 10
MIN_WINDOWS = 2
MAX_WINDOWS = 10
CONFIRM_WINDOWS = 3  # of each side in a round; so many rounds until it is left unproven:
MAX_CONFIRMS = 3
# Margins are widened by this: a trial is looked at after each of its windows, and is one of many.
# Of 60 simulated trainings of 3,000 steps that nothing can help, 4 kept a setting for a while, and
# none was proven against the loop's own (`tests/tuning/test_tuner.py` has eight of them).
WIDENING = 2.0
HELD_AGAINST_OWN = "held against the loop's own settings once more"
UNDECIDED: frozenset[Verdict] = frozenset({"too-dear", "not-separable"})
# A single window this much longer is no noise: the setting goes at once.
HOPELESS = 1.5


class Tuner:
    """Told of steps by `step`, of pools that failed by `failed`; `outcome` any time."""

    def __init__(
        self,
        loop: TunedLoop,
        refusal: Callable[[Settings], str | None],
        cost: Callable[[Settings], BatchCost | None] = lambda settings: None,
    ) -> None:
        """`refusal`: why complete settings can't be tried on this training; None where they can.

        `cost`: what batches took to make with settings that serve or have served; None: not known.
        """
        self._loop = loop
        self._refusal = refusal
        self._cost = cost
        self._known: dict[Settings, Served] = {loop.own: Served()}
        self._wanted = self._best = self._serving = loop.own
        # What is known of `_serving`, of the loop's own and of the best.
        self._served = self._own = self._best_served = self._known[loop.own]
        self._state: State = "watching"
        self._gathering = Gathering(loop.own, WARM_UP_STEPS)
        self._tried: list[Tried] = []
        self._given_up: set[Settings] = {loop.own}
        self._again: dict[Settings, float] = {}  # tried once, undecided; from this run_ms on again
        self._chosen_at: int | None = None
        self._proven = False
        self._n_steps = 0
        self._budget = Budget(loop)
        self._asked_at: int | None = None  # step behind which `wanted` was asked for; None: served
        self._at_epoch = False  # it was asked for the next epoch
        self._waiting_ms = 0.0  # what is lost in all when that comes, as expected
        self._n_confirms = 0  # rounds next to the loop's own
        self._n_chosen_by = 0  # windows of the best that it was chosen by
        self._own_again, self._best_around = list[StepWindow](), list[StepWindow]()

    @property
    def n_quiet(self) -> int:
        """Steps that can be told of together: nothing is asked for and no window ends before.

        An epoch's first step is always told of alone.
        """
        told = self._asked_at is not None or self._state in ("trying", "confirming")
        told = told and not (self._at_epoch and self._serving == self._best)
        return 1 if told else self._gathering.n_lacking

    def step(self, step: Step) -> Ask | None:
        """Count a step, or several. The settings to go over to, where others than before."""
        self._n_steps += step.n
        self._budget.moved(step)
        if step.serving is not self._serving:
            self._served = self._known.setdefault(step.serving, Served())
            self._serving = step.serving
        self._account(step)
        served, wanted = self._served, self._wanted
        arrived = step.settled and (step.serving is wanted or step.serving == wanted)
        if not arrived and not self._waits_for_epoch(step):
            return self._cut_short()
        if arrived and self._asked_at is not None:
            self._asked_at, self._at_epoch = None, False
            self._gathering = Gathering(self._wanted, queued(self._wanted))
        if step.first:
            served.add_boundary(step.ms)
        window = self._gathering.add(step)
        if window is None:
            return self._cut_short()
        served.add(window)
        return self._decide(served) if arrived else None

    def failed(self, settings: Settings, reason: str) -> Ask | None:
        """A pool with these failed or was refused, and the one before serves again."""
        self._give_up(settings, "failed", reason)
        if settings == self._best:
            self._choose(self._loop.own, None)
        return self._next()

    def outcome(self) -> Outcome:
        """What is known now."""
        run_ms = self._budget.run_ms
        return Outcome(
            state=self._state,
            own=self._loop.own,
            chosen=self._best,
            chosen_at_step=self._chosen_at,
            proven=self._proven,
            own_ms=self._own.step_ms(),
            chosen_ms=self._best_served.step_ms(),
            n_steps=self._n_steps,
            lost_steps=self._budget.lost_ms * self._n_steps / run_ms if run_ms else 0.0,
            lost_ms=self._budget.lost_ms,
            run_ms=run_ms,
            saved_ms=self._budget.saved_ms,
            tried=tuple(self._tried),
        )

    # ------------------------------------------------------------ what it costs

    def _account(self, step: Step) -> None:
        """Workers that are only kept have the best's pace: what differs is the machine's."""
        if self._state == "watching":
            return
        changes = self._asked_at is not None or self._wanted is not self._best
        only_kept = replace(self._best, persistent_workers=True)
        kept = step.serving == only_kept != self._best and not step.first
        self._budget.add(
            step,
            own=self._own,
            best=self._best_served,
            trial=self._wanted if changes and not (kept or self._waits_for_epoch(step)) else None,
            opens=self._asked_at == self._n_steps - 1 and not self._at_epoch,
        )

    def _waits_for_epoch(self, step: Step) -> bool:
        """Whether the best serves on until the epoch for which something else was asked."""
        return self._at_epoch and self._asked_at is not None and step.serving == self._best

    @property
    def _back_ms(self) -> float:
        if self._keeps_workers:
            return 0.0  # the best's would have been opened at the next epoch
        return self._budget.back_ms(self._best, self._best_served, self._served)

    def _cut_short(self) -> Ask | None:
        """Go back in the middle of a window, while that is still paid for."""
        best, known, budget = self._best, self._best_served, self._budget
        if known.pace_ms is None or (self._at_epoch and self._serving == best):
            return None
        if self._wanted == best:
            opening_ms = budget.opening_ms(best)
            if not self._at_epoch or not budget.overdrawn(self._waiting_ms, opening_ms, known):
                return None
            self._asked_at, self._at_epoch = self._n_steps, False
            return Ask(settings=best)
        if self._state == "confirming":
            if budget.can_bear(budget.opening_ms(best), known):
                return None
            self._n_confirms -= 1  # what was seen of the loop's own counts in the next round
            budget.end_trial()
            return self._rest()
        if budget.allows(self._back_ms, known, planned=False):
            return None  # it would have to be gone back from
        if not budget.goes_on_losing(self._wanted, known.pace_ms):
            return None
        self._give_up(self._wanted, "too-dear")
        return self._next()

    def _back(self) -> Ask | None:
        """To the best: at once, or where the next epoch begins if that costs less."""
        later = self._wanted != self._best and self._back_ms < self._budget.opening_ms(self._best)
        self._waiting_ms = self._budget.lost_ms + self._back_ms
        return self._ask(self._best, at_epoch=later)

    # ------------------------------------------------------------ what comes next

    def _decide(self, served: Served) -> Ask | None:
        if self._state == "watching":
            return self._next() if len(served.windows) >= MIN_OWN_WINDOWS else None
        if self._state == "trying":
            return self._judge(served)
        if self._state in ("confirming", "returning"):
            return self._confirm(served)
        return self._next() if self._state == "resting" or self._watch_on(served) else None

    def _judge(self, served: Served) -> Ask | None:
        """The trial has another window: keep it, drop it, or go on."""
        before = self._known[self._best]
        now, was = served.step_ms(), before.step_ms(MAX_WINDOWS)
        assert now is not None
        assert was is not None
        if self._keeps_workers and saves_boundaries(served, before):
            return self._keep()
        if now.value > HOPELESS * was.value:
            self._give_up(self._wanted, "slower")
            return self._next()
        if len(served.windows) < MIN_WINDOWS:
            return None
        shorter = gained(before, served, MAX_WINDOWS)
        gain, margin = shorter.value, WIDENING * shorter.margin
        if gain - margin > 0 and gain >= MIN_GAIN_SHARE * was.value:
            return self._keep()
        shown = len(served.boundaries_ms) >= MIN_BOUNDARIES
        if self._keeps_workers and not shown and gain + margin > 0:
            return None  # what it saves shows at epochs' beginnings only
        if gain + margin < MIN_GAIN_SHARE * was.value:
            self._give_up(self._wanted, "slower")
        elif len(served.windows) >= MAX_WINDOWS:
            self._give_up(self._wanted, "not-separable")
        else:
            return None
        return self._next()

    @property
    def _keeps_workers(self) -> bool:
        """Whether the trial is one of the best's workers, kept."""
        wanted, best = self._wanted, self._best
        more = bool(wanted.persistent_workers) and not best.persistent_workers
        return more and wanted.num_workers == best.num_workers

    def _keep(self) -> Ask | None:
        settings, now = self._wanted, self._known[self._wanted]
        self._note(settings, "kept", now, self._known[self._best])
        self._choose(settings, self._n_steps)
        self._n_chosen_by = len(now.windows)
        self._given_up.add(settings)
        return self._next()

    def _choose(self, settings: Settings, at_step: int | None) -> None:
        self._best, self._chosen_at, self._proven = settings, at_step, False
        self._n_confirms, self._own_again = 0, []
        self._best_served = self._known[settings]

    def _give_up(self, settings: Settings, verdict: Verdict, reason: str = "") -> None:
        if settings in self._given_up and verdict != "failed":
            return
        self._given_up.add(settings)
        known, was = self._known.setdefault(settings, Served()), self._known[self._best]
        self._note(settings, verdict, known, was, reason)
        if verdict in UNDECIDED and settings not in self._again and undecided(known, was):
            self._again[settings] = self._budget.run_ms + MAX_WINDOWS * WINDOW_MS
            self._given_up.discard(settings)
            self._known[settings] = Served()

    def _note(
        self, settings: Settings, verdict: Verdict, now: Served, was: Served, reason: str = ""
    ) -> None:
        """A trial has ended."""
        self._tried.append(tried(settings, verdict, self._n_steps, now, was, reason))
        self._budget.end_trial()

    def _next(self) -> Ask | None:
        """The next trial where one is promising and can be paid for; else the best serves on."""
        best, cost = self._known[self._best], self._cost(self._best)
        if len(best.windows) < MIN_OWN_WINDOWS:
            return self._rest()  # or nothing could be told from it
        for settings in candidates(self._loop, self._best, self._known, cost):
            later = self._again.get(settings, 0.0) > self._budget.run_ms
            if later or settings in self._given_up or in_vain(settings, self._tried):
                continue
            if (reason := self._refusal(settings)) is not None:
                self._give_up(settings, "refused", reason)
                continue
            at_epoch = self._best == replace(settings, persistent_workers=False)
            if at_epoch and not self._confirmed:
                continue  # once all else was tried, and the best is shown to be better
            ways = (x for x in on_the_way(self._best, settings) if x not in self._given_up)
            fewer = (x for x in ways if self._refusal(x) is None)
            now = self._wanted != self._best  # or what was tried serves until an epoch begins
            paid = self._budget.paid(
                (settings, *fewer), self._best, best, cost, at_epoch=at_epoch, now_only=now
            )
            if paid is None:
                return self._rest()
            self._state = "trying"
            return self._ask(paid.settings, at_epoch=paid.at_epoch)
        if not self._confirmed:
            return self._begin_confirming()
        self._state = "done" if len(self._given_up) > 1 else "watching"
        return self._back()

    def _rest(self) -> Ask | None:
        self._state = "resting"
        return self._back()

    @property
    def _confirmed(self) -> bool:
        """Whether the best need not be held against the loop's own settings once more."""
        own = self._loop.own
        alone = replace(own, persistent_workers=True)  # epochs' beginnings proved that
        tired = self._n_confirms >= MAX_CONFIRMS
        return self._proven or tired or self._best in (own, alone)

    def _begin_confirming(self) -> Ask | None:
        """The loop's own once more, as soon as that is paid for."""
        own = self._loop.own
        n, best = CONFIRM_WINDOWS, self._best_served
        lacking = (self._n_confirms + 1) * n - len(self._own_again)
        expected = self._budget.confirming_ms(own, self._own, self._best, best, lacking)
        # Not those that it was chosen by: they are its lucky ones.
        around = self._known[self._best].windows[self._n_chosen_by :]
        if len(around) < n or not self._budget.allows(expected, best):
            return self._rest()
        self._state = "confirming"
        self._n_confirms += 1
        if self._n_confirms == 1:
            self._best_around = around[-n:]
        return self._ask(own)

    def _confirm(self, served: Served) -> Ask | None:
        """Another window of the loop's own, then of the best again."""
        again, around = self._own_again, self._best_around
        if self._state == "confirming":
            again.append(served.windows[-1])
            if len(again) < self._n_confirms * CONFIRM_WINDOWS:
                return None
            self._state = "returning"
            return self._ask(self._best)
        around.append(served.windows[-1])
        if len(around) < (1 + self._n_confirms) * CONFIRM_WINDOWS:
            return None
        before, after = Served(windows=again), Served(windows=around)
        was, gain = before.step_ms(), gained(before, after, MAX_WINDOWS)
        assert was is not None
        self._budget.end_trial()
        if gain.value > WIDENING * gain.margin:
            self._proven = True
            return self._next()
        if gain.value >= MIN_GAIN_SHARE * was.value:
            return self._next()  # once more; in the end it is kept, and said not to be proven
        self._note(self._best, "not-separable", after, before, HELD_AGAINST_OWN)
        self._choose(self._loop.own, None)
        self._state = "done"
        return self._ask(self._best)

    def _watch_on(self, served: Served) -> bool:
        """The loop may begin to wait again (other data, a neighbour, a full cache): look anew.

        False where its pace changes just now: nothing could be told from it.
        """
        if served.wait_share(LAST_WINDOWS) < MIN_WAIT_SHARE:
            return True
        if not became_slower(served, LAST_WINDOWS):
            return not is_slower(served, LAST_WINDOWS)
        self._given_up, self._again = {self._best}, {}
        now = served.lately(LAST_WINDOWS)
        self._known = {self._loop.own: self._own, self._best: now}
        self._own, self._served, self._best_served = self._known[self._loop.own], now, now
        return True

    def _ask(self, settings: Settings, *, at_epoch: bool = False) -> Ask | None:
        if settings == self._wanted:
            return None
        self._wanted, self._asked_at, self._at_epoch = settings, self._n_steps, at_epoch
        self._known.setdefault(settings, Served())
        return Ask(settings=settings, at_epoch=at_epoch)
