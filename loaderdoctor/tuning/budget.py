"""What a trial may cost a training: what it is expected to, and whether that may be spent."""

from __future__ import annotations

from loaderdoctor.settings import Settings
from loaderdoctor.tuning.candidates import (
    LAST_WINDOWS,
    BatchCost,
    TunedLoop,
    crowds,
    predicted_ms,
)
from loaderdoctor.tuning.costs import Costs
from loaderdoctor.tuning.outcome import Ask
from loaderdoctor.tuning.step_windows import Served, Step

# Batches may take so much longer than it was seen where a prediction pays for a trial.
SURE = 1.3


class Budget:
    """Of one run; knows where in its epoch the loop is."""

    def __init__(self, loop: TunedLoop) -> None:
        self.costs = Costs(worker_start_ms=loop.worker_start_ms)
        self._loop = loop
        self._epoch_at = 0  # steps of this epoch

    def moved(self, step: Step) -> None:
        """The loop made these."""
        self._epoch_at = 1 if step.first else self._epoch_at + step.n

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
        n_more = self._epoch_left + ((self._loop.steps_per_epoch or 0) if at_epoch else 0)
        return expected_ms <= self.costs.left_ms(n_more, best.pace_ms or 0.0, planned=planned)

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
        have CPUs enough.
        """
        opening = self.costs.opening_ms(settings, best if at_epoch else None)
        back = self.costs.opening_ms(best)
        pace, n = known.step_ms(LAST_WINDOWS), self._loop.steps_per_epoch
        if cost is None or not n or pace is None or crowds(self._loop, settings, best, cost):
            return opening + back
        sure = BatchCost(make_ms=SURE * cost.make_ms, cpu_ms=SURE * cost.cpu_ms)
        longer = predicted_ms(self._loop, settings, best, known, sure) - pace.value
        longer *= n if at_epoch else self._epoch_left
        return opening + min(back, max(0.0, longer))

    def back_ms(self, best: Settings, known: Served, served: Served) -> float:
        """What going back to the best takes: at once, or being `served` on until the next epoch."""
        opening = self.costs.opening_ms(best)
        if not self._loop.steps_per_epoch or served.pace_ms is None or known.pace_ms is None:
            return opening
        return min(opening, max(0.0, served.pace_ms - known.pace_ms) * self._epoch_left)
