"""What the records of workers say about one window: records -> WorkerFacts.

Means are over whole worker cycles (one batch of each worker), because batches come in bursts of
`num_workers`. All times in are CLOCK_MONOTONIC nanoseconds, all figures out milliseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loaderdoctor.attribution.first_touch import first_touch_ratio
from loaderdoctor.attribution.hot_lines import line_spots
from loaderdoctor.facts import LineSpot, WorkerFacts
from loaderdoctor.instrument.protocol import FetchRecord
from loaderdoctor.instrument.worker_records import (
    Batches,
    IteratorRecord,
    Outcome,
    ProcessRecord,
    Spans,
    WorkerLog,
    rows_of,
)
from loaderdoctor.intervals import Intervals

NS_PER_MS = 1e6
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)

# CPU time of a worker outside the thread that makes batches, relative to that thread's: above
# this a native pool is at work. The feeder's pickling and our line sampler stay below 10 % even
# for batches made in 1 ms (measured).
MIN_POOL_CPU_SHARE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class _Selection:
    """The part of a log that one loader's window covers."""

    log: WorkerLog
    start_ns: int
    end_ns: int
    serials: NDArray[np.int64]
    batches: Batches  # made within the window, in whole cycles
    rows: NDArray[np.intp]  # of `batches` in the log's
    iterators: tuple[IteratorRecord, ...]
    n_workers: int

    @property
    def pids(self) -> frozenset[int]:
        return frozenset(np.unique(self.batches.pid).tolist())

    @property
    def workers(self) -> tuple[ProcessRecord, ...]:
        """Worker processes of the selected iterators, idle ones too."""
        serials = set(self.serials.tolist())
        return tuple(p for p in self.log.processes if p.role == "worker" and p.serial in serials)

    def of_iterators(self, spans: Spans) -> Spans:
        """Spans of the selected iterators that end within the window."""
        inside = (spans.end_ns > self.start_ns) & (spans.end_ns <= self.end_ns)
        return spans.where(inside & np.isin(spans.serial, self.serials))


def worker_facts(
    log: WorkerLog,
    start_ns: int,
    end_ns: int,
    *,
    n_steps: int,
    fetches: Sequence[FetchRecord] = (),
    looked_in: Sequence[tuple[int, int, Sequence[FetchRecord]]] = (),
) -> WorkerFacts | None:
    """Facts of the window [start_ns, end_ns); None where no batch was recorded in it.

    Hot lines are also those seen in the windows `looked_in` (start, end, fetches): looks are rare.

    Of several loaders fetched in the window, the one whose batches took longest to make counts.
    `n_steps` divides what is per step; without `fetches` every batch made in the window counts.
    """
    chosen = _select(log, start_ns, end_ns, fetches)
    if chosen is None:
        return None
    batches = chosen.batches
    making_ns = batches.end_ns - batches.begin_ns
    split = batches.collate_ns >= 0
    fetch_end_ns = np.where(split, batches.collate_ns, batches.end_ns)
    durations = log.samples.duration_ns[np.isin(log.samples.batch, chosen.rows)]
    draws = chosen.of_iterators(log.draws)
    pins = chosen.of_iterators(log.pins)
    in_workers = chosen.n_workers > 0
    fetch_ms = _mean_ms(fetch_end_ns - batches.begin_ns)
    collate_ms = _mean_ms((batches.end_ns - fetch_end_ns)[split]) if split.any() else None
    sampler_ms = _mean_ms(draws.end_ns - draws.start_ns) if len(draws) else None
    cpu_ns = batches.process_cpu_ns if in_workers else batches.thread_cpu_ns
    return WorkerFacts(
        n_workers=chosen.n_workers,
        n_batches=len(batches),
        batch_ms=_mean_ms(making_ns),
        fetch_ms=fetch_ms,
        collate_ms=collate_ms,
        sampler_ms=sampler_ms,
        cpu_share=float(cpu_ns.sum() / making_ns.sum()) if making_ns.sum() else None,
        sample_ms_quantiles=(
            tuple(float(q) for q in np.quantile(durations, QUANTILES) / NS_PER_MS)
            if durations.size
            else None
        ),
        n_samples=int(batches.n_samples.sum()),
        queue_put_ms=_queue_put_ms(chosen) if in_workers else None,
        idle_share=_idle_share(chosen) if in_workers else None,
        n_idle_workers=_n_idle_workers(chosen) if in_workers else 0,
        n_threads=_n_threads(chosen) if in_workers else None,
        cores=_cores(chosen) if in_workers else (),
        head_of_line_ms=_head_of_line_ms(chosen, n_steps) if in_workers else None,
        pin_ms=_mean_ms(pins.end_ns - pins.start_ns) if len(pins) else None,
        pin_busy_share=(
            float((pins.end_ns - np.maximum(pins.start_ns, start_ns)).sum() / (end_ns - start_ns))
            if len(pins)
            else None
        ),
        transforms=_transforms(chosen),
        lines=_lines(
            chosen,
            looked_in,
            {"fetch": fetch_ms, "collate": collate_ms, "sampler": sampler_ms},
        ),
        first_touch_ratio=first_touch_ratio(log, {i.dataset for i in chosen.iterators}),
        run_wait_share=_run_wait_share(chosen) if in_workers else None,
    )


