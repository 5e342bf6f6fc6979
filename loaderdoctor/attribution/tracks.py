"""What a divided trace adds to the pictures of it: waits and shares on the file's own clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from loaderdoctor.attribution.trace_facts import Attributed
from loaderdoctor.facts.pictures import BatchCopy, Tracks
from loaderdoctor.intervals import Intervals
from loaderdoctor.trace.columns import ABSENT, Category
from loaderdoctor.units import NS_PER_US

# Shorter gaps between a fetch span and what surrounds it are the profiler's own bookkeeping.
MIN_WAIT_NS = 1_000
# The microseconds of a file, as floats, are good to a nanosecond.
WITHIN_NS = 2


def tracks(attributed: Attributed) -> Tracks:
    """The tracks of one trace; empty ones where nothing of the kind was recorded."""
    rows, partition = attributed.rows, attributed.partition
    spans = rows.named(rows.flags.fetch, Category.USER_ANNOTATION, Category.CPU_OP)
    outside = attributed.fetches.getting.subtract(rows.intervals(spans))
    outside = Intervals.of(
        outside.starts[outside.lengths_ns >= MIN_WAIT_NS],
        outside.ends[outside.lengths_ns >= MIN_WAIT_NS],
    )
    thread = rows.training_thread
    threads = attributed.trace.threads
    clock = attributed.clock
    return Tracks(
        outside_next=_spans_us(attributed, outside),
        exposed_waits=_spans_us(attributed, partition.input) if partition.input is not None else (),
        step_shares=_step_shares(attributed),
        batch_copies=tuple(_batch_copies(attributed)),
        end_us=_us(attributed, int(clock.end_ns[-1])) if clock.n_steps else None,
        training_pid=threads[thread].pid if thread >= 0 else None,
        training_tid=threads[thread].tid if thread >= 0 else None,
    )


def _batch_copies(attributed: Attributed) -> Iterator[BatchCopy]:
    """For each `__next__`, the largest copy that the thread issued before the one after it ended.

    So also where a prefetcher copies the next batch ahead: it fetches that batch just before.
    """
    rows, copies = attributed.rows, attributed.copies
    spans = rows.spans
    nexts = rows.named(rows.flags.fetch, Category.USER_ANNOTATION, Category.CPU_OP)
    nexts &= rows.on_training_thread()
    fetched = np.flatnonzero(nexts)
    fetched = fetched[np.argsort(spans.end_ns[fetched], kind="stable")]
    own = copies.call != ABSENT
    own[own] = spans.thread[copies.call[own]] == rows.training_thread
    copied = copies.rows[own]
    issued = spans.start_ns[copies.call[own]]
    batch = np.searchsorted(spans.end_ns[fetched], issued, side="right") - 1
    largest_first = np.lexsort((spans.start_ns[copied], -spans.bytes[copied], batch))
    numbers, first = np.unique(batch[largest_first], return_index=True)
    for number, at in zip(numbers.tolist(), largest_first[first].tolist(), strict=True):
        if number < 0:
            continue
        row = int(copied[at])
        device = attributed.trace.threads[int(spans.thread[row])]
        yield BatchCopy(
            next_us=_us(attributed, int(spans.start_ns[fetched[number]]) + WITHIN_NS),
            copy_us=_us(attributed, int(spans.start_ns[row] + spans.end_ns[row]) // 2),
            copy_pid=device.pid,
            copy_tid=device.tid,
        )


def _us(attributed: Attributed, at_ns: int) -> float:
    return attributed.trace.origin_us + at_ns / NS_PER_US


def _spans_us(attributed: Attributed, spans: Intervals) -> tuple[tuple[float, float], ...]:
    return tuple(
        (_us(attributed, int(start)), int(length) / NS_PER_US)
        for start, length in zip(spans.starts, spans.lengths_ns, strict=True)
    )


def _step_shares(attributed: Attributed) -> tuple[tuple[float, Mapping[str, float | None]], ...]:
    clock, partition = attributed.clock, attributed.partition
    if not clock.n_steps:
        return ()
    length = np.maximum(clock.end_ns - clock.start_ns, 1)
    parts = {
        name: getattr(partition, name)
        for name in ("compute", "communication", "copy", "input", "host", "other")
    }
    columns = {
        name: None
        if spans is None
        else (spans.covered_before(clock.end_ns) - spans.covered_before(clock.start_ns)) / length
        for name, spans in parts.items()
    }
    return tuple(
        (
            _us(attributed, int(start)),
            {name: None if c is None else float(c[i]) for name, c in columns.items()},
        )
        for i, start in enumerate(clock.start_ns)
    )
