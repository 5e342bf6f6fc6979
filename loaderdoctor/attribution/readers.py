"""What more readers of a storage got: records of a trial's workers next to the loop's own.

A step that more workers left as long may be noise; how long each of its hundred batches waited is
not. By Little's law the pool's rate is its busy workers / the time of a batch: where twice as many
wait twice as long, they only share what there is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from loaderdoctor.estimate import mean
from loaderdoctor.facts.loop import PoolTrial
from loaderdoctor.facts.workers import MoreReaders, Readers
from loaderdoctor.instrument.wire.record_file import Outcome
from loaderdoctor.instrument.wire.worker_log import Batches, WorkerLog
from loaderdoctor.units import NS_PER_MS, NS_PER_S

# Of either pool: each mean is over so many whole cycles (a batch of each worker), or none is told.
MIN_CYCLES = 4
# Of either pool's batches, this part is of workers that told how long they queued for a CPU; what
# the others waited may be that queue. One that is killed may not have told it, nor a log cut short.
MIN_TOLD = 0.8

Span = tuple[int, int]


def with_readers(
    trials: Sequence[PoolTrial], log: WorkerLog | None, loader: str | None, plain: Sequence[Span]
) -> tuple[PoolTrial, ...]:
    """Each trial with what its workers got, next to those of `loader` in `plain` windows.

    Unchanged where the records do not tell. All times in are CLOCK_MONOTONIC nanoseconds.
    """
    if log is None or not trials:
        return tuple(trials)
    own = [i for i in log.iterators if i.loader == loader and loader is not None]
    datasets = {i.dataset for i in own}
    few = _readers(log, {i.serial for i in own}, plain)
    if few is None:
        return tuple(trials)
    found = []
    for trial in trials:
        serials = {
            i.serial
            for i in log.iterators
            if i.loader is None and i.dataset in datasets and i.num_workers == trial.num_workers
        }
        many = _readers(log, serials, trial.spans_ns)
        readers = MoreReaders(few=few, many=many) if many is not None else None
        found.append(replace(trial, readers=readers))
    return tuple(found)


def _readers(log: WorkerLog, serials: Collection[int], spans: Sequence[Span]) -> Readers | None:
    """The workers of these iterators in these windows; None where too little is told of them."""
    total_ns = sum(end - start for start, end in spans)
    batches = log.batches
    mine = (batches.outcome == Outcome.OK) & np.isin(batches.serial, sorted(serials))
    mine &= batches.worker >= 0
    n_workers = max((i.num_workers for i in log.iterators if i.serial in serials), default=0)
    if not n_workers or total_ns <= 0:
        return None
    cycles: list[float] = []
    making_ns = n_made = n_told = 0
    queued = {
        p.pid: p.run_wait_share
        for p in log.processes
        if p.role == "worker" and p.run_wait_share is not None
    }
    for start, end in spans:
        made = batches.where(mine & (batches.end_ns > start) & (batches.end_ns <= end))
        making_ns += int((made.end_ns - made.begin_ns).sum())
        n_made += len(made)
        waits = _wait_ms(made.where(np.isin(made.pid, list(queued))), queued)
        n_told += len(waits)
        whole = len(waits) - len(waits) % n_workers
        cycles += waits[:whole].reshape(-1, n_workers).mean(axis=1).tolist()
    if n_told < MIN_TOLD * n_made:
        return None
    if len(cycles) < MIN_CYCLES:
        return None
    return Readers(
        busy=making_ns / total_ns,
        wait_ms=mean(cycles),
        batches_per_s=n_made / total_ns * NS_PER_S,
    )


def _wait_ms(made: Batches, queued: Mapping[int, float]) -> NDArray[np.float64]:
    """Of making each batch, what its worker neither computed nor queued for a CPU.

    `queued`: of each worker's time, by its process.
    """
    share = np.array([queued[pid] for pid in made.pid.tolist()], dtype=np.float64)
    making_ns = (made.end_ns - made.begin_ns).astype(np.float64)
    waiting_ns = making_ns * (1.0 - share) - made.process_cpu_ns
    return np.asarray(np.maximum(waiting_ns, 0.0) / NS_PER_MS)
