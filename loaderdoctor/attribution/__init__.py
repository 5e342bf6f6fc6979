"""Everything one trace says about its steps: columns in, `TraceFacts` out."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from loaderdoctor.attribution import identity
from loaderdoctor.attribution.busy import busy_facts, held_up
from loaderdoctor.attribution.clock import StepClock, outside_ns, step_clock, trains, without_pause
from loaderdoctor.attribution.device_work import (
    CopyRows,
    copy_facts,
    copy_rows,
    kernel_facts,
    launch_calls_ns,
    sync_facts,
)
from loaderdoctor.attribution.fetches import Fetches, fetches_of
from loaderdoctor.attribution.gpu import compute_facts, gpu_facts
from loaderdoctor.attribution.host import freeing, host_hotspots
from loaderdoctor.attribution.trace_rows import (
    Mask,
    Rows,
    device_unseen,
    kernels_unseen,
    rows_of,
    without_device_work,
)
from loaderdoctor.attribution.user_code import user_ranges
from loaderdoctor.estimate import Estimate, mean
from loaderdoctor.facts.step import NO_SHARES, Hidden, LeftOut
from loaderdoctor.facts.trace import FetchFacts, HostFacts, TraceFacts
from loaderdoctor.intervals import EMPTY, Intervals
from loaderdoctor.trace.columns import (
    ABSENT,
    DEVICE_CATEGORIES,
    I64,
    Category,
    KernelShapes,
    Spans,
    Trace,
)
from loaderdoctor.units import NS_PER_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWork:
    """When the accelerator does what, over all devices and streams."""

    kernels: Intervals  # no collectives; with memsets and copies within a device
    collectives: Intervals
    busy: Intervals  # either
    held_up: Intervals  # nothing of this process, though it has work: another one's turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributed:
    """A trace divided: its steps, its fetches and copies, and which instant is in which share."""

    trace: Trace
    rows: Rows
    clock: StepClock
    fetches: Fetches
    copies: CopyRows
    work: DeviceWork
    partition: identity.Partition
    left_out: LeftOut
    n_other_processes: int = 0  # that the file was merged from too; nothing here is of them


def attribute(trace: Trace) -> Attributed:
    """Divide the window of the steps that the clock keeps, by the identity."""
    rows = rows_of(trace)
    others = other_processes(trace, rows)
    if others:
        trace = without_processes(trace, rows, others)
        rows = rows_of(trace)
    if kernels_unseen(rows):
        trace = without_device_work(trace)
        rows = rows_of(trace)
    clock = step_clock(rows)
    fetches = fetches_of(rows)
    copies = copy_rows(rows)
    work = _device_work(rows)
    active = fetches.getting.union(copies.on_host).union(work.busy).union(identity.computing(rows))
    clock, pause_ns = without_pause(clock, active, _workers_begun_ns(fetches))
    if trace.has_accelerator:
        partition = identity.with_accelerator(
            window=clock.window,
            kernels=work.kernels,
            collectives=work.collectives,
            copies=copies.device,
            copy_calls=copies.on_host,
            getting=fetches.getting if _input_known(rows, fetches, copies) else None,
            recorded=_recorded(rows),
            held_up=work.held_up,
        )
    else:
        partition = identity.without_accelerator(
            window=clock.window,
            getting=fetches.getting if fetches.recorded else None,
            communicating=rows.intervals(
                rows.named(rows.flags.communication, Category.CPU_OP, Category.USER_ANNOTATION)
            ),
            computing=identity.computing(rows),
            recorded=_recorded(rows),
        )
    return Attributed(
        trace=trace,
        rows=rows,
        clock=clock,
        fetches=fetches,
        copies=copies,
        work=work,
        partition=partition,
        left_out=LeftOut(
            n_edge_steps=clock.n_dropped,
            pause_ms=pause_ns / NS_PER_MS,
            outside_ms=outside_ns(clock, _recorded_ns(rows)) / NS_PER_MS,
        ),
        n_other_processes=len(others),
    )


def _device_work(rows: Rows) -> DeviceWork:
    spans, flags = rows.spans, rows.flags
    device = rows.device_rows
    category, name = spans.category[device], spans.name[device]
    kernel = category == Category.KERNEL
    collective = kernel & flags.collective_kernel[name]
    own = (kernel & ~collective) | (category == Category.MEMSET)
    own |= (category == Category.MEMCPY) & flags.d2d[name]
    kernels, collectives = rows.intervals(device[own]), rows.intervals(device[collective])
    return DeviceWork(
        kernels=kernels,
        collectives=collectives,
        busy=kernels.union(collectives),
        held_up=held_up(rows),
    )


def _recorded(rows: Rows) -> Intervals:
    """When the training thread was recorded: from its first event to its last."""
    mine = rows.on_training_thread()
    if not mine.any():
        return EMPTY
    spans = rows.spans
    return Intervals.span(int(spans.start_ns[mine].min()), int(spans.end_ns[mine].max()))


def _workers_begun_ns(fetches: Fetches) -> I64:
    """When an epoch may have started workers, or ended some: not where the loop makes batches."""
    if fetches.kind == "single-process":
        return np.zeros(0, np.int64)
    return np.concatenate((fetches.created_ns, fetches.exhausted_ns))


def _recorded_ns(rows: Rows) -> I64:
    """When ops and calls of the training thread began, in order."""
    return np.sort(rows.spans.start_ns[rows.events & rows.on_training_thread()])


def _input_known(rows: Rows, fetches: Fetches, copies: CopyRows) -> bool:
    """Whether the trace can tell how long the loop waits for batches.

    Without a sign of a loader it can't, but for one case: nothing is copied to the device, so the
    batches come from nowhere but the device itself, and getting them costs kernels or nothing.
    That too only the host's events tell.
    """
    if fetches.recorded:
        return True
    return rows.training_thread != ABSENT and not copies.of_batch(rows).any()


def facts_of(
    attributed: Attributed, *, num_workers: int | None = None, recorded_here: bool = True
) -> TraceFacts:
    """The figures of a divided trace; with the workers of the step's loader, where known.

    `recorded_here`: by us, who record the accelerator that a loop computes on.

    Times per step are means over the steps that the clock keeps; without any step marks they are
    totals of the whole window and `n_steps` is 0.
    """
    trace, rows, clock = attributed.trace, attributed.rows, attributed.clock
    copies, partition, busy = attributed.copies, attributed.partition, attributed.work.busy
    ranges, n_ranges_left_out = user_ranges(rows, clock)
    facts = TraceFacts(
        n_steps=clock.n_steps,
        left_out=attributed.left_out,
        wall_ms=clock.ms_per_step(clock.window.total_ns),
        step_walls_ms=(
            tuple(float(x) for x in (clock.end_ns - clock.start_ns) / NS_PER_MS)
            if clock.n_steps
            else ()
        ),
        step_clock=clock.kind,
        shares=partition.shares(),
        hidden=_hidden(attributed),
        has_accelerator=trace.has_accelerator,
        fetching=_fetch_facts(attributed),
        copies=(
            copy_facts(rows, copies, clock, partition, busy) if partition.copy is not None else ()
        ),
        kernels=replace(
            kernel_facts(rows, clock, partition, has_accelerator=trace.has_accelerator),
            held_up_ms=clock.ms_per_step(attributed.work.held_up.intersect(clock.window).total_ns),
        ),
        syncs=sync_facts(
            rows, copies, clock, busy, partition.host, has_accelerator=trace.has_accelerator
        ),
        host=_host_facts(attributed),
        compute=compute_facts(trace, rows, clock),
        gpu_devices=gpu_facts(trace, rows, clock),
        busy=(
            busy_facts(busy, clock, attributed.fetches, partition.input, num_workers=num_workers)
            if trace.has_accelerator
            else None
        ),
        few_steps=_few_steps(partition, clock),
        ranges=ranges,
        n_ranges_left_out=n_ranges_left_out,
        trains=trains(rows),
        device_unseen=device_unseen(trace, rows, recorded_here=recorded_here),
    )
    if facts.device_unseen or (not recorded_here and only_marks(facts)):
        none = Hidden(input_ms=None, copy_ms=None)
        return replace(facts, shares=NO_SHARES, hidden=none, few_steps={})
    return replace(facts, plain_shares=identity.without_profiler(facts))


def only_marks(facts: TraceFacts) -> bool:
    """Whether no op and no loader was recorded: what fills the steps is not known.

    Of a loop that we record plain windows and stack samples know more than its trace.
    """
    nothing = facts.host.profiler is None and not facts.fetching.recorded
    return nothing and not facts.has_accelerator


# Of fewer the mean has a noise worth showing: repeats of whole windows differ by some percent.
FEW_STEPS = 5


def _few_steps(partition: identity.Partition, clock: StepClock) -> dict[str, Estimate]:
    """What few steps say of the loop's other ones: each share, with the interval of its mean.

    The steps of one recording are taken for independent samples, as there are no others. Empty
    where there are enough of them.
    """
    if not 0 < clock.n_steps < FEW_STEPS:
        return {}
    found = {}
    wall_ns = clock.end_ns - clock.start_ns
    for name, part in partition.parts().items():
        within = part.covered_before(clock.end_ns) - part.covered_before(clock.start_ns)
        of_steps = within / np.maximum(wall_ns, 1)
        estimate = mean([float(x) for x in of_steps])
        found[name] = replace(
            estimate, low=max(0.0, estimate.low), high=min(1.0, estimate.high)
        ) if estimate.bounded else estimate  # fmt: skip
    return found


def _hidden(attributed: Attributed) -> Hidden:
    """Getting batches while the accelerator runs anything; copies while it computes."""
    clock, partition, busy = attributed.clock, attributed.partition, attributed.work.busy
    copying = attributed.copies.device
    got = attributed.fetches.getting.intersect(clock.host_window)
    return Hidden(
        input_ms=(
            clock.ms_per_step(got.intersect(busy.union(copying)).total_ns)
            if partition.input is not None
            else None
        ),
        copy_ms=(
            clock.ms_per_step(copying.intersect(clock.window).intersect(busy).total_ns)
            if partition.copy is not None
            else None
        ),
    )


def _fetch_facts(attributed: Attributed) -> FetchFacts:
    clock, fetches, partition = attributed.clock, attributed.fetches, attributed.partition
    window = clock.host_window
    got = fetches.getting.intersect(window)
    delivered = fetches.delivered_ns[window.contains(fetches.delivered_ns - 1)]
    started_within = window.contains(fetches.startup_at_ns)
    waits_ms = _waits_ms(got, delivered)
    first = np.searchsorted(delivered, fetches.startup_at_ns[started_within])
    unmarked = None
    # Of threads that make batches without a mark for each, calls tell when one was still at it.
    by_calls = fetches.recorded and fetches.kind is None and not fetches.exact
    if clock.n_steps and (partition.input is None or by_calls):
        copied_ns = attributed.copies.batches_called_ns(attributed.rows)
        unknown = identity.may_wait(attributed.rows, clock, copied_ns)
        unmarked = clock.ms_per_step(unknown.intersect(partition.host).total_ns)
    return FetchFacts(
        recorded=fetches.recorded,
        kind=fetches.kind,
        n_per_step=delivered.size / clock.per_step if fetches.recorded else None,
        raw_wait_ms=clock.ms_per_step(got.total_ns) if fetches.recorded else None,
        waits_ms=waits_ms,
        n_iterators_created=int(window.contains(fetches.created_ns).sum()),
        n_exhausted=int(window.contains(fetches.exhausted_ns).sum()),
        startup_ms=tuple(float(x) / NS_PER_MS for x in fetches.startup_ns[started_within]),
        boundaries_ms=tuple(waits_ms[i] for i in first.tolist() if i < len(waits_ms)),
        unmarked_wait_ms=unmarked,
    )


def _host_facts(attributed: Attributed) -> HostFacts:
    trace, rows, clock = attributed.trace, attributed.rows, attributed.clock
    host, samples = attributed.partition.host, trace.stack_samples
    freed = freeing(rows, attributed.copies, attributed.fetches, samples)
    call_ns = launch_calls_ns(rows, clock) if trace.has_accelerator else None
    return HostFacts(
        exposed_ms=clock.ms_per_step(host.total_ns),
        hotspots=host_hotspots(rows, host, clock.per_step, samples),
        launch_call_ms=None if call_ns is None else clock.ms_per_step(call_ns),
        run_ahead_steps=clock.run_ahead_steps,
        profiler=identity.profiler_facts(trace, rows, clock, attributed.fetches),
        freeing_ms=clock.ms_per_step(freed.intersect(host).total_ns),
        all_freeing_ms=clock.ms_per_step(freed.intersect(clock.host_window).total_ns),
    )


def _waits_ms(got: Intervals, delivered_ns: I64) -> tuple[float, ...]:
    """Time spent in getting each batch: all of it since the batch before was there.

    The end of one epoch and the start-up of the next belong to the batch that follows.
    """
    if delivered_ns.size == 0:
        return ()
    covered = got.covered_before(delivered_ns)
    return tuple(float(x) for x in np.diff(covered, prepend=0) / NS_PER_MS)


# One training process of a trace, where a file was merged from those of several.
#
# torch.profiler records one process. Tools that merge the traces of a job's ranks keep each event's
# pid, but correlation ids, and often devices, are each process's own and occur again in the others.

# Rows whose pid is no process of the training: a device's number, or a track we add.
_NO_PROCESS = (*DEVICE_CATEGORIES, Category.GPU_ANNOTATION, Category.WORKER)


def other_processes(trace: Trace, rows: Rows) -> frozenset[str]:
    """Pids that have marks of a training loop of their own; empty in what torch.profiler writes."""
    flags = rows.flags
    marks = rows.named(flags.step | flags.optimizer | flags.fetch, Category.USER_ANNOTATION)
    threads = np.flatnonzero(np.bincount(rows.spans.thread[marks])).tolist()
    if rows.training_thread == ABSENT:
        return frozenset()
    return frozenset(trace.threads[t].pid for t in threads) - {
        trace.threads[rows.training_thread].pid
    }


def without_processes(trace: Trace, rows: Rows, pids: frozenset[str]) -> Trace:
    """The trace less what these processes did, on the host and on the devices."""
    spans = trace.spans
    foreign = np.array([thread.pid in pids for thread in trace.threads], np.bool_)[spans.thread]
    foreign &= ~np.isin(spans.category, np.asarray(_NO_PROCESS, np.int8))
    foreign[rows.device_rows] = _foreign_work(spans, rows, foreign)
    kept = ~foreign
    shapes = trace.kernel_shapes
    if shapes is not None:
        kernels = kept[spans.category == Category.KERNEL]
        shapes = KernelShapes(
            blocks_per_sm=shapes.blocks_per_sm[kernels],
            occupancy_percent=shapes.occupancy_percent[kernels],
        )
    return replace(trace, spans=spans.where(kept), kernel_shapes=shapes)


def _foreign_work(spans: Spans, rows: Rows, foreign: Mask) -> Mask:
    """Which device rows other processes launched, in the order of `rows.device_rows`.

    An id known in one process alone tells it. For the rest the majority of those on the same
    device does: as a rule each process has one of its own. Fooled by: processes that share a
    device, or have all their ids in common.
    """
    device = rows.device_rows
    calls = (spans.category == Category.RUNTIME) & (spans.correlation != ABSENT)
    wanted = spans.correlation[device]
    here = np.isin(wanted, spans.correlation[calls & ~foreign])
    there = np.isin(wanted, spans.correlation[calls & foreign])
    place = np.unique(
        np.stack((spans.thread[device], spans.device[device])), axis=1, return_inverse=True
    )[1].reshape(-1)
    lead = np.bincount(place, weights=there.astype(np.int64) - here.astype(np.int64))
    return np.where(here == there, lead[place] > 0, there)
