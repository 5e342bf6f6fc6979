"""The one identity: each instant of the window in exactly one share, and what recording adds.

The order of subtraction is the definition. All sets are in ns on the trace's clock; overlaps and
parts outside the window are fine.

What recording takes of the host's time the trace itself tells: what it holds, times its cost. It
slows the host and nothing else: kernels run as fast as ever, worker processes too. So of a profiled
step the host's part is too large, and what the loop waits for (its input) too small.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loaderdoctor.attribution.clock import StepClock
from loaderdoctor.attribution.fetches import Fetches, silence_at
from loaderdoctor.attribution.trace_rows import Mask, Rows
from loaderdoctor.facts.host import longer_silences_ms, work_between
from loaderdoctor.facts.step import MODERATE_SHARE, NO_SHARES, Shares
from loaderdoctor.facts.trace import ProfilerFacts, TraceFacts, copy_calls_ms, workers_set_the_pace
from loaderdoctor.intervals import EMPTY, Intervals
from loaderdoctor.trace.columns import ABSENT, I64, Category, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Disjoint sets whose union is the window; None = not applicable or not recorded."""

    window: Intervals
    compute: Intervals
    communication: Intervals
    copy: Intervals | None
    input: Intervals | None
    host: Intervals
    other: Intervals

    def parts(self) -> dict[str, Intervals]:
        """The sets that there are, by the names of their shares."""
        named = {
            "compute": self.compute,
            "communication": self.communication,
            "copy": self.copy,
            "input": self.input,
            "host": self.host,
            "other": self.other,
        }
        return {name: part for name, part in named.items() if part is not None}

    def shares(self) -> Shares:
        """As parts of the window; of an empty window none is known."""
        total = self.window.total_ns
        if not total:
            return NO_SHARES
        parts: dict[str, float | None] = dict.fromkeys(("copy", "input"))
        parts |= {name: part.total_ns / total for name, part in self.parts().items()}
        return Shares(**parts)


def with_accelerator(
    *,
    window: Intervals,
    kernels: Intervals,
    collectives: Intervals,
    copies: Intervals,
    copy_calls: Intervals,
    getting: Intervals | None,
    recorded: Intervals,
    held_up: Intervals = EMPTY,
) -> Partition:
    """Kernel that is no collective > collective > copy itself > held up > copy call > input > host.

    `kernels` holds memsets and D2D copies too. `copy_calls` is when the training thread is inside
    the runtime call of an H2D copy or its stream sync: only where the accelerator idles does it
    count. `recorded` is when the host was recorded: idle time outside it is nobody's (`other`), and
    so is `held_up`, in which the accelerator had work and served another process.
    """
    left = window
    compute, left = _take(left, kernels)
    communication, left = _take(left, collectives)
    elsewhere = held_up.subtract(copies)
    copy, left = _take(left, copies.union(copy_calls).subtract(elsewhere))
    elsewhere, left = _take(left, elsewhere)
    got, left = _take(left, EMPTY if getting is None else getting)
    host, left = _take(left, recorded)
    return Partition(
        window=window,
        compute=compute,
        communication=communication,
        copy=copy,
        input=None if getting is None else got,
        host=host,
        other=left.union(elsewhere),
    )


def without_accelerator(
    *,
    window: Intervals,
    getting: Intervals | None,
    communicating: Intervals,
    computing: Intervals,
    recorded: Intervals,
) -> Partition:
    """Input > communication > compute > host; there is no copy."""
    left = window
    got, left = _take(left, EMPTY if getting is None else getting)
    communication, left = _take(left, communicating)
    compute, left = _take(left, computing)
    host, left = _take(left, recorded)
    return Partition(
        window=window,
        compute=compute,
        communication=communication,
        copy=None,
        input=None if getting is None else got,
        host=host,
        other=left,
    )


def computing(rows: Rows) -> Intervals:
    """Ops and optimizer spans of any thread, outside what batch-making threads fetch.

    The union of all of a thread's ops is that of its top-level ones. What the training thread
    does while it fetches is `input` before it is compute.
    """
    spans = rows.spans
    ops = (spans.category == Category.CPU_OP) | rows.optimizing
    found = rows.intervals(ops & ~rows.by_producers())
    for thread in rows.producer_threads:
        mine = spans.thread == thread
        found = found.union(
            rows.intervals(ops & mine).subtract(rows.intervals(rows.fetches & mine))
        )
    return found


