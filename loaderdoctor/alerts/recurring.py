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
        self._told: list[tuple[float, float]] = []  # periods, in steps and in seconds

    def add(self, stall: SeenStall) -> Recurrence | None:
        """The next stall; what recurs, where this one settles it and it was not told yet."""
        self._seen.append(stall)
        everything = list(self._seen)
        largest = max(s.excess_ms for s in everything)
        large = [s for s in everything if s.excess_ms >= largest / 2]
        for stalls in (everything, large):
            if stalls[-1] is not stall or len(stalls) <= MIN_AGREEING:
                continue
            found = self._found(stalls)
            if found is not None:
                return found
        return None

    def _found(self, stalls: Sequence[SeenStall]) -> Recurrence | None:
        """By steps where these agree at least as well as the seconds between them."""
        gaps = np.diff(np.array([s.step for s in stalls], float))
        gaps_s = np.diff(np.array([s.at_s for s in stalls]))
        late = slice(-MIN_AGREEING, None)
        period, period_s = float(np.median(gaps[late])), float(np.median(gaps_s[late]))
        if period < 2 or period_s <= 0.0 or self._known(period, period_s):
            return None
        off = float(np.max(np.abs(gaps[late] - period)))
        off_s = float(np.max(np.abs(gaps_s[late] - period_s)))
        allowed = 0.0 if period < STEPS_EXACT_BELOW else max(1.0, STEPS_TOLERANCE * period)
        if off <= allowed and off / period <= max(off_s / period_s, 1.0 / period):
            by_chance = (2 * off + 1) / float(np.mean(gaps))
            found = _recurrence("steps", period, gaps, off, by_chance, stalls)
        elif off_s <= SECONDS_TOLERANCE * period_s:
            tolerance = SECONDS_TOLERANCE * period_s
            by_chance = 2 * tolerance / float(np.mean(gaps_s))
            found = _recurrence("seconds", period_s, gaps_s, tolerance, by_chance, stalls)
        else:
            return None
        if found is not None:
            self._told.append((period, period_s))
        return found

    def _known(self, period: float, period_s: float) -> bool:
        return any(
            abs(steps - period) <= SAME_PERIOD * period
            or abs(seconds - period_s) <= SAME_PERIOD * period_s
            for steps, seconds in self._told
        )


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
