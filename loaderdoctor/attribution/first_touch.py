"""Cold against warm storage: the time of samples touched first, and of the same ones again."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loaderdoctor.instrument.wire.worker_log import MAIN_PROCESS, WorkerLog
from loaderdoctor.units import NS_PER_MS

# Samples seen both for the first time and again before the two are compared.
MIN_REVISITED = 16


class FirstTouch(NamedTuple):
    """Mean time of samples touched for the first time, and of the same samples touched again."""

    first_ms: float
    later_ms: float

    @property
    def ratio(self) -> float:
        """How much longer the first touch takes."""
        return self.first_ms / self.later_ms


def first_touch(log: WorkerLog, loader: str | None, datasets: Collection[int]) -> FirstTouch | None:
    """What the first touch of a sample takes more than later ones.

    A sample is known by its index, in an IterableDataset by its place in the worker's epoch. The
    first sample of each process is left out: it pays for imports and opening files. `datasets`
    are those of IteratorRecord.dataset; the whole log counts, trials too, but no other `loader`
    (IteratorRecord.loader) over the same dataset. None where too little was revisited.
    """
    same = [i.serial for i in log.iterators if i.dataset in datasets and i.loader in (None, loader)]
    samples, batches = log.samples, log.batches
    mine = np.isin(batches.serial[samples.batch], np.array(same, dtype=np.int64))
    rows = np.flatnonzero(mine)
    rows = rows[np.argsort(samples.start_ns[rows], kind="stable")]
    if rows.size == 0:
        return None
    pid = batches.pid[samples.batch[rows]]
    rows = np.delete(rows, np.unique(pid, return_index=True)[1])
    if rows.size == 0:
        return None
    name = samples.index[rows]
    if (name < 0).any():
        name = _place_in_epoch(log, rows)
    _, first, inverse, times_seen = np.unique(
        name, return_index=True, return_inverse=True, return_counts=True
    )
    revisited = times_seen > 1
    if int(revisited.sum()) < MIN_REVISITED:
        return None
    duration = samples.duration_ns[rows].astype(np.float64)
    first_ns = duration[first]
    later_ns = (np.bincount(inverse.ravel(), weights=duration) - first_ns) / np.maximum(
        times_seen - 1, 1
    )
    first_ms = float(first_ns[revisited].mean()) / NS_PER_MS
    later_ms = float(later_ns[revisited].mean()) / NS_PER_MS
    return FirstTouch(first_ms, later_ms) if later_ms > 0 else None


def _place_in_epoch(log: WorkerLog, rows: NDArray[np.intp]) -> NDArray[np.int64]:
    """Worker × 2^40 + ordinal of the sample within that worker's epoch; `rows` in time order."""
    of = log.samples.batch[rows]
    group = np.stack((log.batches.serial[of], log.batches.epoch[of], log.batches.worker[of]))
    _, inverse = np.unique(group, axis=1, return_inverse=True)
    place = np.zeros(rows.size, dtype=np.int64)
    for g in range(int(inverse.max()) + 1):
        here = inverse.ravel() == g
        place[here] = np.arange(int(here.sum()))
    worker = np.where(group[2] == MAIN_PROCESS, 0, group[2])
    return (worker << 40) + place
