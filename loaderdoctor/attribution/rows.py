"""A trace's rows with what every later stage needs: who launched what, and which thread trains."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loaderdoctor.attribution.names import NameFlags, name_flags
from loaderdoctor.intervals import Intervals
from loaderdoctor.trace.columns import ABSENT, DEVICE_CATEGORIES, I64, Category, Spans, Trace

Mask = NDArray[np.bool_]
Index = NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Columns of a trace (ns, trace clock) with joins. Masks and indices refer to `spans`."""

    spans: Spans
    names: tuple[str, ...]
    flags: NameFlags
    device_rows: Index  # kernels, copies, memsets, by start
    launched_by: I64  # for each device row: its launching runtime row, or ABSENT
    training_thread: int  # index into Trace.threads; ABSENT where no host thread is recorded
    producer_threads: tuple[int, ...]  # host threads that make batches beside the training thread

    def named(self, flag: NDArray[np.bool_], *categories: Category) -> Mask:
        """Rows of these categories whose name carries the flag."""
        return flag[self.spans.name] & np.isin(self.spans.category, np.asarray(categories, np.int8))

    def intervals(self, rows: Mask | Index) -> Intervals:
        """When any of these rows runs."""
        return Intervals.of(self.spans.start_ns[rows], self.spans.end_ns[rows])

    def on_training_thread(self) -> Mask:
        """Host rows of the training thread."""
        return np.asarray(self.spans.thread == self.training_thread)

    def by_producers(self) -> Mask:
        """Host rows of threads that make batches."""
        return np.isin(self.spans.thread, np.asarray(self.producer_threads, np.int32))


def rows_of(trace: Trace) -> Rows:
    """Join device rows to the calls that launched them and tell the threads apart."""
    spans, flags = trace.spans, name_flags(trace)
    device_rows = np.flatnonzero(np.isin(spans.category, np.asarray(DEVICE_CATEGORIES, np.int8)))
    training = _training_thread(spans, flags)
    return Rows(
        spans=spans,
        names=trace.names,
        flags=flags,
        device_rows=device_rows,
        launched_by=_launching_rows(spans, device_rows),
        training_thread=training,
        producer_threads=_producer_threads(spans, flags, training),
    )


def outermost(start_ns: I64, end_ns: I64) -> Mask:
    """Which spans of one thread lie in no other (of equals, the first)."""
    if start_ns.size == 0:
        return np.zeros(0, np.bool_)
    # Equal starts: the longer one is the outer one.
    order = np.lexsort((-end_ns, start_ns))
    reach = np.maximum.accumulate(end_ns[order])
    outer = np.empty(order.size, np.bool_)
    outer[order] = np.concatenate(([True], start_ns[order[1:]] >= reach[:-1]))
    return outer


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """Everything the training thread does under a name, by start; the steps' own marks left out."""

    starts: I64
    reach: I64  # latest end so far

    def next_start(self, at_ns: I64) -> I64:
        """Start of the first event at or after each instant; the instant itself if none."""
        if self.starts.size == 0:
            return at_ns
        index = np.searchsorted(self.starts, at_ns, side="left")
        known = index < self.starts.size
        return np.where(known, self.starts[np.minimum(index, self.starts.size - 1)], at_ns)

    def previous_end(self, at_ns: I64) -> I64:
        """Latest end of what began before each instant, at most the instant itself."""
        if self.starts.size == 0:
            return at_ns
        index = np.searchsorted(self.starts, at_ns, side="left") - 1
        ended = np.minimum(self.reach[np.maximum(index, 0)], at_ns)
        return np.where(index >= 0, ended, at_ns)


def named_events(rows: Rows) -> Events:
    """Ops, runtime calls, fetches and optimizer spans of the training thread."""
    spans, flags = rows.spans, rows.flags
    mask = rows.on_training_thread() & (
        (spans.category == Category.CPU_OP)
        | (spans.category == Category.RUNTIME)
        | rows.named(flags.optimizer | flags.fetch, Category.USER_ANNOTATION)
    )
    return Events(
        starts=spans.start_ns[mask],
        reach=np.maximum.accumulate(spans.end_ns[mask]),
    )


def _launching_rows(spans: Spans, device_rows: Index) -> I64:
    """The runtime row with the same correlation id; one graph launch starts many kernels."""
    calls = np.flatnonzero((spans.category == Category.RUNTIME) & (spans.correlation != ABSENT))
    if calls.size == 0 or device_rows.size == 0:
        return np.full(device_rows.size, ABSENT, np.int64)
    calls = calls[np.argsort(spans.correlation[calls], kind="stable")]
    known = spans.correlation[calls]
    wanted = spans.correlation[device_rows]
    at = np.minimum(np.searchsorted(known, wanted), calls.size - 1)
    return np.where((known[at] == wanted) & (wanted != ABSENT), calls[at], ABSENT)


def _training_thread(spans: Spans, flags: NameFlags) -> int:
    """The thread that carries the step marks, else optimizer steps, else most annotations and ops.

    Autograd's threads run more ops than the thread that trains, but annotations (ProfilerStep,
    Optimizer, fetches) are opened by Python code only.
    """
    annotated = spans.category == Category.USER_ANNOTATION
    ops = spans.category == Category.CPU_OP
    for mask in (
        annotated & flags.step[spans.name],
        (annotated | ops) & flags.optimizer[spans.name],
        annotated & flags.fetch[spans.name],
        annotated,
        ops,
        spans.category == Category.RUNTIME,
    ):
        if mask.any():
            return int(np.bincount(spans.thread[mask]).argmax())
    return ABSENT


def _producer_threads(spans: Spans, flags: NameFlags, training: int) -> tuple[int, ...]:
    """Host threads beside the training thread that make or move batches.

    A thread that fetches; or one that pins memory or copies, launches no kernel and runs no op: the
    pin-memory thread, or a background loader that moves its batches. Threads that launch kernels
    are autograd's or DataParallel's replicas; NCCL's watchdog only queries events.
    """
    host = (spans.category == Category.RUNTIME) & (spans.thread != training)
    calling = np.unique(spans.thread[host & flags.batch_call[spans.name]])
    working = np.unique(
        spans.thread[
            (host & flags.launch[spans.name])
            | ((spans.category == Category.CPU_OP) & (spans.thread != training))
        ]
    )
    fetches = (spans.category == Category.USER_ANNOTATION) & flags.fetch[spans.name]
    fetching = np.unique(spans.thread[fetches & (spans.thread != training)])
    quiet = np.setdiff1d(calling, working)
    return tuple(int(t) for t in np.union1d(quiet, fetching))
