"""What trying costs a training, what it saved, what a trial may cost, and whether it may begin."""

from __future__ import annotations

from loaderdoctor.settings import Settings
from loaderdoctor.tuning.candidates import (
    FORKED_WORKER_MS,
    LAST_WINDOWS,
    Ask,
    BatchCost,
    TunedLoop,
    crowds,
    predicted_ms,
)
from loaderdoctor.tuning.step_windows import MIN_STEPS, WINDOW_MS, Served, Step, queued

# Of the time that a run takes for sure, what trying may cost: time beyond the best so far. What
# was gained pays for nothing: a long run can wait for its next trial.
MAX_LOST_SHARE = 0.02
# A trial begins while this much of it would be left over: what it will cost is expected only, and
# in simulated trainings it was up to 15 % more.
PLANNED_SHARE = 0.8
# One under way ends while so much would be left: to see that it loses takes some steps, and real
# trainings lost up to 2.3 % without (docs/run.md).
RUNNING_SHARE = 0.9
# A worker that is spawned imports torch.
SPAWNED_WORKER_MS = 3000.0
# Batches may take so much longer than it was seen where a prediction pays for a trial.
SURE = 1.3


class Budget:
    """Of one run, in ms so far; knows where in its epoch the loop is."""

    def __init__(self, loop: TunedLoop) -> None:
        self.saved_ms = 0.0  # against the loop's own pace; trying included
        self.run_ms = 0.0  # all steps
        self._loop = loop
        self._epoch_at = 0  # steps of this epoch
        self._ended_ms = 0.0  # lost to trials that ended
        self._trial_ms = 0.0  # by the one under way, beyond the best's pace; may be negative
        self._steps_ms = 0.0  # the same of its own steps, without what opening it took
        self._n_own = 0  # of those
        self._opening_ms: dict[int, float] = {}  # seen, by number of workers

    def moved(self, step: Step) -> None:
        """The loop made these."""
        self.run_ms += step.ms
        self._epoch_at = 1 if step.first else self._epoch_at + step.n

    @property
    def lost_ms(self) -> float:
        """Time beyond the best's pace that trying took."""
        return self._ended_ms + max(0.0, self._trial_ms)

    def add(
        self, step: Step, *, own: Served, best: Served, trial: Settings | None, opens: bool
    ) -> None:
        """Another step. `trial`: what is tried, or gone back from; `opens`: a pool was opened."""
        own_ms = own.boundary_ms if step.first else own.pace_ms
        best_ms = best.boundary_ms if step.first else best.pace_ms
        if trial is not None and best_ms is not None:
            self._trial_ms += step.ms - step.n * best_ms
            if step.settled and not step.first and not opens and step.serving == trial:
                self._n_own += step.n
                if self._n_own > 1:  # the first waited for the pool's first batch
                    self._steps_ms += step.ms - step.n * best_ms
            if opens and not step.first:
                self._opening_ms[trial.num_workers or 0] = max(0.0, step.ms - best_ms)
        if own_ms is not None:
            self.saved_ms += step.n * own_ms - step.ms

    def end_trial(self) -> None:
        """What it lost is lost; what it gained is no loss of the next one's."""
        self._ended_ms = self.lost_ms
        self._trial_ms = self._steps_ms = 0.0
        self._n_own = 0

    def goes_on_losing(self, trial: Settings, best_ms: float) -> bool:
        """Whether the steps of the trial under way are slow: opening it is paid for already.

        Told of few steps where they take several times as long, else of those behind its queues.
        """
        n = self._n_own - 1
        if n < max(MIN_STEPS, trial.num_workers or 0):
            return False
        hopeless = self._steps_ms > n * best_ms
        return hopeless or (self._steps_ms > 0 and n >= queued(trial) + MIN_STEPS)

    def opening_ms(self, settings: Settings, instead_of: Settings | None = None) -> float:
        """What going over takes; at an epoch's beginning, `instead_of` what starts there anyway."""
        n = settings.num_workers or 0
        if instead_of is not None and not instead_of.persistent_workers:
            n = max(0, n - (instead_of.num_workers or 0))
        if n in self._opening_ms:
            return self._opening_ms[n]
        seen = [ms / m for m, ms in self._opening_ms.items() if m]
        if seen or self._loop.worker_start_ms is not None:
            return n * max(*seen, self._loop.worker_start_ms or 0.0, 0.0)
        forks = settings.start_method in (None, "fork")
        return n * (FORKED_WORKER_MS if forks else SPAWNED_WORKER_MS)

    @property
    def _epoch_left(self) -> int:
        """Steps of this epoch that are still to come."""
        return max(0, (self._loop.steps_per_epoch or 0) - self._epoch_at)

    def allows(
        self, expected_ms: float, best: Served, *, planned: bool = True, at_epoch: bool = False
    ) -> bool:
        """Whether so much may be lost: now, or where the next epoch begins, which is whole then.

        `planned`: to something that has not begun; `best` is what is known of the best settings.
        """
        share = PLANNED_SHARE if planned else RUNNING_SHARE
        return expected_ms <= share * self._allowed_ms(best, at_epoch=at_epoch) - self.lost_ms

    def can_bear(self, more_ms: float, best: Served) -> bool:
        """Whether so much more is within what may be lost, to the last of it."""
        return self.lost_ms + more_ms <= self._allowed_ms(best)

    def overdrawn(self, expected_ms: float, opening_ms: float, best: Served) -> bool:
        """Whether waiting for an epoch has lost more, in all, than `expected_ms`, and too much.

        What seemed no slower served on to the epoch's end in simulated trainings whose machine
        drifted meanwhile, and nothing ended that: they lost up to 4.6 %. Going back is waited for
        a little longer where it is no longer paid for: it may cost more than it spares.
        """
        if self.allows(opening_ms, best, planned=False):
            return False
        spare_ms = 0.0 if self.can_bear(opening_ms, best) else opening_ms
        return self.lost_ms > expected_ms + spare_ms

    def _allowed_ms(self, best: Served, *, at_epoch: bool = False) -> float:
        n_more = self._epoch_left + ((self._loop.steps_per_epoch or 0) if at_epoch else 0)
        return MAX_LOST_SHARE * (self.run_ms + n_more * (best.pace_ms or 0.0))

    def paid(
        self,
        ways: tuple[Settings, ...],
        best: Settings,
        known: Served,
        cost: BatchCost | None,
        *,
        at_epoch: bool,
        now_only: bool,
    ) -> Ask | None:
        """What to try, at once or where the next epoch begins; None where nothing is paid for yet.

        The first of the `ways` that is: beside 12 CPUs, 24 workers were out of reach of a run of
        half a minute, in which three times one worker's pace was to be had at once.
        """
        for settings in ways:
            for later in dict.fromkeys((at_epoch, True)):
                if later and now_only:
                    break
                expected = self.expected_ms(settings, best, known, cost, at_epoch=later)
                if self.allows(expected, known, at_epoch=later):
                    return Ask(settings=settings, at_epoch=later)
        return None

    def expected_ms(
        self,
        settings: Settings,
        best: Settings,
        known: Served,
        cost: BatchCost | None,
        *,
        at_epoch: bool,
    ) -> float:
        """What trying `settings` may take: opening them, and going back where they are no better.

        Going back costs nothing where the next epoch begins: what their steps take longer until
        then, as predicted, stands for it where that is less. It is predicted only of workers that
        have CPUs enough, beside a pace that holds.
        """
        opening = self.opening_ms(settings, best if at_epoch else None)
        back = self.opening_ms(best)
        pace, n = known.step_ms(LAST_WINDOWS), self._loop.steps_per_epoch
        if cost is None or not n or pace is None or known.drifts:
            return opening + back
        if crowds(self._loop, settings, best, cost):
            return opening + back
        sure = BatchCost(make_ms=SURE * cost.make_ms, cpu_ms=SURE * cost.cpu_ms)
        longer = predicted_ms(self._loop, settings, best, known, sure) - pace.value
        longer *= n if at_epoch else self._epoch_left
        return opening + min(back, max(0.0, longer))

    def confirming_ms(
        self, own: Settings, was: Served, best: Settings, known: Served, n_windows: int
    ) -> float:
        """What it takes to go back to the loop's own for so many windows, and to return."""
        assert was.pace_ms is not None
        assert known.pace_ms is not None
        steps = queued(own) + n_windows * max(MIN_STEPS, WINDOW_MS / was.pace_ms)
        longer = steps * max(0.0, was.pace_ms - known.pace_ms)
        return longer + self.opening_ms(best) + self.opening_ms(own)

    def back_ms(self, best: Settings, known: Served, served: Served) -> float:
        """What going back to the best takes: at once, or being `served` on until the next epoch."""
        opening = self.opening_ms(best)
        if not self._loop.steps_per_epoch or served.pace_ms is None or known.pace_ms is None:
            return opening
        return min(opening, max(0.0, served.pace_ms - known.pace_ms) * self._epoch_left)
