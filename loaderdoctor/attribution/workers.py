"""What the records of workers say about one window: records -> WorkerFacts.

Means are over whole worker cycles (one batch of each worker), because batches come in bursts of
`num_workers`. All times in are CLOCK_MONOTONIC nanoseconds, all figures out milliseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from loaderdoctor.attribution.worker_batches import (
    Selection,
    first_touch,
    line_hotspots,
    of_step,
    selections,
)
from loaderdoctor.facts.host import LineHotspot, ReadFacts, WorkerFacts
from loaderdoctor.instrument.wire.measured import FetchRecord
from loaderdoctor.instrument.wire.protocol import WindowDone
from loaderdoctor.instrument.wire.record_file import Outcome
from loaderdoctor.instrument.wire.records import LoaderRecord
from loaderdoctor.instrument.wire.worker_log import WorkerLog, rows_of
from loaderdoctor.intervals import Intervals
from loaderdoctor.units import NS_PER_MS

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)

# CPU time of a worker outside the thread that makes batches, relative to that thread's: above
# this a native pool is at work. The feeder's pickling and our line sampler stay below 10 % even
# for batches made in 1 ms (measured).
MIN_POOL_CPU_SHARE = 0.25


def worker_facts(
    log: WorkerLog,
    start_ns: int,
    end_ns: int,
    *,
    n_steps: int,
    fetches: Sequence[FetchRecord] = (),
    sampled_in: Sequence[tuple[int, int, Sequence[FetchRecord]]] = (),
    loaders: Sequence[LoaderRecord] = (),
) -> WorkerFacts | None:
    """Facts of the step's loader in [start_ns, end_ns); None where it had no batch made there.

    Hotspots are also those seen in the windows `sampled_in` (start, end, fetches): stack samples
    are rare.

    `loaders` are those that `fetches` number. Of several of the step, the one whose batches took
    longest to make counts; batches of others (validation) never do. `n_steps` divides what is per
    step; where neither records nor `fetches` name loaders, every batch of the window counts.
    """
    found = selections(log, start_ns, end_ns, fetches=fetches, loaders=loaders)
    chosen = of_step(found, loaders)
    if chosen is None:
        return None
    sampled = [
        of_step(selections(log, a, b, fetches=f, loaders=loaders), loaders)
        for a, b, f in sampled_in
    ]
    return _facts(chosen, n_steps, [s for s in sampled if s is not None])


def other_worker_facts(
    log: WorkerLog,
    windows: Sequence[WindowDone],
    loaders: Sequence[LoaderRecord],
    *,
    but: str | None = None,
) -> tuple[WorkerFacts, ...]:
    """Facts of each loader but that of `worker_facts`, from the window where most of it was made.

    `but` names that one; without it, the dearest loader of each window is left out.

    Validation is seen only in windows that hold the end of an epoch.
    """
    best: dict[str, tuple[int, WorkerFacts]] = {}
    for window in windows:
        found = selections(
            log, window.start_ns, window.end_ns, fetches=window.fetches, loaders=loaders
        )
        first = of_step(found, loaders)
        for chosen in found:
            loader, n = chosen.loader, len(chosen.batches)
            known = loader == but if but is not None else chosen is first
            if known or loader is None or (loader in best and best[loader][0] >= n):
                continue
            best[loader] = n, _facts(chosen, window.n_steps, ())
    return tuple(facts for _, facts in best.values())


def _facts(chosen: Selection, n_steps: int, sampled_in: Sequence[Selection]) -> WorkerFacts:
    log, batches = chosen.log, chosen.batches
    start_ns, end_ns = chosen.start_ns, chosen.end_ns
    datasets = {i.dataset for i in chosen.iterators}
    making_ns = batches.end_ns - batches.begin_ns
    collecting_ms, full_collections = _collecting(chosen) if chosen.n_workers else (None, None)
    split = batches.collate_ns >= 0
    fetch_end_ns = np.where(split, batches.collate_ns, batches.end_ns)
    durations = log.samples.duration_ns[np.isin(log.samples.batch, chosen.rows)]
    draws = chosen.of_iterators(log.sampler_draws)
    pins = chosen.of_iterators(log.pins)
    in_workers = chosen.n_workers > 0
    fetch_ms = _mean_ms(fetch_end_ns - batches.begin_ns)
    collate_ms = _mean_ms((batches.end_ns - fetch_end_ns)[split]) if split.any() else None
    sampler_ms = _mean_ms(draws.end_ns - draws.start_ns) if len(draws) else None
    cpu_ns = batches.process_cpu_ns if in_workers else batches.thread_cpu_ns
    touched = first_touch(log, chosen.loader, datasets)
    return WorkerFacts(
        loader=chosen.loader,
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
        least_idle_share=_least_idle_share(chosen) if in_workers else None,
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
            [chosen, *sampled_in],
            {"fetch": fetch_ms, "collate": collate_ms, "sampler": sampler_ms},
        ),
        first_touch_ratio=touched.ratio if touched is not None else None,
        first_touch_ms=touched.first_ms if touched is not None else None,
        run_wait_share=_run_wait_share(chosen) if in_workers else None,
        receive_ms=_receive_ms(chosen) if in_workers else None,
        unready_share=_unready_share(chosen) if in_workers else None,
        reads=_reads(chosen) if in_workers else None,
        collecting_ms=collecting_ms,
        full_collections=full_collections,
    )


def _collecting(chosen: Selection) -> tuple[float | None, float | None]:
    """Milliseconds and full collections a batch, over what these workers told of their life."""
    counts = [w.collected for w in chosen.workers if w.collected is not None]
    n_batches = sum(c.n_batches for c in counts)
    if not n_batches:
        return None, None
    ms = sum(c.ns for c in counts) / NS_PER_MS / n_batches
    return ms, sum(c.n_full for c in counts) / n_batches


def _reads(chosen: Selection) -> ReadFacts | None:
    counts = [w.reads for w in chosen.workers if w.reads is not None]
    n_batches = sum(c.n_batches for c in counts)
    if not n_batches:
        return None
    n_bytes = sum(c.n_bytes for c in counts)
    return ReadFacts(
        bytes_per_batch=n_bytes / n_batches,
        calls_per_batch=sum(c.n_calls for c in counts) / n_batches,
        disk_share=min(1.0, sum(c.disk_bytes for c in counts) / n_bytes) if n_bytes else 0.0,
    )


def _queue_put_ms(chosen: Selection) -> float | None:
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


def _receive_ms(chosen: Selection) -> float | None:
    """What the loop's fetch takes from when its batch is ready, per batch."""
    deliveries = chosen.of_iterators(chosen.log.deliveries)
    ready_ns = _ready_ns(chosen.log)
    row = rows_of(deliveries.key, chosen.log.batches.key)
    known = row >= 0
    if not known.any():
        return None
    deliveries, ready_ns = deliveries.where(known), ready_ns[row[known]]
    since_ns = np.maximum(deliveries.start_ns, ready_ns)
    return _mean_ms(np.maximum(deliveries.end_ns - since_ns, 0))


