"""How busy the accelerator is over wall time, and the gaps in it: their period, depth, and cause.

"GPU use drops to 0 every five seconds" is how a starved loop is first noticed. The busy share
(a kernel runs, on any device) is taken over a time as long as a typical step, so that what repeats
within each step averages out, at every quarter of it. Where it falls below half of what a typical
step has there is a gap, as long as that lasts: at least half a step where the accelerator is busy
all of a typical step, up to a whole one where it idles for most of it anyway.

Gaps are matched by counting steps, not milliseconds: steps that wait take as long as their waits.
A gap in which an iterator was created or exhausted is an epoch's. Otherwise, if gaps come back
after num_workers steps, they are a worker cycle's.

Fooled by: a profiled window that holds one period or less (the series says how long it is).

It also stands still, though it has work, while it serves another process. Contexts of several
processes take turns on one GPU, some milliseconds each (no MPS). Then nothing of this process runs,
though kernels of its own were launched before: no loader, no copy and no host is to blame for that.
"""

from __future__ import annotations

import math

import numpy as np

from loaderdoctor.attribution.clock import StepClock
from loaderdoctor.attribution.fetches import Fetches
from loaderdoctor.attribution.trace_rows import Rows
from loaderdoctor.facts.trace import BusyFacts, IdleGapFacts
from loaderdoctor.intervals import EMPTY, Intervals
from loaderdoctor.trace.columns import ABSENT, F64, I64, Category
from loaderdoctor.units import NS_PER_MS, NS_PER_US

# Values between two ends of a typical step: a gap's edge is known to a quarter of a step.
PER_STEP = 4
MAX_POINTS = 20_000  # looked at; a longer window is looked at more coarsely
MAX_SHOWN = 400  # as many as a chart can show apart
MAX_IDLE_GAPS = 200  # listed
# Below this part of a typical step's busy share the accelerator counts as fallen idle.
LOW = 0.5
# Gaps shorter than this part of the longest are not the ones that are noticed.
MINOR = 0.25
# A loop whose typical step hardly uses the accelerator has nothing to fall from.
MIN_USUAL_SHARE = 0.01
# Steps with a gap among all: beyond, it is no gap but how each step is.
MAX_IDLE_GAP_STEPS = 0.5
# Of the pairs of steps one period apart that begin with a gap, so many must end with one. Of gaps
# strewn at random over an eighth of the steps, three pairs do so in one case of twenty.
MIN_REPEATED = 0.75
MIN_PAIRS = 2
# Of the gaps, so many must hold an epoch's boundary.
MIN_AT_BOUNDARIES = 0.75
# And of the boundaries, so many must have a gap.
MIN_IDLE_GAP_BOUNDARIES = 0.5
# Fifteen traces of GPUs that one process had to itself (H100, H200) have not one such silence of
# 100 µs; a turn of another process lasts milliseconds.
LEAST_NS = 200 * NS_PER_US
# Of the times from a launch to its kernel's start: so few are due to anything but the way there.
SHORTEST_PERCENT = 5


