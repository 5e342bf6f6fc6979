"""Finds stalls that come back every so many steps, or every so many seconds.

Stalls that come at random have intervals that agree now and then by chance. How many in a row must
agree depends on how often stalls come at all: so many that chance would give it once in a billion.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

KEPT: Final = 64
MIN_AGREEING: Final = 4
CHANCE: Final = 1e-9
STEPS_EXACT_BELOW: Final = 50  # steps: shorter periods must agree to the step
STEPS_TOLERANCE: Final = 0.01
SECONDS_TOLERANCE: Final = 0.02
SAME_PERIOD: Final = 0.1  # told already


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenStall:
    """One step that took long."""

    step: int
    at_s: float
    excess_ms: float  # over a step as usual
    wait_share: float | None  # of the excess, in `__next__`
    gc_share: float  # in garbage collection


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence:
    """Stalls that recur: the period, and what one of them costs."""

    unit: Literal["steps", "seconds"]
    period: float
    n: int  # in a row
    excess_ms: float
    share: float  # of all the time, 0…1
    wait_share: float | None
    gc_share: float
    first_step: int


class RecurrenceWatch:
    """Feed it each stall; it says once that some recur."""

    def __init__(self) -> None:
        self._seen: deque[SeenStall] = deque(maxlen=KEPT)
        self._told: list[tuple[str, float]] = []

    def add(self, stall: SeenStall) -> Recurrence | None:
        """The next stall; what recurs, where this one settles it and it was not told yet."""
        self._seen.append(stall)
        everything = list(self._seen)
        largest = max(s.excess_ms for s in everything)
        large = [s for s in everything if s.excess_ms >= largest / 2]
        for stalls in (everything, large):
            if stalls[-1] is not stall:
                continue
            found = self._in_steps(stalls) or self._in_seconds(stalls)
            if found is not None and not self._known(found):
                self._told.append((found.unit, found.period))
                return found
        return None

    def _known(self, found: Recurrence) -> bool:
        return any(
            unit == found.unit and abs(found.period - period) <= SAME_PERIOD * period
            for unit, period in self._told
        )

    def _in_steps(self, stalls: Sequence[SeenStall]) -> Recurrence | None:
        steps = np.array([s.step for s in stalls], float)
        if steps.size <= MIN_AGREEING:
            return None
        gaps = np.diff(steps)
        period = float(np.median(gaps[-MIN_AGREEING:]))
        if period < 2:
            return None
        tolerance = 0.0 if period < STEPS_EXACT_BELOW else max(1.0, STEPS_TOLERANCE * period)
        by_chance = (2 * tolerance + 1) * (steps.size - 1) / max(1.0, steps[-1] - steps[0])
        return _recurrence("steps", period, gaps, tolerance, by_chance, stalls)

    def _in_seconds(self, stalls: Sequence[SeenStall]) -> Recurrence | None:
        times = np.array([s.at_s for s in stalls])
        if times.size <= MIN_AGREEING:
            return None
        gaps = np.diff(times)
        period = float(np.median(gaps[-MIN_AGREEING:]))
        if period <= 0.0:
            return None
        tolerance = SECONDS_TOLERANCE * period
        by_chance = 2 * tolerance * (times.size - 1) / max(1e-9, times[-1] - times[0])
        return _recurrence("seconds", period, gaps, tolerance, by_chance, stalls)


def _recurrence(
    unit: Literal["steps", "seconds"],
    period: float,
    gaps: np.ndarray,
    tolerance: float,
    by_chance: float,
    stalls: Sequence[SeenStall],
) -> Recurrence | None:
    n = 0
    for gap in gaps[::-1]:
        if abs(gap - period) > tolerance:
            break
        n += 1
    if n < max(MIN_AGREEING, math.log(CHANCE) / math.log(min(0.5, by_chance))):
        return None
    of = stalls[-n - 1 :]
    excess = [s.excess_ms for s in of]
    waits = [s.wait_share for s in of if s.wait_share is not None]
    took_s = of[-1].at_s - of[0].at_s
    return Recurrence(
        unit=unit,
        period=period,
        n=n + 1,
        excess_ms=float(np.mean(excess)),
        share=sum(excess[1:]) / 1e3 / took_s if took_s > 0 else 0.0,
        wait_share=float(np.mean(waits)) if len(waits) == len(of) else None,
        gc_share=float(np.mean([s.gc_share for s in of])),
        first_step=of[0].step,
    )