def _ready_ns(log: WorkerLog) -> NDArray[np.int64]:
    """When each batch of the log was ready to be received, pinned where it is."""
    batches = log.batches
    ready_ns = np.where(batches.send_ns >= 0, batches.send_ns, batches.end_ns)
    if not len(log.pins):
        return ready_ns
    pinned = rows_of(batches.key, log.pins.key)
    return np.where(pinned >= 0, log.pins.end_ns[np.maximum(pinned, 0)], ready_ns)


def _unready_share(chosen: Selection) -> float | None:
    deliveries, batches = chosen.of_iterators(chosen.log.deliveries), chosen.log.batches
    at = rows_of(deliveries.key, batches.key)
    waits, at = deliveries.where(at >= 0), at[at >= 0]
    waited_ns = (waits.end_ns - waits.start_ns).sum()
    since = np.maximum(waits.start_ns, batches.begin_ns[at])
    until = np.minimum(waits.end_ns, batches.end_ns[at])
    return float(np.maximum(0, until - since).sum() / waited_ns) if waited_ns else None


def _idle_share(chosen: Selection) -> float | None:
    """Time the workers made no batch, of the time they lived within the window."""
    lives = _lives(chosen)
    life_ns = sum(life for life, _ in lives)
    return 1 - sum(busy for _, busy in lives) / life_ns if life_ns else None


