"""Which of the recorded batches belong to one loader in one window.

A run has several loaders (training, validation), perhaps over one dataset object, and at 0 workers
all of them in one process. What tells their batches apart is the iterator that each was made for,
and the loader that it is an iterator of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loaderdoctor.instrument.wire.record_file import Outcome
from loaderdoctor.instrument.wire.records import FetchRecord, LoaderRecord
from loaderdoctor.instrument.wire.worker_log import (
    Batches,
    BatchSpans,
    IteratorRecord,
    ProcessRecord,
    WorkerLog,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The part of a log that one loader's window covers."""

    log: WorkerLog
    loader: str | None  # LoaderRecord.id; None: the records do not say
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

    def of_iterators(self, spans: BatchSpans) -> BatchSpans:
        """Spans of the selected iterators that end within the window."""
        inside = (spans.end_ns > self.start_ns) & (spans.end_ns <= self.end_ns)
        return spans.where(inside & np.isin(spans.serial, self.serials))


def selections(
    log: WorkerLog,
    start_ns: int,
    end_ns: int,
    *,
    fetches: Sequence[FetchRecord] = (),
    loaders: Sequence[LoaderRecord] = (),
) -> tuple[Selection, ...]:
    """One for each loader that had batches made within [start_ns, end_ns), the step's own first.

    `loaders` are those that `fetches` number; those of the step count first, and of several the
    one whose batches took longest to make. Where the records don't name loaders, fetches do; with
    neither, all batches are taken for one loader's.
    """
    batches = log.batches
    made = (batches.outcome == Outcome.OK) & (batches.end_ns > start_ns)
    made &= batches.end_ns <= end_ns
    making_ns = batches.end_ns - batches.begin_ns
    train = {x.id for x in loaders if x.role == "train"}
    found: list[tuple[bool, int, Selection]] = []
    for loader, serials in _serials_by_loader(log, made, fetches, loaders):
        rows = np.flatnonzero(made & np.isin(batches.serial, serials))
        if rows.size:
            chosen = _selection(log, start_ns, end_ns, loader, serials, rows)
            found.append((loader not in train, -int(making_ns[rows].sum()), chosen))
    return tuple(chosen for _, _, chosen in sorted(found, key=lambda x: x[:2]))


def of_step(found: Sequence[Selection], loaders: Sequence[LoaderRecord]) -> Selection | None:
    """The selection that the figures of the step are of; None where none of its loaders has one."""
    train = {x.id for x in loaders if x.role == "train"}
    first = found[0] if found else None
    if first is None or first.loader is None or not train or first.loader in train:
        return first
    return None


def _selection(
    log: WorkerLog,
    start_ns: int,
    end_ns: int,
    loader: str | None,
    serials: NDArray[np.int64],
    rows: NDArray[np.intp],
) -> Selection:
    iterators = tuple(i for i in log.iterators if i.serial in set(serials.tolist()))
    n_workers = max((i.num_workers for i in iterators), default=0)
    if n_workers > 1 and rows.size >= n_workers:
        rows = rows[: rows.size - rows.size % n_workers]
    return Selection(
        log=log,
        loader=loader,
        start_ns=start_ns,
        end_ns=end_ns,
        serials=serials,
        batches=log.batches.where(rows),
        rows=rows,
        iterators=iterators,
        n_workers=n_workers,
    )


def _serials_by_loader(
    log: WorkerLog,
    made: NDArray[np.bool_],
    fetches: Sequence[FetchRecord],
    loaders: Sequence[LoaderRecord],
) -> list[tuple[str | None, NDArray[np.int64]]]:
    """Iterators of each loader: as they were recorded, else by what its fetches returned."""
    named: dict[str, list[int]] = {}
    for iterator in log.iterators:
        if iterator.loader is not None:
            named.setdefault(iterator.loader, []).append(iterator.serial)
    if named:
        return [(loader, np.array(s, dtype=np.int64)) for loader, s in named.items()]
    everything = np.unique(log.batches.serial[made])
    if not fetches or not len(log.deliveries):
        return [(None, everything)]
    received: list[tuple[str | None, NDArray[np.int64]]] = []
    for index in sorted({f.loader for f in fetches}):
        name = loaders[index].id if index < len(loaders) else None
        own = [f for f in fetches if f.loader == index]
        received.append((name, _received(log.deliveries, own)))
    return received if any(s.size for _, s in received) else [(None, everything)]


def _received(deliveries: BatchSpans, fetches: Sequence[FetchRecord]) -> NDArray[np.int64]:
    """Serials of the batches that these fetches of one loader returned."""
    middle = (deliveries.start_ns + deliveries.end_ns) // 2
    received = np.zeros(len(deliveries), dtype=np.bool_)
    for thread in sorted({f.thread for f in fetches}):
        mine = sorted((f.start_ns, f.end_ns) for f in fetches if f.thread == thread)
        starts, ends = np.array(mine, dtype=np.int64).T
        at = np.searchsorted(starts, middle, side="right") - 1
        within = (at >= 0) & (middle <= ends[np.maximum(at, 0)])
        received |= within & (deliveries.thread == thread)
    return np.unique(deliveries.serial[received])
