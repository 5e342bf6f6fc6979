"""Reads what workers and the training process recorded about the making of batches.

Imports no torch.
"""

from __future__ import annotations

import json
from dataclasses import fields
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
    Outcome,
)
from loaderdoctor.instrument.wire.worker_log import (
    ABSENT,
    I64,
    MAIN_PROCESS,
    Batches,
    BatchSpans,
    CollectedCount,
    IteratorRecord,
    LineCount,
    ProcessRecord,
    ReadCount,
    Samples,
    TransformTime,
    WorkerLog,
    keys,
    rows_of,
)

_TYPES = {"I": "<u4", "i": "<i4", "q": "<i8"}


def _row(layout: Struct, names: str) -> np.dtype[Any]:
    """A binary record of `record_file`, as it is in the file, with the names of its fields."""
    codes = layout.format.removeprefix("<")
    return np.dtype([(n, _TYPES[code]) for n, code in zip(names.split(), codes, strict=True)])


_BATCH = _row(
    BATCH,
    "serial epoch idx worker outcome n_samples wait_ns begin_ns collate_ns end_ns "
    "thread_cpu_ns process_cpu_ns n_stamps n_indices",
)
_SEND = _row(SEND, "serial epoch idx put_ns send_ns sent_ns n_bytes feeder")
_DRAW = _row(DRAW, "serial epoch idx start_ns end_ns")
_DELIVERY = _row(DELIVERY, "serial epoch idx start_ns end_ns thread")
_PIN = _row(PIN, "serial epoch idx wait_ns start_ns end_ns thread")


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
        self.batches = bytearray()
        self.pids: list[int] = []  # of each batch
        self.stamps: list[tuple[int, I64, I64]] = []  # row of `batches`, stamps, indices
        self.sends = bytearray()
        self.sampler_draws = bytearray()
        self.deliveries = bytearray()
        self.pins = bytearray()
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
            if len(payload) != layout.size:
                raise ValueError(f"{len(payload)} bytes where {layout.size} belong")
            rows += payload
        elif kind == Kind.PROCESS:
            more = json.loads(payload)
            native = [p.get("native_threads") for p in (process, more)]
            if more.get("run_wait_ns") is not None:
                process.setdefault("run_wait", (more["described_ns"], more["run_wait_ns"]))
            for name in ("reads", "collected", "held", "heap_free"):
                if more.get(name) is not None:
                    process.setdefault(f"first_{name}", more[name])
            process.update(more)
            process["native_threads"] = max((n for n in native if n is not None), default=None)
        elif kind == Kind.ITERATOR:
            self.iterators.append(msgspec.json.decode(payload, type=IteratorRecord))
        elif kind == Kind.LINES:
            self._add_lines(json.loads(payload), pid)
        elif kind == Kind.TRANSFORMS:
            value = json.loads(payload)
            self.transforms.extend(
                _typed(TransformTime, **value, pid=pid, name=name, total_ns=ns, n_samples=n)
                for name, (ns, n) in value["transforms"].items()
            )

    def _add_batch(self, payload: bytes, pid: int) -> None:
        *_, n_stamps, n_indices = BATCH.unpack_from(payload)
        if len(payload) != BATCH.size + 8 * (n_stamps + n_indices):
            raise ValueError("length does not match its counts")
        if n_stamps:
            stamps = np.frombuffer(payload, dtype=np.int64, count=n_stamps, offset=BATCH.size)
            indices = np.frombuffer(payload, dtype=np.int64, offset=BATCH.size + 8 * n_stamps)
            self.stamps.append((len(self.pids), stamps, indices))
        self.batches += payload[: BATCH.size]
        self.pids.append(pid)

    def _add_lines(self, value: dict[str, Any], pid: int) -> None:
        for spot in value["spots"]:
            where = dict(zip(_SPOT, spot, strict=True))
            self.lines.append(_typed(LineCount, **value, **where, pid=pid))

    def log(self) -> WorkerLog:
        batches, order = self._batches()
        return WorkerLog(
            batches=batches,
            samples=self._samples(order),
            sampler_draws=_spans(self.sampler_draws, _DRAW),
            deliveries=_spans(self.deliveries, _DELIVERY),
            pins=_spans(self.pins, _PIN),
            iterators=tuple(sorted(self.iterators, key=lambda i: i.serial)),
            processes=tuple(sorted(self.processes, key=lambda p: p.started_ns)),
            lines=tuple(self.lines),
            transforms=tuple(self.transforms),
            n_truncated=self.n_truncated,
        )

    def _batches(self) -> tuple[Batches, NDArray[np.intp]]:
        rows = np.frombuffer(self.batches, _BATCH)
        order = np.argsort(rows["begin_ns"], kind="stable")
        made = _columns(rows[order])
        sends = _columns(np.frombuffer(self.sends, _SEND))
        at = rows_of(_keys(made), _keys(sends))

        made["collate_ns"] = np.where(made["collate_ns"] > 0, made["collate_ns"], ABSENT)
        made["pid"] = np.array(self.pids, np.int64)[order]
        for name in ("send_ns", "sent_ns", "n_bytes", "feeder"):
            made[name] = np.append(sends[name], ABSENT)[at]  # the last is what -1 leads to
        return Batches(**{x.name: made[x.name] for x in fields(Batches)}), order

    def _samples(self, order: NDArray[np.intp]) -> Samples:
        """Durations between stamps. A failed batch has stamps up to the sample that failed."""
        row_of = np.empty_like(order)
        row_of[order] = np.arange(order.size)
        outcome = np.frombuffer(self.batches, _BATCH)["outcome"]
        rows, starts, durations, drawn = [], [], [], []
        for row, stamps, indices in self.stamps:
            n = stamps.size - 1
            if n < 1 or outcome[row] == Outcome.ERROR:
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