def may_wait(rows: Rows, clock: StepClock, copied_ns: I64) -> Intervals:
    """When the loop may make its batches, or wait for them, where no event tells of either.

    Where its steps begin: silences there. With an accelerator also all that the training thread
    does, Python and operators, from the last that it launched or waited for to the copy of a batch
    (`copied_ns`, when each was called).
    """
    spans = rows.spans
    mine = rows.on_training_thread()
    at = clock.host_start_ns
    if clock.kind == "optimizer":  # `zero_grad` often comes next, and the batch after it
        at = np.concatenate((at, spans.end_ns[rows.outermost(mine & rows.optimizing)]))
    silent = silence_at(rows, at)

    events = rows.outermost(mine & rows.events)
    start, end = spans.start_ns[events], spans.end_ns[events]
    launching = rows.named(rows.flags.sync, Category.RUNTIME) | rows.optimizing
    launching[rows.launched_by[rows.launched_by != ABSENT]] = True
    launched = np.sort(spans.start_ns[launching & mine])

    def holds(instants: I64) -> Mask:
        return np.asarray(np.searchsorted(instants, end) > np.searchsorted(instants, start))

    last = np.maximum.accumulate(np.where(holds(launched), np.arange(events.size), -1))
    found = np.flatnonzero(holds(np.sort(copied_ns)))
    found = found[found > 0]
    found, before = found[last[found - 1] >= 0], last[found - 1][last[found - 1] >= 0]
    return silent.union(Intervals.of(end[before], start[found]))


def _take(left: Intervals, claimed: Intervals) -> tuple[Intervals, Intervals]:
    """What a share takes of the instants still left, and what it leaves."""
    return left.intersect(claimed), left.subtract(claimed)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cost:
    """Microseconds of host time that recording one event takes."""

    least: float
    likely: float
    most: float


# Profiled less plain step time over the ops recorded, in host-bound loops: 1.9 to 8.7 µs, median
# 4.5, on an H100 (benchmarks/loops.py, torch 2.11), where launches are recorded too; 3.7 and 4.2 on
# an H200. Without an accelerator 1.1 to 1.2 µs (two cores, torch 2.14).
_OP_ON_DEVICE = _Cost(least=2.0, likely=4.5, most=9.0)
_OP_ON_CPU = _Cost(least=0.8, likely=1.2, most=3.0)
# Two cores, torch 2.14: 2.5 µs a Python frame, 1.7 µs a memory event; half and twice that.
_FRAME = _Cost(least=1.2, likely=2.5, most=5.0)
_MEMORY_EVENT = _Cost(least=0.8, likely=1.7, most=3.5)


def profiler_facts(
    trace: Trace, rows: Rows, clock: StepClock, fetches: Fetches
) -> ProfilerFacts | None:
    """What was recorded of each step outside its fetches; None where no op was.

    Of any thread: autograd's works while the training thread waits for it.
    """
    spans = rows.spans

    def n_of(category: Category, mask: Mask | None = None) -> int:
        of_it = spans.category == category
        if mask is not None:
            of_it &= mask
        at = spans.start_ns[of_it]
        return int((clock.host_window.contains(at) & ~fetches.getting.contains(at)).sum())

    n_ops = n_of(Category.CPU_OP)
    if not n_ops:
        return None
    n_frames = n_of(Category.PYTHON, rows.on_training_thread())
    # They are only counted, without their time: as many in each part of the trace.
    length = int(spans.end_ns.max()) - int(spans.start_ns.min())
    within = clock.host_window.total_ns / length if length > 0 else 0.0
    n_memory = trace.n_memory_events * min(1.0, within)
    op = _OP_ON_DEVICE if trace.has_accelerator else _OP_ON_CPU
    counts = (n_ops, n_frames, n_memory)

    def ms(*costs_us: float) -> float:
        total = sum(n * us for n, us in zip(counts, costs_us, strict=True))
        return total / 1e3 / clock.per_step

    return ProfilerFacts(
        n_ops=n_ops / clock.per_step,
        n_frames=n_frames / clock.per_step,
        n_memory_events=n_memory / clock.per_step,
        least_ms=ms(op.least, _FRAME.least, _MEMORY_EVENT.least),
        likely_ms=ms(op.likely, _FRAME.likely, _MEMORY_EVENT.likely),
        most_ms=ms(op.most, _FRAME.most, _MEMORY_EVENT.most),
    )


# Plain host time an op, of eager training on an accelerator: 7.6 µs where 252 kernels are launched
# a step (`launch_bound_tiny`), 9.7 where 40 are (`gpu_resident`, both H100), and no more than 8.4
# in a ResNet-18 that keeps its H200 busy. Half as much for a faster host, and half as much again.
OP_AT_LEAST_US = 5.0
OP_AT_MOST_US = 14.0


