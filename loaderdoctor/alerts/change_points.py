"""Says when the level of a noisy series has changed, and hardly ever when it has not.

A value of the series is a block of steps. Blocks are grouped by fours and by sixteens, and the
median of a group is compared with those of all groups since the last change: in units of their own
robust spread, widened for how strongly neighbours are alike, which is what makes slow waves no
news. A change is two groups in a row (more while few are known) that are farther away than that and
than almost any before, on the same side, and by an amount that matters.

Thresholds are set so that a million steps of stationary noise raise no alarm, also where the noise
is heavy-tailed or correlated: `benchmarks/stationary.py` shows it.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Final

import numpy as np

SCALES: Final = (4, 16)  # blocks in a group
MIN_REFERENCE: Final = 8  # groups, for a spread of them
MAX_REFERENCE: Final = 256
# Groups in a row that must be beyond, by how many are known: two of few may be a rare mode of the
# series (a slow step in twenty) that has not come yet.
N_BEYOND: Final = ((64, 2), (24, 3), (0, 4))
# So many times the least change that is told (a step twice as long) is no rare mode.
HUGE: Final = 10.0
N_HUGE: Final = 2
# The level that a change left and came back to within so many blocks: an excursion, which the next
# changes have to exceed.
EXCURSION_BLOCKS: Final = 400
BEYOND_SD: Final = 5.0
SMALL_SAMPLE: Final = 6.0  # a spread of few groups may be too small by chance
BEYOND_SEEN: Final = 1.3  # times what was seen without a change
MAX_ALIKE: Final = 0.97
MAD_TO_SD: Final = 1.4826


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """The least change that is told: by `share` of the level, and at least `least`."""

    share: float
    least: float

    def of(self, level: float) -> float:
        """In the units of the series."""
        return max(self.share * abs(level), self.least)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The level was `before` and is `after`, from about block number `at` on."""

    at: int
    before: float
    after: float

    @property
    def rises(self) -> bool:
        return self.after > self.before


@dataclass(slots=True)
class _Scale:
    """Groups of so many blocks."""

    width: int
    open: list[float] = field(default_factory=list)
    reference: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_REFERENCE))
    beyond: list[float] = field(default_factory=list)  # groups in a row that were, on one side


class LevelWatch:
    """One series. Feed it a value a block."""

    def __init__(self, effect: Effect, *, floor_share: float = 0.02, floor: float = 0.0) -> None:
        """A spread smaller than `floor_share` of the level, or `floor`, is taken for that."""
        self._effect, self._floor_share, self._floor = effect, floor_share, floor
        self._scales = [_Scale(width) for width in SCALES]
        self._n = 0
        self._latest: Change | None = None
        self._excursion = 0.0  # the largest, as a share of the level

    @property
    def level(self) -> float | None:
        """Of late; None until it is known."""
        known = self._scales[0].reference
        return float(np.median(known)) if len(known) >= MIN_REFERENCE else None

    def add(self, value: float) -> Change | None:
        """The next block; a change where this block completes one."""
        self._n += 1
        for scale in self._scales:
            scale.open.append(value)
            if len(scale.open) < scale.width:
                continue
            group = float(np.median(scale.open))
            scale.open.clear()
            change = self._compare(scale, group)
            if change is not None:
                self._begin_again(scale)
                self._note_excursion(change)
                return change
        return None

    def _note_excursion(self, change: Change) -> None:
        before, self._latest = self._latest, change
        if before is None or change.at - before.at > EXCURSION_BLOCKS or not before.before:
            return
        if abs(change.after - before.before) <= abs(change.before - change.after) / 2:
            away = abs(before.after - before.before) / abs(before.before)
            self._excursion = max(self._excursion, away)

    def _compare(self, scale: _Scale, group: float) -> Change | None:
        known = scale.reference
        if len(known) < MIN_REFERENCE:
            known.append(group)
            return None
        values = np.array(known)
        level = float(np.median(values))
        away = group - level
        limit = max(self._effect.of(level), self._limit(values, level))
        if abs(away) < limit:
            known.extend(scale.beyond)
            scale.beyond.clear()
            known.append(group)
            return None
        if scale.beyond and (scale.beyond[-1] > level) != (away > 0):
            known.extend(scale.beyond)
            scale.beyond.clear()
        scale.beyond.append(group)
        if len(scale.beyond) < self._needed(scale, values.size, level):
            return None
        at = self._n - scale.width * len(scale.beyond) + 1
        return Change(at=at, before=level, after=float(np.median(scale.beyond)))

    def _needed(self, scale: _Scale, n_known: int, level: float) -> int:
        """Groups in a row that settle it."""
        huge = HUGE * self._effect.of(level)
        if all(abs(group - level) >= huge for group in scale.beyond):
            return N_HUGE
        return next(n for least, n in N_BEYOND if n_known >= least)

    def _limit(self, values: np.ndarray, level: float) -> float:
        """How far a group may be from the level by chance."""
        n = values.size
        spread = _spread(values, level, max(self._floor_share * abs(level), self._floor))
        by_spread = BEYOND_SD * (1.0 + SMALL_SAMPLE / n) * spread
        seen = float(np.partition(np.abs(values - level), n - 2)[n - 2])  # but for the farthest
        return max(by_spread, BEYOND_SEEN * seen, BEYOND_SEEN * self._excursion * abs(level))

    def _begin_again(self, changed: _Scale) -> None:
        """What comes now is compared with what came since the change."""
        since = list(changed.beyond)
        for scale in self._scales:
            scale.open.clear()
            scale.reference.clear()
            scale.beyond.clear()
        changed.reference.extend(since)


