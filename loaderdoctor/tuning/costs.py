"""What trying settings costs a training, what they have saved, and what may be spent."""

from __future__ import annotations

from dataclasses import dataclass, field

from loaderdoctor.settings import Settings
from loaderdoctor.tuning.candidates import FORKED_WORKER_MS
from loaderdoctor.tuning.step_windows import MIN_STEPS, Served, Step, queued

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


@dataclass(slots=True)
class Costs:
    """Milliseconds so far."""

    saved_ms: float = 0.0  # against the loop's own pace; trying included
    run_ms: float = 0.0  # all steps
    _ended_ms: float = 0.0  # lost to trials that ended
    _trial_ms: float = 0.0  # by the one under way, beyond the best's pace; may be negative
    _steps_ms: float = 0.0  # the same of its own steps, without what opening it took
    _n_own: int = 0  # of those
    worker_start_ms: float | None = None  # of the loop's own pool, where seen
    _opening_ms: dict[int, float] = field(default_factory=dict)  # seen, by number of workers

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

    def left_ms(self, n_more: int, best_ms: float, *, planned: bool = False) -> float:
        """What may still be lost, in a run of at least `n_more` steps more.

        `planned`: to something that has not begun.
        """
        allowed_ms = MAX_LOST_SHARE * (self.run_ms + n_more * best_ms)
        return (PLANNED_SHARE if planned else RUNNING_SHARE) * allowed_ms - self.lost_ms

    def opening_ms(self, settings: Settings, instead_of: Settings | None = None) -> float:
        """What going over takes; at an epoch's beginning, `instead_of` what starts there anyway."""
        n = settings.num_workers or 0
        if instead_of is not None and not instead_of.persistent_workers:
            n = max(0, n - (instead_of.num_workers or 0))
        if n in self._opening_ms:
            return self._opening_ms[n]
        seen = [ms / m for m, ms in self._opening_ms.items() if m]
        if seen or self.worker_start_ms is not None:
            return n * max(*seen, self.worker_start_ms or 0.0, 0.0)
        forks = settings.start_method in (None, "fork")
        return n * (FORKED_WORKER_MS if forks else SPAWNED_WORKER_MS)
