"""Waits batch by batch, and how long samples take to load: what the charts of a report show."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Literal

import numpy as np

from loaderdoctor.attribution.selection import of_step, selections
from loaderdoctor.attribution.trace_facts import Attributed, facts_of
from loaderdoctor.facts.pictures import SampleTimes, WaitSeries
from loaderdoctor.instrument.wire.protocol import Observed, WindowDone
from loaderdoctor.instrument.wire.records import FetchRecord, LoaderRecord
from loaderdoctor.instrument.wire.worker_log import WorkerLog
from loaderdoctor.units import NS_PER_MS

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
