"""The algebra of time spans: attribution is written in union, intersect and subtract.

`Intervals` are sorted, disjoint, non-empty, half-open [start, end), in integer nanoseconds, so
sums are exact. Operations are vectorised; none loops over spans in Python. Instants lie well
within int64 (292 years); its two ends are not instants.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

I64 = NDArray[np.int64]
_FIRST = np.iinfo(np.int64).min
_LAST = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, eq=False)
class Intervals:
    """A set of instants as sorted, disjoint, half-open spans; build it with `of`."""

    starts: I64
    ends: I64

    @staticmethod
    def of(starts: ArrayLike, ends: ArrayLike) -> Intervals:
        """Union of any spans: unsorted, overlapping, nested or empty (end <= start) too."""
        s = np.asarray(starts, dtype=np.int64)
        e = np.asarray(ends, dtype=np.int64)
        keep = e > s
        s, e = s[keep], e[keep]
        if s.size == 0:
            return EMPTY
        if s.size == 1:
            return Intervals(s, e)
        order = s.argsort(kind="stable")
        s, e = s[order], e[order]
        reach = np.maximum.accumulate(e)
        first = np.concatenate(([True], s[1:] > reach[:-1]))
        last = np.concatenate((first[1:], [True]))
        return Intervals(s[first], reach[last])

    @staticmethod
    def span(start_ns: int, end_ns: int) -> Intervals:
        """One span; empty where end <= start."""
        return Intervals.of([start_ns], [end_ns])

    def __len__(self) -> int:
        return int(self.starts.shape[0])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Intervals):
            return NotImplemented
        return np.array_equal(self.starts, other.starts) and np.array_equal(self.ends, other.ends)

    __hash__ = None  # type: ignore[assignment]  # arrays inside: not hashable

    @property
    def total_ns(self) -> int:
        """Time covered."""
        return int((self.ends - self.starts).sum())

    @property
    def lengths_ns(self) -> I64:
        """Length of each span."""
        return self.ends - self.starts

    def union(self, other: Intervals) -> Intervals:
        """Instants in either."""
        return Intervals.of(
            np.concatenate((self.starts, other.starts)), np.concatenate((self.ends, other.ends))
        )

    def intersect(self, other: Intervals) -> Intervals:
        """Instants in both."""
        if len(self) == 0 or len(other) == 0:
            return EMPTY
        if len(other) == 1:
            return self._within(other)
        if len(self) == 1:
            return other._within(self)
        # Each span here meets a run of consecutive spans there (from `first`, `count` of them).
        first = other.ends.searchsorted(self.starts, "right")
        count = other.starts.searchsorted(self.ends, "left") - first
        mine = np.repeat(np.arange(len(self)), count)
        within_run = np.arange(mine.size) - np.repeat(np.cumsum(count) - count, count)
        theirs = first[mine] + within_run
        # Sorted, disjoint and apart as both inputs are: no second union needed.
        return Intervals(
            np.maximum(self.starts[mine], other.starts[theirs]),
            np.minimum(self.ends[mine], other.ends[theirs]),
        )

    def _within(self, one: Intervals) -> Intervals:
        """Instants of this set in a set of one span, most often a window."""
        start, end = one.starts[0], one.ends[0]
        first, last = self.ends.searchsorted(start, "right"), self.starts.searchsorted(end, "left")
        if first >= last:
            return EMPTY
        starts, ends = self.starts[first:last].copy(), self.ends[first:last].copy()
        starts[0], ends[-1] = max(starts[0], start), min(ends[-1], end)
        return Intervals(starts, ends)

    def subtract(self, other: Intervals) -> Intervals:
        """Instants in this set and not in the other."""
        if len(self) == 0 or len(other) == 0:
            return self
        return self.intersect(other._complement())

    def _complement(self) -> Intervals:
        """Every representable instant that is not in this set."""
        starts = np.concatenate(([_FIRST], self.ends))
        ends = np.concatenate((self.starts, [_LAST]))
        keep = ends > starts
        return Intervals(starts[keep], ends[keep])

    def contains(self, at_ns: ArrayLike) -> NDArray[np.bool_]:
        """Whether each instant lies in the set."""
        at = np.asarray(at_ns, dtype=np.int64)
        if at.ndim == 1 and at.size > len(self) and bool((at[1:] >= at[:-1]).all()):
            # Many instants in order: look the few spans up among them instead.
            first = np.searchsorted(at, self.starts, side="left")
            end = np.searchsorted(at, self.ends, side="left")
            n_begun = np.bincount(first, minlength=at.size + 1)
            n_ended = np.bincount(end, minlength=at.size + 1)
            return np.cumsum(n_begun - n_ended)[:-1] > 0
        if len(self) == 0:
            return np.zeros(at.shape, np.bool_)
        begun = self.starts.searchsorted(at, "right")
        ended = self.ends.searchsorted(at, "right")
        return np.asarray(begun > ended)

    def clip(self, start_ns: int, end_ns: int) -> Intervals:
        """The part within [start, end)."""
        return Intervals.of(np.maximum(self.starts, start_ns), np.minimum(self.ends, end_ns))

    def covered_before(self, at_ns: ArrayLike) -> I64:
        """Time covered before each instant: differences give the time covered per step."""
        at = np.asarray(at_ns, dtype=np.int64)
        if len(self) == 0:
            return np.zeros(at.shape, dtype=np.int64)
        done = np.concatenate(([0], np.cumsum(self.ends - self.starts)))
        index = self.starts.searchsorted(at, "right")
        over = np.where(index > 0, np.maximum(self.ends[np.maximum(index - 1, 0)] - at, 0), 0)
        return np.asarray(done[index] - over, dtype=np.int64)


EMPTY = Intervals(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
