"""Counts of durations in bins of equal ratio: a distribution over weeks in constant memory.

Eight bins an octave, so a quantile is known to 9 %, whatever the distribution. Both processes use
these bins; adding two histograms is adding their counts.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

PER_OCTAVE = 8
N_BINS = 45 * PER_OCTAVE  # 2**45 ns: nine hours


def counted(durations_ns: NDArray[np.int64]) -> dict[int, int]:
    """How many durations each bin holds; bins that hold none are left out."""
    at = np.log2(np.maximum(durations_ns, 1)) * PER_OCTAVE
    counts = np.bincount(np.minimum(at.astype(np.int64), N_BINS - 1), minlength=1)
    return {int(i): int(counts[i]) for i in np.flatnonzero(counts)}


class LogBins:
    """One distribution that grows."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: NDArray[np.int64] = np.zeros(N_BINS, np.int64)

    def add(self, counts: Mapping[int, int]) -> None:
        """Add what `counted` told. Raises IndexError for a bin that does not exist."""
        for bin_, n in counts.items():
            self.counts[bin_] += n

    @property
    def n(self) -> int:
        return int(self.counts.sum())

    def quantile_ns(self, q: float) -> float | None:
        """The duration that a share `q` (0…1) of them stays below, within 9 %; None without any."""
        n = self.n
        if not n:
            return None
        bin_ = int(np.searchsorted(np.cumsum(self.counts), max(1.0, q * n)))
        return float(2.0 ** ((bin_ + 0.5) / PER_OCTAVE))
