"""When the accelerator stands still though it has work: it serves another process.

Contexts of several processes take turns on one GPU, some milliseconds each (no MPS). Then nothing
of this process runs, though kernels of its own were launched before: no loader, no copy and no host
is to blame for that.
"""

from __future__ import annotations

import numpy as np

from loaderdoctor.attribution.trace_rows import Rows
from loaderdoctor.intervals import EMPTY, Intervals
from loaderdoctor.trace.columns import ABSENT, Category
from loaderdoctor.units import NS_PER_US

# Fifteen traces of GPUs that one process had to itself (H100, H200) have not one such silence of
# 100 µs; a turn of another process lasts milliseconds.
LEAST_NS = 200 * NS_PER_US
# Of the times from a launch to its kernel's start: so few are due to anything but the way there.
SHORTEST_PERCENT = 5


def held_up(rows: Rows) -> Intervals:
    """From the end of what ran last, or the launch of what runs next, to the start of that.

    What was launched by a call that returned only after it began (a copy from pageable memory) says
    nothing: the call itself may have taken the time. Where the device's clock is ahead of the
    host's all work seems to wait before it begins: what even the promptest kernels wait is no
    evidence. That leaves out some of what is held up where few find an empty queue.
    """
    device = rows.device_rows
    if device.size == 0:
        return EMPTY
    spans = rows.spans
    busy = rows.intervals(device)
    ends, starts = busy.ends[:-1], busy.starts[1:]
    following = np.searchsorted(spans.start_ns[device], starts)
    call = rows.launched_by[following]
    launched = np.where(call == ABSENT, starts, spans.end_ns[np.maximum(call, 0)])
    since = np.maximum(ends, launched + _way_ns(rows))
    long = starts - since >= LEAST_NS
    return Intervals.of(since[long], starts[long])


def _way_ns(rows: Rows) -> int:
    """From a launch to the start of its kernel, for the promptest; 0 where they begin before."""
    spans, call = rows.spans, rows.launched_by
    known = (call != ABSENT) & (spans.category[rows.device_rows] == Category.KERNEL)
    if not known.any():
        return 0
    ways = spans.start_ns[rows.device_rows[known]] - spans.end_ns[call[known]]
    return max(0, int(np.percentile(ways, SHORTEST_PERCENT)))
