"""Reads what workers and the training process recorded about the making of batches.

Imports no torch. The types are those of `worker_log`, offered from here as well: this is the one
module of the measuring side that the stages after it import for worker records.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from loaderdoctor.errors import RunError
from loaderdoctor.instrument.wire.record_file import (
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
from loaderdoctor.instrument.wire.record_file import Outcome as Outcome
from loaderdoctor.instrument.wire.worker_log import ABSENT as ABSENT
from loaderdoctor.instrument.wire.worker_log import I64
from loaderdoctor.instrument.wire.worker_log import MAIN_PROCESS as MAIN_PROCESS
from loaderdoctor.instrument.wire.worker_log import Batches as Batches
from loaderdoctor.instrument.wire.worker_log import IteratorRecord as IteratorRecord
from loaderdoctor.instrument.wire.worker_log import LineCount as LineCount
from loaderdoctor.instrument.wire.worker_log import ProcessRecord as ProcessRecord
from loaderdoctor.instrument.wire.worker_log import Samples as Samples
from loaderdoctor.instrument.wire.worker_log import Spans as Spans
from loaderdoctor.instrument.wire.worker_log import TransformTime as TransformTime
from loaderdoctor.instrument.wire.worker_log import WorkerLog as WorkerLog
from loaderdoctor.instrument.wire.worker_log import keys as keys
from loaderdoctor.instrument.wire.worker_log import rows_of as rows_of


def read(records_dir: Path) -> WorkerLog:
    """Reads every record file of a directory, finished or still being written.

    Raises RunError for a file that is not ours or holds a record that makes no sense.
    """
    raw = _Raw()
    for path in sorted(records_dir.glob("*.rec")):
        raw.read_file(path)
    return raw.log()


class _Raw:
    """Records as they come, file by file."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, ...]] = []
        self.stamps: list[tuple[int, I64, I64]] = []  # row of `batches`, stamps, indices
        self.sends: list[tuple[int, ...]] = []
        self.sampler_draws: list[tuple[int, ...]] = []
        self.deliveries: list[tuple[int, ...]] = []
        self.pins: list[tuple[int, ...]] = []
        self.iterators: list[IteratorRecord] = []
        self.processes: list[ProcessRecord] = []
        self.lines: list[LineCount] = []
        self.transforms: list[TransformTime] = []
        self.n_truncated = 0

    def read_file(self, path: Path) -> None:
        try:
            self._read_file(path)
        except _SENSELESS as error:
            reason = ascii(str(error))[1:-1][:_REASON_LENGTH]
            raise RunError(f"{path}: damaged record file ({reason}).") from error

    def _read_file(self, path: Path) -> None:
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
            self._add(kind, payload, pid, process)
        if at != len(content):
            self.n_truncated += 1
        if process:
            self.processes.append(_process(process))

    def _add(self, kind: int, payload: bytes, pid: int, process: dict[str, Any]) -> None:
        plain = {
            Kind.SEND: (SEND, self.sends),
            Kind.DRAW: (DRAW, self.sampler_draws),
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
            if more.get("run_wait_ns") is not None:
                process.setdefault("run_wait", (more["described_ns"], more["run_wait_ns"]))
            process.update(more)
            process["native_threads"] = max((n for n in native if n is not None), default=None)
        elif kind == Kind.ITERATOR:
            self.iterators.append(msgspec.json.decode(payload, type=IteratorRecord))
        elif kind == Kind.LINES:
            self._add_lines(json.loads(payload), pid)
        elif kind == Kind.TRANSFORMS:
            value = json.loads(payload)
            self.transforms.extend(
                _typed(
                    TransformTime,
                    pid=pid,
                    since_ns=value["since_ns"],
                    until_ns=value["until_ns"],
                    name=name,
                    total_ns=total_ns,
                    n_samples=n,
                    serial=value["serial"],
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
                _typed(
                    LineCount,
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
                    serial=value["serial"],
                )
            )

    def log(self) -> WorkerLog:
        batches, order = self._batches()
        return WorkerLog(
            batches=batches,
            samples=self._samples(order),
            sampler_draws=_spans(self.sampler_draws, lambda r: (r[3], r[4], r[3], ABSENT)),
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
                n_bytes=sent(6),
                feeder=sent(7),
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


SEND_FIELDS = 8
# What damaged records may raise on their way to columns and typed values.
_SENSELESS = (
    ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError,
    StructError, msgspec.MsgspecError, OSError,
)  # fmt: skip
_REASON_LENGTH = 200
Record = TypeVar("Record", ProcessRecord, LineCount, TransformTime)


def _typed(kind: type[Record], **values: Any) -> Record:
    """One of our records out of values from a file. Raises msgspec.ValidationError."""
    return msgspec.convert(values, type=kind)


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


def _run_wait_share(value: dict[str, Any]) -> float | None:
    """Between the first and the last time that the process described itself."""
    first, last_ns = value.get("run_wait"), value.get("run_wait_ns")
    if first is None or last_ns is None or value["described_ns"] <= first[0]:
        return None
    return float((last_ns - first[1]) / (value["described_ns"] - first[0]))


def _process(value: dict[str, Any]) -> ProcessRecord:
    cores = value.get("cores")
    return _typed(
        ProcessRecord,
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
        run_wait_share=_run_wait_share(value),
    )