def _select(
    log: WorkerLog, start_ns: int, end_ns: int, fetches: Sequence[FetchRecord]
) -> _Selection | None:
    batches = log.batches
    made = (batches.outcome == Outcome.OK) & (batches.end_ns > start_ns)
    made &= batches.end_ns <= end_ns
    serials = _serials(log, made, fetches)
    rows = np.flatnonzero(made & np.isin(batches.serial, serials))
    if rows.size == 0:
        return None
    iterators = tuple(i for i in log.iterators if i.serial in set(serials.tolist()))
    n_workers = max((i.num_workers for i in iterators), default=0)
    if n_workers > 1 and rows.size >= n_workers:
        rows = rows[: rows.size - rows.size % n_workers]
    return _Selection(
        log=log,
        start_ns=start_ns,
        end_ns=end_ns,
        serials=serials,
        batches=batches.where(rows),
        rows=rows,
        iterators=iterators,
        n_workers=n_workers,
    )


def _serials(
    log: WorkerLog, made: NDArray[np.bool_], fetches: Sequence[FetchRecord]
) -> NDArray[np.int64]:
    """Iterators of the loader whose batches took longest, by what its fetches returned."""
    batches = log.batches
    everything = np.unique(batches.serial[made])
    deliveries = log.deliveries
    if not fetches or not len(deliveries):
        return everything
    loader = np.array([f.loader for f in fetches], dtype=np.int64)
    starts = np.array([f.start_ns for f in fetches], dtype=np.int64)
    ends = np.array([f.end_ns for f in fetches], dtype=np.int64)
    threads = np.array([f.thread for f in fetches], dtype=np.int64)
    middle = (deliveries.start_ns + deliveries.end_ns) // 2
    best: tuple[int, NDArray[np.int64]] | None = None
    for index in np.unique(loader).tolist():
        received = np.zeros(len(deliveries), dtype=np.bool_)
        for thread in np.unique(threads[loader == index]).tolist():
            mine = np.flatnonzero((loader == index) & (threads == thread))
            mine = mine[np.argsort(starts[mine], kind="stable")]
            at = np.searchsorted(starts[mine], middle, side="right") - 1
            within = (at >= 0) & (middle <= ends[mine][np.maximum(at, 0)])
            received |= within & (deliveries.thread == thread)
        serials = np.unique(deliveries.serial[received])
        cost = made & np.isin(batches.serial, serials)
        cost_ns = int((batches.end_ns - batches.begin_ns)[cost].sum())
        if cost_ns and (best is None or cost_ns > best[0]):
            best = cost_ns, serials
    return everything if best is None else best[1]


