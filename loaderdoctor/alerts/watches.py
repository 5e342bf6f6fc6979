"""Watches of one series each: memory that fills, stalls that recur, pauses to save or validate."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from loaderdoctor import format as fmt
from loaderdoctor.alerts import Alert
from loaderdoctor.instrument.wire.protocol import Beat
from loaderdoctor.instrument.wire.records import OutsideRecord
from loaderdoctor.units import NS_PER_MS

# Looks kept; where there are more, every other one goes, so that they reach over the whole run.
KEPT_LOOKS: Final = 96
MIN_LOOKS: Final = 10
# Mann-Kendall: 6 standard deviations come once in 10^9 looks by chance, and neighbours are alike.
MIN_Z: Final = 6.0
MIN_Z_FEW: Final = 3.6  # of ten looks no more is to be had than 4.0
# The later half must grow at least so fast as the whole: caches fill, and stop.
STILL: Final = 0.8
LATELY: Final = 3  # looks at least, an eighth of them: they must grow still, so much as fast
STILL_LATELY: Final = 0.6
SOON_H: Final = 72.0
# Nothing is said of a time more than so many times as long as what was seen of the growth.
REACH: Final = 60.0
MIN_GROWTH: Final = 0.05  # of what there was, and of what is free: less tells nothing yet
MIN_BYTES: Final = 50_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    bytes_per_h: float
    full_in_h: float
    now_bytes: int
    first_bytes: int
    part_share: float  # of the growth, in the part that is told of apart


class GrowthWatch:
    """One series of bytes. Told once, and again when half of the time is gone."""

    def __init__(self) -> None:
        self._at_s: list[float] = []
        self._used: list[float] = []
        self._part: list[float] = []
        self._stride = 1
        self._n = 0
        self._told_h = math.inf

    def told(self, full_in_h: float) -> None:
        """Another series of the same memory has told so."""
        self._told_h = min(self._told_h, full_in_h)

    def add(
        self, at_s: float, used_bytes: int, free_bytes: int, part_bytes: int = 0
    ) -> Growth | None:
        """A look: what is used, how much more can be, and a part of what is used."""
        self._n += 1
        if self._n % self._stride == 0:
            self._at_s.append(at_s)
            self._used.append(float(used_bytes))
            self._part.append(float(part_bytes))
            if len(self._at_s) >= KEPT_LOOKS:
                kept = (self._at_s[::2], self._used[::2], self._part[::2])
                self._at_s, self._used, self._part = kept
                self._stride *= 2
            return self._judge(used_bytes, free_bytes)
        return None

    def _judge(self, used_bytes: int, free_bytes: int) -> Growth | None:
        n = len(self._at_s)
        if n < MIN_LOOKS:
            return None
        # Not from the beginning: caches and pools fill first.
        t, used = np.array(self._at_s[n // 4 :]), np.array(self._used[n // 4 :])
        slope = _slope(t, used)
        grown = slope * (t[-1] - t[0])
        if grown < max(MIN_BYTES, MIN_GROWTH * min(used[0], float(free_bytes))):
            return None
        few = n < 2 * MIN_LOOKS
        if _kendall_z(used) < (MIN_Z_FEW if few else MIN_Z) * _alike(used, t, slope, few=few):
            return None
        if _slope(t[t.size // 2 :], used[t.size // 2 :]) < STILL * slope:
            return None
        late = max(LATELY, t.size // 8)
        if _slope(t[-late:], used[-late:]) < STILL_LATELY * slope:
            return None
        per_h = slope * 3600.0
        full_in_h = free_bytes / per_h
        seen_h = float(t[-1] - t[0]) / 3600.0
        if full_in_h > min(SOON_H, REACH * seen_h) or full_in_h > self._told_h / 2:
            return None
        self._told_h = full_in_h
        return Growth(
            bytes_per_h=per_h,
            full_in_h=full_in_h,
            now_bytes=used_bytes,
            first_bytes=int(used[0]),
            part_share=_slope(t, np.array(self._part[n // 4 :])) / slope,
        )


def _slope(t: np.ndarray, used: np.ndarray) -> float:
    """Median of the slopes between all pairs (Theil-Sen): one spike moves nothing."""
    i, j = np.triu_indices(t.size, 1)
    return float(np.median((used[j] - used[i]) / np.maximum(t[j] - t[i], 1e-9)))


def _kendall_z(used: np.ndarray) -> float:
    i, j = np.triu_indices(used.size, 1)
    n = used.size
    s = float(np.sign(used[j] - used[i]).sum())
    return s / math.sqrt(n * (n - 1) * (2 * n + 5) / 18.0)


def _alike(used: np.ndarray, t: np.ndarray, slope: float, *, few: bool) -> float:
    """How much more a correlated series wanders than an independent one, in standard deviations."""
    if few:
        return 1.0
    rest = used - slope * t
    rest = rest - rest.mean()
    power = float((rest**2).sum())
    r = float((rest[1:] * rest[:-1]).sum()) / power if power > 0 else 0.0
    r = min(0.8, max(0.0, r))
    return min(2.0, math.sqrt((1 + r) / (1 - r)))


# Stalls at random have intervals that agree now and then by chance. How many in a row must agree
# depends on how often stalls come at all: so many that chance gives it once in a billion.
KEPT_STALLS: Final = 64
MIN_AGREEING: Final = 4
CHANCE: Final = 1e-9
STEPS_EXACT_BELOW: Final = 50  # steps: shorter periods must agree to the step
STEPS_TOLERANCE: Final = 0.01
SECONDS_TOLERANCE: Final = 0.02
SAME_PERIOD: Final = 0.1  # told already


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenStall:
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
        self._seen: deque[SeenStall] = deque(maxlen=KEPT_STALLS)
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


# Pauses are no stalls of a step: they are known by their place in the code, with what they take.
MIN_VISITS: Final = 4
# Of the recorded time. A validation that is wanted takes its time; this much is worth a question.
SAVING_SHARE: Final = 0.05
PASSES_SHARE: Final = 0.20
WAITS: Final = 0.5  # of a pass: its own loader is what it takes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """At the first beat: what was before is no part of the recorded time."""

    n: int
    timed_ns: int
    wait_ns: int


class PauseWatch:
    """Of one process; tells of each place once."""

    def __init__(self) -> None:
        self._since_ns: int | None = None
        self._first: dict[tuple[str, str], _Seen] = {}
        self._told: set[tuple[str, str]] = set()

    def beat(self, beat: Beat) -> list[Alert]:
        """The next stretch; what is to be told by now."""
        wall = beat.wall
        if wall is None or wall.in_steps:
            return []
        if self._since_ns is None:
            self._since_ns = beat.start_ns
            self._first = {
                (one.what, one.site): _Seen(n=one.n, timed_ns=one.timed_ns, wait_ns=one.wait_ns)
                for one in wall.outside
            }
            return []
        recorded_ns = beat.end_ns - self._since_ns
        found = [self._judge(one, recorded_ns, beat) for one in wall.outside]
        return [alert for alert in found if alert is not None]

    def _judge(self, one: OutsideRecord, recorded_ns: int, beat: Beat) -> Alert | None:
        key = (one.what, one.site)
        before = self._first.get(key, _Seen(n=0, timed_ns=0, wait_ns=0))
        n, took_ns = one.n - before.n, one.timed_ns - before.timed_ns
        share = took_ns / max(1, recorded_ns)
        least = SAVING_SHARE if one.what == "save" else PASSES_SHARE
        if one.trains:
            return None  # no pause
        if key in self._told or n < MIN_VISITS or one.n_visits < MIN_VISITS or share < least:
            return None
        self._told.add(key)
        period = (one.last_step - one.first_step) / (one.n_visits - 1)
        cost = (
            f"{fmt.ms(took_ns / n / NS_PER_MS)} about every {period:,.0f} steps, "
            f"{fmt.share(share)} of the time"
        )
        if one.what == "save":
            text = f"Saving at {one.site} takes {cost}."
            cause = "saving"
            advice = "Save less often, or have a thread write a copy of what is saved."
        elif one.wait_ns - before.wait_ns > WAITS * took_ns:
            text = f"Passes over {one.site} (validation?) take {cost}, most of it for its batches."
            cause = "validation-input"
            advice = "Give that loader workers, or read fewer of its batches."
        else:
            text = f"Passes over {one.site} (validation?) take {cost}."
            cause = "validation"
            advice = "Read it less often, or fewer of its batches."
        return Alert.at(beat, "pauses", text, cause=cause, advice=advice)