def without_profiler(trace: TraceFacts, own_ms: float | None = None) -> Shares:
    """The trace's shares less the profiler's own time, rescaled to 1; None: the likely one.

    It is taken from the exposed host, and then from the exposed input, which begins later by as
    much; without an accelerator, where ops are what computes, from host and compute. Where worker
    processes set the pace the step takes no longer by it: the loop waits the less for them, and
    that is given back to `input`. What copies cost beside their own time (`copy_calls_ms`) is
    `copy` and no host work; what runs while nothing waits for it is none.
    """
    shares, wall_ms = trace.shares, trace.wall_ms
    if not wall_ms:
        return shares
    parts = shares.as_dict()
    after = min(copy_calls_ms(trace) / wall_ms, shares.host or 0.0)
    if own_ms is None:
        own_ms = trace.host.profiler.likely_ms if trace.host.profiler is not None else 0.0
    left = own_ms / wall_ms
    paced = parts["input"] is not None and workers_set_the_pace(trace)
    # Getting a batch is the same thread's, and exposed the more the later it gets to it.
    also = ("input",) if trace.has_accelerator and not paced else ()
    # Where the loop works between two ops, nothing is recorded that would take time.
    silent = {"host": max(work_between(trace)[0], trace.host.freeing_ms) / wall_ms}
    for name in ("host", *also) if trace.has_accelerator else ("host", "compute"):
        taken = min(left, max(0.0, (parts[name] or 0.0) - silent.get(name, 0.0)))
        parts[name] = (parts[name] or 0.0) - taken
        left -= taken
    if paced:
        parts["input"] = (parts["input"] or 0.0) + own_ms / wall_ms - left
    whole = sum(v for v in parts.values() if v is not None)
    if whole <= 0.0:
        return shares
    if parts["copy"] is not None and parts["host"] is not None and shares.host:
        after *= parts["host"] / shares.host  # the profiler has its part in that too
        parts["copy"] += after
        parts["host"] -= after
        unwaited = sum(c.unwaited_ms_per_step for c in trace.copies) / wall_ms
        parts["copy"] -= unwaited
        parts["host"] += unwaited
    return Shares(**{k: None if v is None else v / whole for k, v in parts.items()})


def host_bounds(trace: TraceFacts) -> tuple[float, float]:
    """What of a step that nothing records is surely the exposed host's, and what may be, 0…1.

    Surely: the loop's own work between two ops (long silences, but for what may free batches), and
    more ops than the kernels' time suffices to launch; without an accelerator, what is left when
    recording took the most. May be:
    launching at the slowest and all silences that are none of launching, and no less than what is
    left when recording took the most.
    """
    profiler, exposed_ms = trace.host.profiler, trace.host.exposed_ms
    if profiler is None or trace.wall_ms <= 0:
        return (trace.shares.host or 0.0,) * 2
    gaps_ms = max(0.0, work_between(trace)[0] - trace.host.freeing_ms)
    left_ms = exposed_ms - profiler.most_ms
    if not trace.has_accelerator:
        return _of_step(max(left_ms, gaps_ms), trace), _of_step(exposed_ms, trace)
    busy_ms = trace.kernels.busy_ms
    sure_ms = gaps_ms + max(0.0, profiler.n_ops * OP_AT_LEAST_US / 1e3 - busy_ms)
    slow_ms = max(0.0, profiler.n_ops * OP_AT_MOST_US / 1e3 - busy_ms)
    other_ms = longer_silences_ms(trace) + (trace.syncs.idle_after_ms or 0.0)
    may_ms = max(left_ms, min(exposed_ms - profiler.least_ms, slow_ms + other_ms))
    return _of_step(sure_ms, trace), _of_step(may_ms, trace)


def _of_step(host_ms: float, trace: TraceFacts) -> float:
    """Of the step with so much exposed host time in place of what was recorded."""
    exposed_ms = trace.host.exposed_ms
    host_ms = min(max(host_ms, 0.0), exposed_ms)
    whole_ms = trace.wall_ms - exposed_ms + host_ms
    return host_ms / whole_ms if whole_ms > 0 else 0.0


# Recording that takes this much of a step hides waits worth a verdict: a pool that is just as fast
# as the recorded step holds the loop up by as much of it without.
HIDING_SHARE = 0.2


def recording_hides_waits(trace: TraceFacts) -> bool:
    """Whether recording likely slows the loop so much that worker processes got time to spare."""
    profiler = trace.host.profiler
    if not trace.fetching.has_workers or profiler is None:
        return False
    return profiler.likely_ms >= HIDING_SHARE * trace.wall_ms


def idle_is_recordings(trace: TraceFacts, shares: Shares) -> bool:
    """Whether the device idled, by as much as would matter, for what recording took of the host.

    Worker processes that keep up with steps so much longer may be too slow for the loop without:
    two simulated loops of 120 waited 10 and 18 % of their steps, and not at all while recorded.
    """
    if not trace.fetching.has_workers or not trace.has_accelerator:
        return False
    return (trace.shares.host or 0.0) - (shares.host or 0.0) >= MODERATE_SHARE
