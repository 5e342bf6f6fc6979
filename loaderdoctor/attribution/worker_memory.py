"""Looks at workers' memory, and the log of what they made -> how much they have, how it grows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loaderdoctor.facts.workers import GrowthFacts, WorkerMemoryFacts
from loaderdoctor.instrument.wire.protocol import WindowDone
from loaderdoctor.instrument.wire.worker_log import WorkerLog
from loaderdoctor.units import NS_PER_S

# Two looks give a difference, and no pace that could be seen to go on.
MIN_LOOKS = 4


def worker_memory_facts(
    windows: Sequence[WindowDone], log: WorkerLog | None
) -> WorkerMemoryFacts | None:
    """Of the loop's own workers, at the ends of its plain windows; None where none were seen."""
    looks = [w for w in windows if w.pool_memory is not None]
    if not looks:
        return None
    seen = [w.pool_memory for w in looks if w.pool_memory is not None]
    return WorkerMemoryFacts(
        n_workers=seen[-1].n,
        worker_bytes=max(x.largest_bytes for x in seen),
        growth=_growth(looks, log) if log is not None else None,
    )


def _growth(looks: Sequence[WindowDone], log: WorkerLog) -> GrowthFacts | None:
    """Of the workers that were there at the last look, back to the first that all of them saw."""
    by_time = [(w.end_ns, dict(w.pool_memory.by_pid)) for w in looks if w.pool_memory is not None]
    pids = set(by_time[-1][1])
    kept = [(at_ns, sizes) for at_ns, sizes in by_time if pids <= set(sizes)]
    if len(kept) < MIN_LOOKS:
        return None
    batches = log.batches.where(np.isin(log.batches.pid, sorted(pids)))
    at = np.array([at_ns for at_ns, _ in kept])
    size = np.array([sum(sizes[pid] for pid in pids) / len(pids) for _, sizes in kept])
    ends, counts = batches.end_ns, np.cumsum(batches.n_samples[np.argsort(batches.end_ns)])
    made = np.append(0, counts)[np.searchsorted(np.sort(ends), at, side="right")] / len(pids)
    n_samples = float(made[-1] - made[0])
    grew = float(size[-1] - size[0])
    if n_samples <= 0:
        return None
    middle = float(np.interp((made[0] + made[-1]) / 2, made, size))
    return GrowthFacts(
        n_workers=len(pids),
        first_bytes=float(size[0]),
        last_bytes=float(size[-1]),
        n_samples=n_samples,
        took_s=float(at[-1] - at[0]) / NS_PER_S,
        late_part=(float(size[-1]) - middle) / grew if grew > 0 else 0.0,
        grown=_grown(log, pids),
        heap_freed_bytes=_heap_freed(log, pids),
    )


def _grown(log: WorkerLog, pids: set[int]) -> tuple[tuple[str, int, int], ...]:
    """Containers that grew in all of these workers: entries of the one that has most."""
    processes = [p for p in log.processes if p.pid in pids]
    if not processes:
        return ()
    names = set.intersection(*({name for name, _, _ in p.grown} for p in processes))
    most = max(processes, key=lambda p: sum(b - a for _, a, b in p.grown))
    return tuple(x for x in most.grown if x[0] in names)


def _heap_freed(log: WorkerLog, pids: set[int]) -> float | None:
    """Mean of the workers that told it."""
    told = [p.heap_freed_bytes for p in log.processes if p.pid in pids]
    known = [n for n in told if n is not None]
    return sum(known) / len(known) if known else None
