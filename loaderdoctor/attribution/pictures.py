"""What pictures show of a window: waits batch by batch, sample times, and tracks of a trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Literal

import numpy as np

from loaderdoctor.attribution import Attributed, facts_of
from loaderdoctor.attribution.worker_batches import of_step, selections
from loaderdoctor.facts.step import BatchCopy, SampleTimes, Tracks, WaitSeries
from loaderdoctor.instrument.wire.measured import FetchRecord
from loaderdoctor.instrument.wire.protocol import Observed, WindowDone
from loaderdoctor.instrument.wire.records import LoaderRecord
from loaderdoctor.instrument.wire.worker_log import WorkerLog
from loaderdoctor.intervals import Intervals
from loaderdoctor.trace.columns import ABSENT
from loaderdoctor.units import NS_PER_MS, NS_PER_US

# As many bars as a chart can show apart; a longer window is shown from its beginning.
MAX_BATCHES = 400
N_BINS = 40
# From this ratio of slow to fast samples on, bins grow with the time (a logarithmic axis).
WIDE_RATIO = 8.0


def waits_of_windows(observed: Observed, windows: Sequence[WindowDone]) -> WaitSeries | None:
    """Fetches from the loader that feeds the step, window after window; None where none is seen.

    Between the windows others may have been measured.
    """
    loader = observed.main_loader
    if loader is None:
        return None
    train = observed.loaders.index(loader)
    waits: list[float] = []
    firsts: list[int] = []
    epochs: list[int] = []
    for window in windows:
        fetches = [f for f in window.fetches if f.loader == train]
        if not fetches:
            continue
        starts = np.array([f.start_ns for f in fetches], dtype=np.int64)
        begun = [b.at_ns for b in window.boundaries if b.loader == loader.id]
        firsts.append(len(waits))
        epochs += (len(waits) + np.searchsorted(starts, np.array(begun, np.int64))).tolist()
        waits += [(f.end_ns - f.start_ns) / NS_PER_MS for f in fetches]
    if not waits:
        return None
    return _series("plain windows", waits, firsts, epochs, loader.settings.num_workers or 0)


def waits_of_trace(attributed: Attributed) -> WaitSeries | None:
    """The fetches of a trace's steps; None where it holds no loader events."""
    waits = facts_of(attributed).fetching.waits_ms
    if not waits:
        return None
    window, fetches = attributed.clock.host_window, attributed.fetches
    delivered = fetches.delivered_ns[window.contains(fetches.delivered_ns - 1)]
    created = fetches.created_ns[window.contains(fetches.created_ns)]
    ended = fetches.exhausted_ns[window.contains(fetches.exhausted_ns - 1)]
    epochs = np.searchsorted(delivered, np.concatenate((created, ended)))
    return _series("trace", list(waits), [0], epochs.tolist(), 0)


def sample_times(
    log: WorkerLog,
    start_ns: int,
    end_ns: int,
    *,
    fetches: Sequence[FetchRecord] = (),
    loaders: Sequence[LoaderRecord] = (),
) -> SampleTimes | None:
    """Samples that the step's loader had made within [start_ns, end_ns).

    Limits are ns of the clock that processes share; the loader is chosen as `worker_facts` does.
    None where none of its samples was recorded.
    """
    found = selections(log, start_ns, end_ns, fetches=fetches, loaders=loaders)
    chosen = of_step(found, loaders)
    if chosen is None:
        return None
    times = log.samples.duration_ns[np.isin(log.samples.batch, chosen.rows)] / NS_PER_MS
    times = times[times > 0]
    if times.size == 0:
        return None
    low, median, p95, high = (float(q) for q in np.quantile(times, (0.0, 0.5, 0.95, 1.0)))
    logarithmic = high > WIDE_RATIO * low
    edges = (
        np.geomspace(low, high * 1.0001, N_BINS + 1)
        if logarithmic
        else np.linspace(0.0, high * 1.0001, N_BINS + 1)
    )
    counts, _ = np.histogram(times, edges)
    return SampleTimes(
        edges_ms=tuple(edges.tolist()),
        counts=tuple(counts.tolist()),
        n=int(times.size),
        logarithmic=logarithmic,
        median_ms=median,
        p95_ms=p95,
        max_ms=high,
    )


def _series(
    source: Literal["plain windows", "trace"],
    waits: list[float],
    firsts: list[int],
    epochs: list[int],
    cycle: int,
) -> WaitSeries:
    shown = waits[:MAX_BATCHES]
    means: list[tuple[int, float]] = []
    if cycle > 1:
        for first, after in zip(firsts, [*firsts[1:], len(waits)], strict=True):
            whole = range(first, min(after, len(shown)) - cycle + 1, cycle)
            means += [(at, fmean(shown[at : at + cycle])) for at in whole]
    return WaitSeries(
        source=source,
        waits_ms=tuple(shown),
        windows=tuple(at for at in firsts[1:] if at < len(shown)),
        epochs=tuple(sorted({at for at in epochs if at < len(shown)})),
        cycle=cycle if cycle > 1 else 0,
        cycle_means_ms=tuple(means),
        n_left_out=len(waits) - len(shown),
    )


# Shorter gaps between a fetch span and what surrounds it are the profiler's own bookkeeping.
MIN_WAIT_NS = 1_000
# The microseconds of a file, as floats, are good to a nanosecond.
WITHIN_NS = 2


def tracks(attributed: Attributed) -> Tracks:
    """The tracks of one trace; empty ones where nothing of the kind was recorded."""
    rows, partition = attributed.rows, attributed.partition
    outside = attributed.fetches.getting.subtract(rows.intervals(rows.fetches))
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
    fetched = np.flatnonzero(rows.fetches & rows.on_training_thread())
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
