"""Reads what workers and the training process recorded about the making of batches.

Imports no torch. All times are CLOCK_MONOTONIC nanoseconds; -1 marks what was not recorded. A
batch has one name in every process: (serial of the iterator, its epoch, torch's batch number).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaderdoctor.errors import RunError
from loaderdoctor.instrument.record_file import (
    ARRIVAL,
    BATCH,
    DELIVERY,
    DRAW,
    HEADER,
    MAGIC,
    PIN,
    SEND,
    SUFFIX,
    Kind,
)
from loaderdoctor.instrument.record_file import Outcome as Outcome

I64 = NDArray[np.int64]
Bool = NDArray[np.bool_]

ABSENT = -1
MAIN_PROCESS = -1  # in `Batches.worker`: made in the training process (0 workers)

_KEY = np.dtype([("serial", np.int64), ("epoch", np.int64), ("idx", np.int64)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """One row for each batch made or failed, ordered by `begin_ns`. Equal lengths."""

    serial: I64
    epoch: I64
    idx: I64
    worker: I64  # worker id, or MAIN_PROCESS
    pid: I64
    outcome: I64  # record_file.Outcome
    n_samples: I64
    wait_ns: I64  # began to wait for an index
    begin_ns: I64  # had it
    collate_ns: I64  # samples done; -1 where unknown
    end_ns: I64  # collated
    thread_cpu_ns: I64  # of the thread that made it, begin to end
    process_cpu_ns: I64  # of its whole process
    send_ns: I64  # pickled, about to enter the pipe: ready for the training process
    sent_ns: I64  # wholly in the pipe
    n_bytes: I64  # what went through the pipe (tensors go by shared memory)
    feeder: I64  # native thread that sent it
    feeder_cpu_ns: I64  # of that thread, since it began

    def __len__(self) -> int:
        return int(self.serial.shape[0])

    def where(self, mask: Bool | NDArray[np.intp]) -> Batches:
        """The rows selected, in order."""
        return Batches(**{name: getattr(self, name)[mask] for name in self.__slots__})

    @property
    def key(self) -> NDArray[Any]:
        """(serial, epoch, idx) of each row, comparable and searchable."""
        return keys(self.serial, self.epoch, self.idx)


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """One row for each timed sample, by batch. Very short ones are timed in some batches only."""

    batch: I64  # row in Batches
    start_ns: I64
    duration_ns: I64
    index: I64  # what the sampler drew; -1 where it is no integer


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """Spans of one kind, one for each batch, in the order of their ends."""

    serial: I64
    epoch: I64
    idx: I64
    start_ns: I64
    end_ns: I64
    wait_ns: I64  # pin thread: began to wait; else equal to start_ns
    thread: I64  # native thread id; -1 where not recorded

    def __len__(self) -> int:
        return int(self.serial.shape[0])

    def where(self, mask: Bool | NDArray[np.intp]) -> Spans:
        """The rows selected, in order."""
        return Spans(**{name: getattr(self, name)[mask] for name in self.__slots__})

    @property
    def key(self) -> NDArray[Any]:
        """(serial, epoch, idx) of each row."""
        return keys(self.serial, self.epoch, self.idx)


@dataclass(frozen=True, slots=True, kw_only=True)
class IteratorRecord:
    """A DataLoader iterator that the training process opened."""

    serial: int
    created_ns: int
    num_workers: int
    prefetch_factor: int | None
    persistent: bool
    in_order: bool
    pin_memory: bool
    iterable: bool
    dataset: int  # equal for loaders over the same dataset object


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRecord:
    """A process that recorded: a worker, or the training process (`worker` -1)."""

    role: str  # "worker" | "main"
    pid: int
    worker: int
    serial: int
    started_ns: int
    ready_ns: int | None  # first asked for an index: the dataset is there, worker_init_fn ran
    exit_ns: int | None  # None: still running, or killed
    cores: tuple[int, ...] | None  # CPU affinity
    torch_threads: int | None
    native_threads: int | None  # most that were seen, started by libraries rather than Python
    variables: tuple[tuple[str, str], ...]  # OMP_NUM_THREADS and the like, where set


@dataclass(frozen=True, slots=True, kw_only=True)
class LineCount:
    """How often the line sampler found a process at one place, within one stretch of time."""

    pid: int
    since_ns: int
    until_ns: int
    phase: str  # "fetch" | "collate" | "sampler"
    file: str
    line: int
    function: str
    leaf_file: str
    leaf_line: int
    leaf_function: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformTime:
    """Time in one transform over the samples that were probed, within one stretch of time."""

    pid: int
    since_ns: int
    until_ns: int
    name: str
    total_ns: int
    n_samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLog:
    """Everything the records of one run say."""

    batches: Batches
    samples: Samples
    draws: Spans  # next(sampler), in the training process
    arrivals: Spans  # a batch came off the queue (start = end), perhaps out of order
    deliveries: Spans  # the loop's fetch that returned the batch, seen from within __next__
    pins: Spans  # made by the pin-memory thread, or within the fetch at 0 workers
    iterators: tuple[IteratorRecord, ...]
    processes: tuple[ProcessRecord, ...]
    lines: tuple[LineCount, ...]
    transforms: tuple[TransformTime, ...]
    n_truncated: int  # files that end within a record: a process was killed, or still writes


def read(records_dir: Path) -> WorkerLog:
    """Reads every record file of a directory, finished or still being written.

    Raises RunError for a file that is not ours or holds a record that makes no sense.
    """
    raw = _Raw()
    for path in sorted(records_dir.glob("*.rec")):
        raw.read_file(path)
    return raw.log()


def keys(serial: I64, epoch: I64, idx: I64) -> NDArray[Any]:
    """A structured array that names batches."""
    key = np.empty(serial.shape, dtype=_KEY)
    key["serial"], key["epoch"], key["idx"] = serial, epoch, idx
    return key


def rows_of(wanted: NDArray[Any], among: NDArray[Any]) -> NDArray[np.intp]:
    """For each key of `wanted` its (last) row in `among`; -1 where it is not there."""
    if among.size == 0:
        return np.full(wanted.shape, -1, dtype=np.intp)
    order = np.argsort(among, kind="stable", order=("serial", "epoch", "idx"))
    at = np.searchsorted(among[order], wanted, side="right") - 1
    row = order[np.maximum(at, 0)]
    return np.where((at >= 0) & (among[row] == wanted), row, -1)


class _Raw:
    """Records as they come, file by file."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, ...]] = []
        self.stamps: list[tuple[int, I64, I64]] = []  # row of `batches`, stamps, indices
        self.sends: list[tuple[int, ...]] = []
        self.draws: list[tuple[int, ...]] = []
        self.arrivals: list[tuple[int, ...]] = []
        self.deliveries: list[tuple[int, ...]] = []
        self.pins: list[tuple[int, ...]] = []
        self.iterators: list[IteratorRecord] = []
        self.processes: list[ProcessRecord] = []
        self.lines: list[LineCount] = []
        self.transforms: list[TransformTime] = []
        self.n_truncated = 0

    def read_file(self, path: Path) -> None:
        content = path.read_bytes()
        if not content.startswith(MAGIC):
            if len(content) < len(MAGIC):
                return  # just created
            raise RunError(f"{path}: not a record file of this version.")
        process: dict[str, Any] = {}
        pid = int(path.name.removesuffix(SUFFIX).split("-")[-2])
        at = len(MAGIC)
        while at + HEADER.size <= len(content):
            kind, length = HEADER.unpack_from(content, at)
            at += HEADER.size
            if at + length > len(content):
                at -= HEADER.size
                break
            payload = content[at : at + length]
            at += length
            try:
                self._add(kind, payload, pid, process)
            except (ValueError, KeyError, TypeError) as error:
                raise RunError(f"{path}: damaged record of kind {kind} ({error}).") from error
        if at != len(content):
            self.n_truncated += 1
        if process:
            self.processes.append(_process(process))

    def _add(self, kind: int, payload: bytes, pid: int, process: dict[str, Any]) -> None:
        plain = {
            Kind.SEND: (SEND, self.sends),
            Kind.DRAW: (DRAW, self.draws),
            Kind.ARRIVAL: (ARRIVAL, self.arrivals),
            Kind.DELIVERY: (DELIVERY, self.deliveries),
            Kind.PIN: (PIN, self.pins),
        }
        if kind == Kind.BATCH:
            self._add_batch(payload, pid)
        elif kind in plain:
            layout, rows = plain[Kind(kind)]
            rows.append(_unpack(layout, payload))
        elif kind == Kind.PROCESS:
            more = json.loads(payload)
            native = [p.get("native_threads") for p in (process, more)]
            process.update(more)
            process["native_threads"] = max((n for n in native if n is not None), default=None)
        elif kind == Kind.ITERATOR:
            self.iterators.append(IteratorRecord(**json.loads(payload)))
        elif kind == Kind.LINES:
            self._add_lines(json.loads(payload), pid)
        elif kind == Kind.TRANSFORMS:
            value = json.loads(payload)
            self.transforms.extend(
                TransformTime(
                    pid=pid,
                    since_ns=value["since_ns"],
                    until_ns=value["until_ns"],
                    name=name,
                    total_ns=total_ns,
                    n_samples=n,
                )
                for name, (total_ns, n) in value["transforms"].items()
            )

    def _add_batch(self, payload: bytes, pid: int) -> None:
        *fields, n_stamps, n_indices = BATCH.unpack_from(payload)
        if len(payload) != BATCH.size + 8 * (n_stamps + n_indices):
            raise ValueError("length does not match its counts")
        if n_stamps:
            stamps = np.frombuffer(payload, dtype=np.int64, count=n_stamps, offset=BATCH.size)
            indices = np.frombuffer(payload, dtype=np.int64, offset=BATCH.size + 8 * n_stamps)
            self.stamps.append((len(self.batches), stamps, indices))
        self.batches.append((*fields, pid))

    def _add_lines(self, value: dict[str, Any], pid: int) -> None:
        for phase, file, line, function, leaf_file, leaf_line, leaf_function, count in value[
            "spots"
        ]:
            self.lines.append(
                LineCount(
                    pid=pid,
                    since_ns=value["since_ns"],
                    until_ns=value["until_ns"],
                    phase=phase,
                    file=file,
                    line=line,
                    function=function,
                    leaf_file=leaf_file,
                    leaf_line=leaf_line,
                    leaf_function=leaf_function,
                    count=count,
                )
            )

    def log(self) -> WorkerLog:
        batches, order = self._batches()
        return WorkerLog(
            batches=batches,
            samples=self._samples(order),
            draws=_spans(self.draws, lambda r: (r[3], r[4], r[3], ABSENT)),
            arrivals=_spans(self.arrivals, lambda r: (r[3], r[3], r[3], ABSENT)),
            deliveries=_spans(self.deliveries, lambda r: (r[3], r[4], r[3], r[5])),
            pins=_spans(self.pins, lambda r: (r[4], r[5], r[3], r[6])),
            iterators=tuple(sorted(self.iterators, key=lambda i: i.serial)),
            processes=tuple(sorted(self.processes, key=lambda p: p.started_ns)),
            lines=tuple(self.lines),
            transforms=tuple(self.transforms),
            n_truncated=self.n_truncated,
        )

    def _batches(self) -> tuple[Batches, NDArray[np.intp]]:
        table = _table(self.batches, 13)
        order = np.argsort(table[:, 7], kind="stable")
        table = table[order]
        sends = _table(self.sends, SEND_FIELDS)
        row = rows_of(
            keys(table[:, 0], table[:, 1], table[:, 2]),
            keys(sends[:, 0], sends[:, 1], sends[:, 2]),
        )

        def sent(column: int) -> I64:
            if not len(sends):
                return np.full(row.shape, ABSENT, dtype=np.int64)
            return np.where(row >= 0, sends[np.maximum(row, 0), column], ABSENT)

        return (
            Batches(
                serial=table[:, 0],
                epoch=table[:, 1],
                idx=table[:, 2],
                worker=table[:, 3],
                outcome=table[:, 4],
                n_samples=table[:, 5],
                wait_ns=table[:, 6],
                begin_ns=table[:, 7],
                collate_ns=np.where(table[:, 8] > 0, table[:, 8], ABSENT),
                end_ns=table[:, 9],
                thread_cpu_ns=table[:, 10],
                process_cpu_ns=table[:, 11],
                pid=table[:, 12],
                send_ns=sent(4),
                sent_ns=sent(5),
                feeder_cpu_ns=sent(6),
                n_bytes=sent(7),
                feeder=sent(8),
            ),
            order,
        )

    def _samples(self, order: NDArray[np.intp]) -> Samples:
        """Durations between stamps. A failed batch has stamps up to the sample that failed."""
        row_of = np.empty_like(order)
        row_of[order] = np.arange(order.size)
        rows, starts, durations, drawn = [], [], [], []
        for row, stamps, indices in self.stamps:
            n = stamps.size - 1
            if n < 1 or self.batches[row][4] == Outcome.ERROR:
                continue
            rows.append(np.full(n, row_of[row], dtype=np.int64))
            starts.append(stamps[:-1])
            durations.append(np.diff(stamps))
            known = indices.size >= n
            drawn.append(indices[:n] if known else np.full(n, ABSENT, dtype=np.int64))
        return Samples(
            batch=_joined(rows),
            start_ns=_joined(starts),
            duration_ns=_joined(durations),
            index=_joined(drawn),
        )


