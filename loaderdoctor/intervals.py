"""The algebra of time spans: attribution is written in union, intersect and subtract.

`Intervals` are sorted, disjoint, non-empty, half-open [start, end), in integer nanoseconds, so
sums are exact. Operations are vectorised; none loops over spans in Python.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

I64 = NDArray[np.int64]


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
        order = np.argsort(s, kind="stable")
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
        return _sweep(self, other, in_self=True, in_other=True)

    def subtract(self, other: Intervals) -> Intervals:
        """Instants in this set and not in the other."""
        return _sweep(self, other, in_self=True, in_other=False)

    def clip(self, start_ns: int, end_ns: int) -> Intervals:
        """The part within [start, end)."""
        return Intervals.of(np.maximum(self.starts, start_ns), np.minimum(self.ends, end_ns))

    def covered_before(self, at_ns: ArrayLike) -> I64:
        """Time covered before each instant: differences give the time covered per step."""
        at = np.asarray(at_ns, dtype=np.int64)
        if len(self) == 0:
            return np.zeros(at.shape, dtype=np.int64)
        done = np.concatenate(([0], np.cumsum(self.ends - self.starts)))
        index = np.searchsorted(self.starts, at, side="right")
        over = np.where(index > 0, np.maximum(self.ends[np.maximum(index - 1, 0)] - at, 0), 0)
        return np.asarray(done[index] - over, dtype=np.int64)


EMPTY = Intervals(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


def _sweep(a: Intervals, b: Intervals, *, in_self: bool, in_other: bool) -> Intervals:
    """Instants whose membership in a and b is as asked, by one sweep over all edges."""
    edges = np.unique(np.concatenate((a.starts, a.ends, b.starts, b.ends)))
    if edges.size < 2:
        return EMPTY
    at = edges[:-1]
    member_a = np.searchsorted(a.starts, at, side="right") > np.searchsorted(
        a.ends, at, side="right"
    )
    member_b = np.searchsorted(b.starts, at, side="right") > np.searchsorted(
        b.ends, at, side="right"
    )
    keep = (member_a == in_self) & (member_b == in_other)
    return Intervals.of(at[keep], edges[1:][keep])