def _spread(values: np.ndarray, level: float, least: float) -> float:
    """Robust standard deviation, of `least` at least, widened for how alike neighbours are."""
    spread = max(MAD_TO_SD * float(np.median(np.abs(values - level))), least)
    alike = max(0.0, _lag_one(values, level)) + 2.0 / math.sqrt(values.size)
    alike = min(MAX_ALIKE, alike)
    return spread * math.sqrt((1.0 + alike) / (1.0 - alike))


def _lag_one(values: np.ndarray, level: float) -> float:
    """How alike neighbours are, -1…1, by ranks of the sign: outliers count once."""
    signs = np.sign(values - level)
    return float(np.mean(signs[1:] * signs[:-1])) if values.size > 1 else 0.0


class DriftWatch:
    """Notices a level that creeps, too slowly for `LevelWatch`, whose reference creeps with it.

    Compares groups of 64 blocks with the first of them, which stay.
    """

    WIDTH: Final = 64
    N_FIRST: Final = 16

    def __init__(self, effect: Effect) -> None:
        self._effect = effect
        self._open: list[float] = []
        self._first: list[float] = []
        self._beyond: list[float] = []
        self._n = 0

    def add(self, value: float) -> Change | None:
        self._n += 1
        self._open.append(value)
        if len(self._open) < self.WIDTH:
            return None
        group = float(np.median(self._open))
        self._open.clear()
        if len(self._first) < self.N_FIRST:
            self._first.append(group)
            return None
        values = np.array(self._first)
        level = float(np.median(values))
        limit = BEYOND_SD * _spread(values, level, 0.02 * abs(level))
        limit = max(limit, BEYOND_SEEN * float(np.max(np.abs(values - level))))
        away = group - level
        if abs(away) < max(limit, self._effect.of(level)):
            self._beyond.clear()
            return None
        if self._beyond and (self._beyond[-1] > level) != (away > 0):
            self._beyond.clear()
        self._beyond.append(group)
        if len(self._beyond) < 2:
            return None
        after = float(np.median(self._beyond))
        change = Change(at=self._n - self.WIDTH * len(self._beyond) + 1, before=level, after=after)
        self.begin_again()
        return change

    def begin_again(self) -> None:
        """The level is another one by now: what comes is compared with that."""
        self._open.clear()
        self._first.clear()
        self._beyond.clear()
