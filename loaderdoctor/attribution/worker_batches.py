"""Which of the recorded batches belong to one loader in one window, and where their time went.

A run has several loaders (training, validation), perhaps over one dataset object, and at 0 workers
all of them in one process. What tells their batches apart is the iterator that each was made for,
and the loader that it is an iterator of. Of those chosen: samples touched for the first time, and
the lines of code that stack samples found, and how epochs of a stream were dealt to the workers.
"""

from __future__ import annotations

import linecache
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loaderdoctor.facts.host import Leaf, LineHotspot
from loaderdoctor.facts.loop import ShardFacts
from loaderdoctor.instrument.wire.measured import FetchRecord
from loaderdoctor.instrument.wire.record_file import Outcome
from loaderdoctor.instrument.wire.records import LoaderRecord
from loaderdoctor.instrument.wire.worker_log import (
    MAIN_PROCESS,
    Batches,
    BatchSpans,
    IteratorRecord,
    LineCount,
    ProcessRecord,
    WorkerLog,
)
from loaderdoctor.units import NS_PER_MS, NS_PER_S


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


MAX_LINES = 20
MAX_LEAVES = 20  # of a line

_Place = tuple[str, str, int, str]  # phase, file, line, function


def line_hotspots(
    stack_samples: Iterable[LineCount], phase_ms: Mapping[str, float]
) -> tuple[LineHotspot, ...]:
    """The places where most time goes, most first; each carries the stack samples of its phase.

    `phase_ms` is what each phase of a batch takes; one without a time counts by its stack samples.
    """
    places: Counter[_Place] = Counter()
    leaves: defaultdict[_Place, Counter[tuple[str, str]]] = defaultdict(Counter)
    for x in stack_samples:
        place = x.phase, x.file, x.line, x.function
        places[place] += x.count
        leaves[place][x.leaf_file, x.leaf_function] += x.count
    totals: Counter[str] = Counter()
    for place, count in places.items():
        totals[place[0]] += count
    shares = _phase_shares(totals, phase_ms)
    hotspots = [
        LineHotspot(
            file=file,
            line=line,
            function=function,
            code=linecache.getline(file, line).strip() or None,
            n_stack_samples=count,
            of_stack_samples=totals[phase],
            phase=phase,  # type: ignore[arg-type]  # the sampler's words
            phase_share=shares[phase],
            leaves=tuple(
                Leaf(file=leaf_file, function=leaf_function, n_stack_samples=n)
                for (leaf_file, leaf_function), n in leaves[
                    phase, file, line, function
                ].most_common(MAX_LEAVES)
            ),
        )
        for (phase, file, line, function), count in places.most_common()
    ]
    return tuple(sorted(hotspots, key=lambda x: -x.share)[:MAX_LINES])


def _phase_shares(totals: Counter[str], phase_ms: Mapping[str, float]) -> dict[str, float]:
    """Of the time of the phases seen; by stack samples where a phase's time was not recorded."""
    weights = {phase: phase_ms.get(phase, 0.0) for phase in totals}
    if not all(weights.values()):
        weights = dict(totals)
    whole = sum(weights.values())
    return {phase: weight / whole for phase, weight in weights.items()}


def shard_facts(
    log: WorkerLog, loader: LoaderRecord | None, *, until_ns: int | None = None
) -> ShardFacts | None:
    """Of the loader's epochs that were over before `until_ns`; None where none was seen whole.

    From then on windows with other batches, and trials, hold the loop's own workers up.
    """
    if loader is None or loader.kind != "iterable":
        return None
    found = []
    for iterator in log.iterators:
        if iterator.loader != loader.id or iterator.num_workers < 2:
            continue
        of_iterator = log.batches.where(log.batches.serial == iterator.serial)
        for epoch in np.unique(of_iterator.epoch):
            rows = of_iterator.where(of_iterator.epoch == epoch)
            one = _epoch(rows, iterator.num_workers, until_ns)
            if one is not None:
                found.append(one)
    if not found:
        return None
    found.sort(key=lambda x: x.lost_share)
    middle = found[(len(found) - 1) // 2]
    return ShardFacts(
        batches=middle.batches,
        ended_s=middle.ended_s,
        epoch_s=middle.epoch_s,
        n_epochs=len(found),
    )


def _epoch(rows: Batches, n_workers: int, until_ns: int | None) -> ShardFacts | None:
    """None where not every worker was seen to come to the end of its data."""
    ends = rows.where(rows.outcome == Outcome.EXHAUSTED)
    made = rows.where(rows.outcome == Outcome.OK)
    if not len(made) or sorted(set(ends.worker.tolist())) != list(range(n_workers)):
        return None
    begin_ns, end_ns = int(rows.begin_ns.min()), int(ends.end_ns.max())
    if end_ns <= begin_ns or (until_ns is not None and end_ns > until_ns):
        return None
    last = [int(ends.end_ns[ends.worker == w].max()) for w in range(n_workers)]
    return ShardFacts(
        batches=tuple(int((made.worker == w).sum()) for w in range(n_workers)),
        ended_s=tuple((at_ns - begin_ns) / NS_PER_S for at_ns in last),
        epoch_s=(end_ns - begin_ns) / NS_PER_S,
    )