def _least_idle_share(chosen: Selection) -> float | None:
    """The same of the worker that was idle least: batches come in turn, so the loop waits for it.

    Of those that lived through half of the window: another one's first batch says nothing.
    """
    whole_ns = (chosen.end_ns - chosen.start_ns) / 2
    return min((1 - busy / life for life, busy in _lives(chosen) if life >= whole_ns), default=None)


def _lives(chosen: Selection) -> list[tuple[int, int]]:
    """Of each worker how long it lived within the window, and made batches (ns)."""
    batches = chosen.log.batches
    found = []
    for worker in chosen.workers:
        born = max(chosen.start_ns, worker.ready_ns or worker.started_ns)
        died = min(chosen.end_ns, worker.exit_ns or chosen.end_ns)
        if died <= born:
            continue
        mine = batches.pid == worker.pid
        making = Intervals.of(batches.begin_ns[mine], batches.end_ns[mine])
        found.append((died - born, making.clip(born, died).total_ns))
    return found


def _n_idle_workers(chosen: Selection) -> int:
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


def _run_wait_share(chosen: Selection) -> float | None:
    shares = [w.run_wait_share for w in chosen.workers if w.run_wait_share is not None]
    return sum(shares) / len(shares) if shares else None


def _n_threads(chosen: Selection) -> int | None:
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


def _cores(chosen: Selection) -> tuple[tuple[int, ...], ...]:
    """CPU affinity of each worker of the pool that was opened last."""
    workers = [w for w in chosen.workers if w.cores is not None]
    latest = max((w.serial for w in workers), default=0)
    pool = sorted((w for w in workers if w.serial == latest), key=lambda w: w.worker)
    return tuple(w.cores or () for w in pool)


def _head_of_line_ms(chosen: Selection, n_steps: int) -> float | None:
    """Time per step that delivering batches in order cost.

    That is the time the loop waited for a batch while a later one was ready, weighted by the
    share of workers that stood idle meanwhile. The weight makes it what `in_order=False` can
    save: while every worker is busy the pool gives all it has, in whatever order.
    """
    if n_steps <= 0 or chosen.n_workers < 2:
        return None
    batches, ready_ns = chosen.log.batches, _ready_ns(chosen.log)
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


def _idle_ns(chosen: Selection, serial: int, during: Intervals) -> float:
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


def _transforms(chosen: Selection) -> tuple[tuple[str, float], ...]:
    """Milliseconds per sample of each transform, in order of first appearance."""
    mine = [t for t in chosen.log.transforms if t.serial in chosen.serials]
    inside = [t for t in mine if t.until_ns > chosen.start_ns and t.since_ns < chosen.end_ns]
    total_ns: Counter[str] = Counter()
    n_samples: Counter[str] = Counter()
    for t in inside or mine:
        total_ns[t.name] += t.total_ns
        n_samples[t.name] += t.n_samples
    return tuple((name, total_ns[name] / n_samples[name] / NS_PER_MS) for name in total_ns)


def _lines(
    chosen: Sequence[Selection], phase_ms: dict[str, float | None]
) -> tuple[LineHotspot, ...]:
    """Stack samples taken while one of these was made, each once."""
    windows = [(c.start_ns, c.end_ns, frozenset(c.serials.tolist())) for c in chosen]
    stack_samples = (
        x
        for x in chosen[0].log.lines
        if any(
            x.until_ns > start_ns and x.since_ns < end_ns and x.serial in serials
            for start_ns, end_ns, serials in windows
        )
    )
    return line_hotspots(
        stack_samples, {name: ms for name, ms in phase_ms.items() if ms is not None}
    )


def _mean_ms(durations_ns: NDArray[np.int64]) -> float:
    return float(durations_ns.mean()) / NS_PER_MS
