"""Ties the processes' clock to a trace's: CLOCK_MONOTONIC nanoseconds to trace nanoseconds.

The measuring process noted the instant at which it opened certain spans (`WindowDone.clock_marks`).
Both clocks run at the same rate (the kernel disciplines both), so one offset maps them: the
median over the marks, because a single mark may be late when the thread lost the CPU in between.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray

from loaderdoctor.errors import TraceError
from loaderdoctor.trace.columns import Category, Trace

I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockMap:
    """trace ns = monotonic ns + `offset_ns`. Strictly monotone."""

    offset_ns: int
    error_ns: int  # farthest mark from the median: no instant is mapped worse than its mark was
    spread_ns: int  # between the 5th and the 95th percentile of the marks' offsets
    n_marks: int

    @overload
    def to_trace(self, monotonic_ns: int) -> int: ...
    @overload
    def to_trace(self, monotonic_ns: I64) -> I64: ...
    def to_trace(self, monotonic_ns: int | I64) -> int | I64:
        """Trace time of an instant that a process noted."""
        return monotonic_ns + self.offset_ns


def calibrate(trace: Trace, marks: Sequence[tuple[str, int]]) -> ClockMap:
    """The map from marks: (name of a span, monotonic ns at which it was opened).

    Spans that bear one name are paired with its marks in order; a name whose spans and marks
    differ in number is left out. Raises TraceError where no mark can be paired.
    """
    noted: defaultdict[str, list[int]] = defaultdict(list)
    for name, at_ns in marks:
        noted[name].append(at_ns)
    spans = trace.spans
    host = np.isin(spans.category, (Category.USER_ANNOTATION, Category.CPU_OP, Category.OTHER))
    numbers = {name: i for i, name in enumerate(trace.names)}
    offsets: list[I64] = []
    for name, instants in noted.items():
        if name not in numbers:
            continue
        starts = np.sort(spans.start_ns[host & (spans.name == numbers[name])])
        if starts.size == len(instants):
            offsets.append(starts - np.sort(np.asarray(instants, dtype=np.int64)))
    if not offsets:
        raise TraceError(
            f"{trace.source}: none of the {len(marks)} clock marks is in the trace, so what "
            "workers recorded can't be placed in it. Record the window again."
        )
    every = np.sort(np.concatenate(offsets))
    offset = int(every[every.size // 2])  # in integers: a float holds no 10^18 to the nanosecond
    apart = every - offset
    low, high = np.percentile(apart, (5, 95))
    return ClockMap(
        offset_ns=offset,
        error_ns=int(np.abs(apart).max()),
        spread_ns=int(high - low),
        n_marks=int(every.size),
    )