# What damaged records may raise on their way to columns and typed values.
_SENSELESS = (
    ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError,
    StructError, msgspec.MsgspecError, OSError,
)  # fmt: skip
_REASON_LENGTH = 200
# Of a line sample, its values in the order in which they are written.
_SPOT = (
    "phase", "file", "line", "function", "leaf_file", "leaf_line", "leaf_function", "count"
)  # fmt: skip
Record = TypeVar("Record", ProcessRecord, LineCount, TransformTime, ReadCount, CollectedCount)


def _typed(kind: type[Record], **values: Any) -> Record:
    """One of our records out of values from a file. Raises msgspec.ValidationError."""
    return msgspec.convert(values, type=kind)


def _joined(parts: list[I64]) -> I64:
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def _columns(rows: NDArray[Any]) -> dict[str, I64]:
    return {name: rows[name].astype(np.int64) for name in rows.dtype.fields or ()}


def _keys(columns: dict[str, I64]) -> NDArray[Any]:
    return keys(columns["serial"], columns["epoch"], columns["idx"])


def _spans(records: bytearray, layout: np.dtype[Any]) -> BatchSpans:
    rows = np.frombuffer(records, layout)
    columns = _columns(rows[np.argsort(rows["end_ns"], kind="stable")])
    columns.setdefault("wait_ns", columns["start_ns"])
    columns.setdefault("thread", np.full(rows.size, ABSENT, dtype=np.int64))
    return BatchSpans(**columns)


def _run_wait_share(value: dict[str, Any]) -> float | None:
    """Between the first and the last time that the process described itself."""
    first, last_ns = value.get("run_wait"), value.get("run_wait_ns")
    if first is None or last_ns is None or value["described_ns"] <= first[0]:
        return None
    return float((last_ns - first[1]) / (value["described_ns"] - first[0]))


def _counted(kind: type[Record], value: dict[str, Any], name: str) -> Record | None:
    """Counters between the first and the last time that the process described itself."""
    first, last = value.get(f"first_{name}"), value.get(name)
    if first is None or last is None or last[0] <= first[0]:
        return None
    counts = (b - a for a, b in zip(first, last, strict=True))
    return _typed(kind, **dict(zip((x.name for x in fields(kind)), counts, strict=True)))


def _grown(value: dict[str, Any]) -> tuple[tuple[str, int, int], ...]:
    """Of the dataset's containers those that became longer, most first."""
    first, last = value.get("first_held") or {}, value.get("held") or {}
    grown = ((str(name), int(first.get(name, 0)), int(n)) for name, n in last.items())
    return tuple(sorted((x for x in grown if x[2] > x[1]), key=lambda x: x[1] - x[2]))


def _heap_freed(value: dict[str, Any]) -> int | None:
    """What the last description says more than the first."""
    first, last = value.get("first_heap_free"), value.get("heap_free")
    return None if first is None or last is None else int(last) - int(first)


def _process(value: dict[str, Any]) -> ProcessRecord:
    unsaid = dict.fromkeys(("ready_ns", "exit_ns", "cores", "torch_threads", "native_threads"))
    known = {
        **unsaid,
        **value,
        "run_wait_share": _run_wait_share(value),
        "reads": _counted(ReadCount, value, "reads"),
        "collected": _counted(CollectedCount, value, "collected"),
        "grown": _grown(value),
        "heap_freed_bytes": _heap_freed(value),
    }
    return _typed(ProcessRecord, **{"worker": MAIN_PROCESS, "serial": 0, **known})