def _queue_put_ms(chosen: _Selection) -> float | None:
    """Pickling a batch for the queue, per batch; not the waiting for room in the pipe."""
    batches = chosen.batches
    costs: list[NDArray[np.int64]] = []
    for pid in chosen.pids:
        mine = batches.where((batches.pid == pid) & (batches.send_ns >= 0))
        if not len(mine):
            continue
        free_ns = np.concatenate(([0], np.maximum.accumulate(mine.sent_ns)[:-1]))
        costs.append(mine.send_ns - np.maximum(mine.end_ns, free_ns))
    return _mean_ms(np.concatenate(costs)) if costs else None


def _idle_share(chosen: _Selection) -> float | None:
    """Time the workers made no batch, of the time they lived within the window."""
    batches = chosen.log.batches
    life_ns = busy_ns = 0
    for worker in chosen.workers:
        born = max(chosen.start_ns, worker.ready_ns or worker.started_ns)
        died = min(chosen.end_ns, worker.exit_ns or chosen.end_ns)
        if died <= born:
            continue
        mine = batches.pid == worker.pid
        life_ns += died - born
        making = Intervals.of(batches.begin_ns[mine], batches.end_ns[mine])
        busy_ns += making.clip(born, died).total_ns
    return 1 - busy_ns / life_ns if life_ns else None


def _n_idle_workers(chosen: _Selection) -> int:
    """Workers without a batch in the epoch that made most of the window's batches.

    A worker that is still at its first batch is not idle: torch lets the others run only
    `prefetch_factor` batches ahead of it, so it counts once they are farther than that, or at
    once when its part of an IterableDataset was empty.
    """
    window, everything = chosen.batches, chosen.log.batches
    (serial, epoch), _ = Counter(
        zip(window.serial.tolist(), window.epoch.tolist(), strict=True)
    ).most_common(1)[0]
    iterator = next((i for i in chosen.iterators if i.serial == serial), None)
    if iterator is None or iterator.num_workers < 2:
        return 0
    here = (everything.serial == serial) & (everything.epoch == epoch)
    made = Counter(everything.worker[here & (everything.outcome == Outcome.OK)].tolist())
    exhausted = set(everything.worker[here & (everything.outcome == Outcome.EXHAUSTED)].tolist())
    ahead = max(made.values()) > (iterator.prefetch_factor or 2) + 1
    return sum(
        1
        for worker in range(iterator.num_workers)
        if not made[worker] and (ahead or worker in exhausted)
    )


def _run_wait_share(chosen: _Selection) -> float | None:
    shares = [w.run_wait_share for w in chosen.workers if w.run_wait_share is not None]
    return sum(shares) / len(shares) if shares else None


def _n_threads(chosen: _Selection) -> int | None:
    """Threads that compute in one worker: torch's own setting, or a native pool seen at work."""
    workers = [w for w in chosen.workers if w.torch_threads is not None]
    if not workers:
        return None
    batches = chosen.batches
    n_threads = max(w.torch_threads or 1 for w in workers)
    own_ns, process_ns = int(batches.thread_cpu_ns.sum()), int(batches.process_cpu_ns.sum())
    if process_ns - own_ns > MIN_POOL_CPU_SHARE * own_ns:
        n_threads = max(n_threads, *(1 + (w.native_threads or 0) for w in workers))
    return n_threads


def _cores(chosen: _Selection) -> tuple[tuple[int, ...], ...]:
    """CPU affinity of each worker of the pool that was opened last."""
    workers = [w for w in chosen.workers if w.cores is not None]
    latest = max((w.serial for w in workers), default=0)
    pool = sorted((w for w in workers if w.serial == latest), key=lambda w: w.worker)
    return tuple(w.cores or () for w in pool)