SEND_FIELDS = 9


def _unpack(layout: Struct, payload: bytes) -> tuple[int, ...]:
    if len(payload) != layout.size:
        raise ValueError(f"{len(payload)} bytes where {layout.size} belong")
    return layout.unpack(payload)


def _table(rows: list[tuple[int, ...]], n_columns: int) -> I64:
    return np.array(rows, dtype=np.int64).reshape(len(rows), n_columns)


def _joined(parts: list[I64]) -> I64:
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def _spans(
    rows: list[tuple[int, ...]], pick: Callable[[tuple[int, ...]], tuple[int, int, int, int]]
) -> Spans:
    table = _table([(*r[:3], *pick(r)) for r in rows], 7)
    table = table[np.argsort(table[:, 4], kind="stable")]
    return Spans(
        serial=table[:, 0],
        epoch=table[:, 1],
        idx=table[:, 2],
        start_ns=table[:, 3],
        end_ns=table[:, 4],
        wait_ns=table[:, 5],
        thread=table[:, 6],
    )


def _process(value: dict[str, Any]) -> ProcessRecord:
    cores = value.get("cores")
    return ProcessRecord(
        role=value["role"],
        pid=value["pid"],
        worker=value.get("worker", MAIN_PROCESS),
        serial=value.get("serial", 0),
        started_ns=value["started_ns"],
        ready_ns=value.get("ready_ns"),
        exit_ns=value.get("exit_ns"),
        cores=None if cores is None else tuple(cores),
        torch_threads=value.get("torch_threads"),
        native_threads=value.get("native_threads"),
        variables=tuple(sorted(value.get("variables", {}).items())),
    )
