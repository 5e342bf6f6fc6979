"""Says when memory grows without an end, and when it will be full at this rate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

# Looks kept; where there are more, every other one goes, so that they reach over the whole run.
KEPT: Final = 96
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
    """Memory that will be full."""

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
            if len(self._at_s) >= KEPT:
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