def _head_of_line_ms(chosen: _Selection, n_steps: int) -> float | None:
    """Time per step that delivering batches in order cost.

    That is the time the loop waited for a batch while a later one was ready, weighted by the
    share of workers that stood idle meanwhile. The weight makes it what `in_order=False` can
    save: while every worker is busy the pool gives all it has, in whatever order.
    """
    if n_steps <= 0 or chosen.n_workers < 2:
        return None
    batches = chosen.log.batches
    ready_ns = np.where(batches.send_ns >= 0, batches.send_ns, batches.end_ns)
    pinned = rows_of(batches.key, chosen.log.pins.key)
    if len(chosen.log.pins):
        ready_ns = np.where(pinned >= 0, chosen.log.pins.end_ns[np.maximum(pinned, 0)], ready_ns)
    deliveries = chosen.of_iterators(chosen.log.deliveries)
    in_order = {i.serial for i in chosen.iterators if i.in_order}
    idle_ns = 0.0
    for serial, epoch in set(
        zip(deliveries.serial.tolist(), deliveries.epoch.tolist(), strict=True)
    ):
        if serial not in in_order:
            continue
        here = np.flatnonzero(
            (batches.serial == serial)
            & (batches.epoch == epoch)
            & (batches.outcome != Outcome.EXHAUSTED)
        )
        here = here[np.argsort(batches.idx[here], kind="stable")]
        ready, idx = ready_ns[here], batches.idx[here]
        never = np.iinfo(np.int64).max
        later = np.append(np.minimum.accumulate(ready[::-1])[::-1][1:], never)
        waits = deliveries.where((deliveries.serial == serial) & (deliveries.epoch == epoch))
        at = np.searchsorted(idx, waits.idx)
        known = (at < idx.size) & (idx[np.minimum(at, idx.size - 1)] == waits.idx)
        at, waits = at[known], waits.where(known)
        since = np.maximum(waits.start_ns, np.maximum(later[at], chosen.start_ns))
        stalls = Intervals.of(since, np.minimum(waits.end_ns, ready[at]))
        idle_ns += _idle_ns(chosen, serial, stalls)
    return idle_ns / n_steps / NS_PER_MS


def _idle_ns(chosen: _Selection, serial: int, during: Intervals) -> float:
    """Time within `during`, each instant weighted by the share of workers that made no batch."""
    batches = chosen.log.batches
    pool = [w.pid for w in chosen.workers if w.serial == serial]
    idle_ns = 0
    for pid in pool:
        mine = batches.pid == pid
        idle_ns += during.subtract(
            Intervals.of(batches.begin_ns[mine], batches.end_ns[mine])
        ).total_ns
    return idle_ns / len(pool) if pool else 0.0


def _transforms(chosen: _Selection) -> tuple[tuple[str, float], ...]:
    """Milliseconds per sample of each transform, in order of first appearance."""
    mine = [t for t in chosen.log.transforms if t.pid in chosen.pids]
    inside = [t for t in mine if t.until_ns > chosen.start_ns and t.since_ns < chosen.end_ns]
    total_ns: Counter[str] = Counter()
    n_samples: Counter[str] = Counter()
    for t in inside or mine:
        total_ns[t.name] += t.total_ns
        n_samples[t.name] += t.n_samples
    return tuple((name, total_ns[name] / n_samples[name] / NS_PER_MS) for name in total_ns)


def _lines(
    chosen: _Selection,
    more: Sequence[tuple[int, int, Sequence[FetchRecord]]],
    phase_ms: dict[str, float | None],
) -> tuple[LineSpot, ...]:
    """Looks taken in the window and in `more` of them, each once."""
    selections = [chosen, *(s for w in more if (s := _select(chosen.log, *w)) is not None)]
    windows = [(s.start_ns, s.end_ns, s.pids) for s in selections]
    looks = (
        look
        for look in chosen.log.lines
        if any(
            look.until_ns > start_ns
            and look.since_ns < end_ns
            and (look.pid in pids or look.phase == "sampler")
            for start_ns, end_ns, pids in windows
        )
    )
    return line_spots(looks, {name: ms for name, ms in phase_ms.items() if ms is not None})


def _mean_ms(durations_ns: NDArray[np.int64]) -> float:
    return float(durations_ns.mean()) / NS_PER_MS