def busy_facts(
    busy: Intervals,
    clock: StepClock,
    fetches: Fetches,
    waiting: Intervals | None,
    *,
    num_workers: int | None = None,
) -> BusyFacts | None:
    """The series over the measured steps, with its gaps; None for an empty window.

    `busy`: some kernel runs. `waiting`: the accelerator idles and the loop waits for a batch; None
    where that was not recorded. `num_workers`: of the loader that feeds the step, where known.
    """
    if not len(clock.window):
        return None
    begin, end = int(clock.window.starts[0]), int(clock.window.ends[-1])
    lengths = clock.end_ns - clock.start_ns
    over = float(np.median(lengths)) if clock.n_steps else (end - begin) / MAX_SHOWN
    every = max(over / PER_STEP, (end - begin) / MAX_POINTS, 1.0)
    over = max(over, every)
    middles, shares = _moving(busy, begin, end, every, over)
    n_apart = -(-shares.size // MAX_SHOWN)
    shown_at, shown = middles, shares
    if n_apart > 1:
        shown_at, shown = _moving(busy, begin, end, every * n_apart, every * n_apart)
    return BusyFacts(
        every_ms=every * n_apart / NS_PER_MS,
        over_ms=(over if n_apart == 1 else every * n_apart) / NS_PER_MS,
        shares=tuple(shown.tolist()) if shown_at.size else (),
        window_ms=(end - begin) / NS_PER_MS,
        idle_gaps=_idle_gaps(busy, clock, fetches, waiting, num_workers, middles, shares, every),
    )


def _moving(busy: Intervals, begin: int, end: int, every: float, over: float) -> tuple[I64, F64]:
    """Instants `every` ns apart, and the busy share of the time `over` around each.

    At the window's ends that time is cut off there.
    """
    n = max(1, int((end - begin) / every))
    middles = begin + np.rint((np.arange(n) + 0.5) * every).astype(np.int64)
    low = np.maximum(middles - int(over / 2), begin)
    high = np.minimum(middles + max(1, int(over / 2)), end)
    covered = busy.covered_before(high) - busy.covered_before(low)
    return middles, covered / np.maximum(high - low, 1)


def _idle_gaps(
    busy: Intervals,
    clock: StepClock,
    fetches: Fetches,
    waiting: Intervals | None,
    num_workers: int | None,
    middles: I64,
    shares: F64,
    every: float,
) -> IdleGapFacts | None:
    lengths = np.maximum(clock.end_ns - clock.start_ns, 1)
    of_steps = (busy.covered_before(clock.end_ns) - busy.covered_before(clock.start_ns)) / lengths
    usual = float(np.median(of_steps)) if clock.n_steps > 1 else 0.0
    if usual < MIN_USUAL_SHARE:
        return None
    # Rounded up, so that neighbours meet: apart by a nanosecond they would be gaps of their own.
    half = math.ceil(every / 2)
    at = middles[shares < LOW * usual]
    # Steps may be far apart; what lies between them is not of the window.
    low = Intervals.of(at - half, at + half).intersect(clock.window)
    least = (1 - LOW * usual) * float(np.median(lengths))
    kept = low.lengths_ns >= max(least, MINOR * low.lengths_ns.max(initial=0))
    low = Intervals(low.starts[kept], low.ends[kept])
    if len(low) == 0:
        return None
    step = np.minimum(
        np.searchsorted(clock.end_ns, (low.starts + low.ends) // 2, side="right"),
        clock.n_steps - 1,
    )
    in_idle_gap = np.unique(step)
    if in_idle_gap.size > MAX_IDLE_GAP_STEPS * clock.n_steps:
        return None
    begin = int(clock.window.starts[0])
    apart = np.diff(step)
    period = float(np.median(apart)) if apart.size else None
    matches, match_steps = _match(low, in_idle_gap, clock, fetches, num_workers)
    total = low.total_ns
    return IdleGapFacts(
        spans_ms=tuple(
            ((int(a) - begin) / NS_PER_MS, (int(b) - begin) / NS_PER_MS)
            for a, b in zip(low.starts[:MAX_IDLE_GAPS], low.ends[:MAX_IDLE_GAPS], strict=True)
        ),
        n=len(low),
        mean_ms=total / len(low) / NS_PER_MS,
        usual_share=usual,
        low_share=busy.intersect(low).total_ns / total,
        of_window_share=total / clock.window.total_ns,
        period_ms=float(np.diff(low.starts).mean()) / NS_PER_MS if len(low) > 1 else None,
        period_steps=period,
        regular=(
            period is not None
            and apart.size >= MIN_PAIRS
            and float((np.abs(apart - period) <= _slack(period)).mean()) >= MIN_REPEATED
        ),
        matches=matches,  # type: ignore[arg-type]  # as _match gives
        match_steps=match_steps,
        waiting_share=waiting.intersect(low).total_ns / total if waiting is not None else None,
    )


def _match(
    idle_gaps: Intervals,
    in_idle_gap: I64,
    clock: StepClock,
    fetches: Fetches,
    num_workers: int | None,
) -> tuple[str | None, int | None]:
    """What the gaps go with, and its length in steps."""
    boundaries = np.sort(np.concatenate((fetches.created_ns, fetches.exhausted_ns)))
    boundaries = boundaries[clock.window.contains(boundaries)]
    if boundaries.size:
        slack = int(np.median(clock.end_ns - clock.start_ns))
        near = Intervals.of(idle_gaps.starts - slack, idle_gaps.ends + slack)
        held = np.searchsorted(boundaries, idle_gaps.ends + slack) > np.searchsorted(
            boundaries, idle_gaps.starts - slack
        )
        if (
            held.mean() >= MIN_AT_BOUNDARIES
            and near.contains(boundaries).mean() >= MIN_IDLE_GAP_BOUNDARIES
        ):
            at = np.unique(np.searchsorted(clock.end_ns, boundaries, side="right"))
            # Ended and begun in two neighbouring steps, it is one boundary.
            at = at[np.concatenate(([True], np.diff(at) > 1))]
            return "epoch", int(np.median(np.diff(at))) if at.size > 1 else None
    if num_workers is not None and num_workers > 1 and _repeats(in_idle_gap, num_workers, clock):
        return "worker-cycle", num_workers
    return None, None


def _repeats(in_idle_gap: I64, period: int, clock: StepClock) -> bool:
    """Whether steps with a gap have others `period` steps later, wherever so many are left."""
    slack = int(_slack(period))
    begun = in_idle_gap[in_idle_gap + period + slack < clock.n_steps]
    if begun.size < MIN_PAIRS:
        return False
    wanted = begun[:, None] + period + np.arange(-slack, slack + 1)
    return float(np.isin(wanted, in_idle_gap).any(axis=1).mean()) >= MIN_REPEATED


def _slack(period: float) -> float:
    """Steps that a gap may come early or late: batches change their places in a longer queue."""
    return 1.0 if period >= 6 else 0.0


def held_up(rows: Rows) -> Intervals:
    """From the end of what ran last, or the launch of what runs next, to the start of that.

    What was launched by a call that returned only after it began (a copy from pageable memory) says
    nothing: the call itself may have taken the time. Nor does what the same call launched (a CUDA
    graph orders its kernels by itself). Where the device's clock is ahead of the
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
    apart = (call == ABSENT) | (call != rows.launched_by[following - 1])
    launched = np.where(call == ABSENT, starts, spans.end_ns[np.maximum(call, 0)])
    since = np.maximum(ends, launched + _way_ns(rows))
    long = (starts - since >= LEAST_NS) & apart
    return Intervals.of(since[long], starts[long])


def _way_ns(rows: Rows) -> int:
    """From a launch to the start of its kernel, for the promptest; 0 where they begin before."""
    spans, call = rows.spans, rows.launched_by
    known = (call != ABSENT) & (spans.category[rows.device_rows] == Category.KERNEL)
    if not known.any():
        return 0
    ways = spans.start_ns[rows.device_rows[known]] - spans.end_ns[call[known]]
    return max(0, int(np.percentile(ways, SHORTEST_PERCENT)))
