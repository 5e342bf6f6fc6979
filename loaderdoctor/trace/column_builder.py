"""Collects decoded events as columns, batch by batch.

What is done here is done for each of millions of events: a pass over a batch's events costs 20 to
30 ns an event, `struct` makes an array of Python numbers in a third of the time of `np.array`.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaderdoctor.trace.columns import (
    ABSENT,
    DEVICE_CATEGORIES,
    Category,
    KernelShapes,
    MemoryPeak,
    Spans,
    Thread,
)
from loaderdoctor.trace.events import (
    KINDS,
    Buffer,
    Complete,
    Event,
    Instant,
    Malformed,
    Memory,
    Metadata,
    Names,
    Threads,
    Unused,
    decode_leniently,
    printable,
)
from loaderdoctor.trace.source import BYTES_PER_NAME

# Annotations of torch.profiler that the TensorBoard plugin's dialect (and torch < 1.12) files
# under cpu_op, since the plugin knows no other place for them.
_ANNOTATIONS = ("enumerate(DataLoader)", "ProfilerStep#", "Optimizer.")
# Of these there are millions; others are looked at one by one.
_PASSED_BY = frozenset([Complete, *(kind for kind in KINDS.values() if issubclass(kind, Unused))])
_BEGIN = KINDS["B"]
MEMORY_EVENT = "[memory]"
# A petabyte; no memory is as large, and sums stay exact in floats.
MAX_BYTES = 1 << 50
MAX_DEVICES = 1024  # of one machine
# No clock counts so far (285 years); sums of two times stay far from the ends of int64.
_MAX_US = 4e15
_A_DAY_NS = 24 * 3600 * 10**9


def _all_but(*categories: Category) -> NDArray[np.bool_]:
    """One boolean per category."""
    others = np.ones(len(Category), np.bool_)
    others[list(categories)] = False
    return others


# Most rows are ops and Python frames, which have no correlation id; those of the host have no
# device, stream or bytes.
_CORRELATED = _all_but(Category.CPU_OP, Category.PYTHON)
_ON_DEVICE = _all_but(
    Category.CPU_OP, Category.PYTHON, Category.USER_ANNOTATION, Category.RUNTIME, Category.WORKER
)


_ON_A_STREAM = ~_all_but(*DEVICE_CATEGORIES, Category.GPU_ANNOTATION)


class ColumnBuilder:
    """Complete events so far, one numpy array per field and batch; names and threads interned."""

    def __init__(self) -> None:
        self.n_rows = 0
        self.n_events = 0  # of every kind
        self.is_strict = True  # no batch needed the lenient decoder
        self.n_dropped = 0  # malformed: no kind, thread or usable time, negative duration
        self.n_begun = 0  # spans written as two events, in batches that hold no other
        self.n_memory_events = 0
        self.n_later = 0  # rows that begin at or after `until_ns`, left out
        self.until_ns: int | None = None  # by the file's clock; None: everything is kept
        self._names = Names()
        self._threads = Threads()
        self._parts: dict[str, list[NDArray[Any]]] = {field: [] for field in _FIELDS}
        self._process_names: dict[str, str] = {}
        self._named_bytes = 0  # of the two dicts
        self._thread_names: dict[tuple[str, str], str] = {}
        self._memory: dict[int, tuple[int, int]] = {}  # device -> allocated, reserved

    def add(self, events: list[Event]) -> None:
        """Take over one batch, in file order."""
        self.n_events += len(events)
        rows = [e for e in events if type(e) is Complete]
        if not _PASSED_BY.issuperset(map(type, events)):
            for event in events:
                if type(event) not in _PASSED_BY:
                    self._count(event)
        if not rows:
            self.n_begun += sum(type(e) is _BEGIN for e in events)
        ts = _column([e.ts for e in rows], np.float64)
        dur = _column([e.dur for e in rows], np.float64)
        usable = (np.abs(ts) <= _MAX_US) & (dur >= 0) & (dur <= _MAX_US)
        if not usable.all():
            self.n_dropped += int(usable.size - usable.sum())
            rows = [e for e, keep in zip(rows, usable.tolist(), strict=True) if keep]
            ts, dur = ts[usable], dur[usable]
        if self.until_ns is not None:
            early = ts * 1000 < self.until_ns
            self.n_later += int(early.size - early.sum())
            rows = [e for e, keep in zip(rows, early.tolist(), strict=True) if keep]
            ts, dur = ts[early], dur[early]
        names = self._names
        category = np.frombuffer(bytes([e.cat.code for e in rows]), np.int8)
        self.n_rows += len(rows)
        self._put("start_ns", np.rint(ts * 1000).astype(np.int64))
        self._put("length_ns", np.rint(dur * 1000).astype(np.int64))
        self._put("category", category)
        self._put("name", _column([names[e.name] for e in rows], np.int32))
        self._put("thread", _column(self._threads.of(rows), np.int32))
        args = [e.args for e in rows]
        self._put("external_id", _column([a.external_id for a in args], np.int64))
        at = np.flatnonzero(_CORRELATED[category])
        some = [args[row] for row in at.tolist()]
        self._put_at(at, len(rows), "correlation", _column([a.correlation for a in some], np.int64))
        at = np.flatnonzero(_ON_DEVICE[category])
        some = [args[row] for row in at.tolist()]
        self._put_at(at, len(rows), "device", _column([a.device for a in some], np.int32))
        self._put_at(at, len(rows), "stream", _column([a.stream for a in some], np.int32))
        self._put_at(at, len(rows), "bytes", _sizes([a.bytes for a in some]))
        if (kernel := category[at] == Category.KERNEL).any():
            args = [a for a, is_kernel in zip(some, kernel.tolist(), strict=True) if is_kernel]
            self._put("blocks_per_sm", _column([a.blocks_per_sm for a in args], np.float64))
            occupancy = [a.occupancy_percent for a in args]
            self._put("occupancy_percent", _column(occupancy, np.float64))

    @property
    def n_threads(self) -> int:
        """Distinct threads so far."""
        return len(self._threads.keys)

    @property
    def other_bytes(self) -> int:
        """About what names and threads take, and will take until the end."""
        n_named = len(self._process_names) + len(self._thread_names) + self.n_threads
        return self._names.n_bytes + self._named_bytes + n_named * BYTES_PER_NAME

    def decode_leniently(self, text: Buffer) -> list[Event]:
        """What `add` is given where the strict decoder refuses a batch."""
        self.is_strict = False
        return decode_leniently(text)

    def keep_earliest(self, n_rows: int) -> bool:
        """Keep no more rows than this, those that begin first, and of what comes only such.

        A row that begins within what is kept in the end was within what was kept before: none of
        them is missing, in whatever order the file has them. False, and nothing changed, where
        more rows begin at the very start.
        """
        self.pack()
        start = self._parts["start_ns"][0]
        if start.size <= n_rows:
            return True
        until = int(np.partition(start, n_rows)[n_rows])
        early = start < until
        if not early.any():
            return False
        self.until_ns = until
        self.n_later += self._keep(early)
        return True

    def _keep(self, rows: NDArray[np.bool_]) -> int:
        """Keep these of the packed rows. Returns how many others there were."""
        of_kernels = rows[self._parts["category"][0] == Category.KERNEL]
        for field in _FIELDS:
            kept = of_kernels if field in _OF_KERNELS else rows
            self._parts[field] = [self._parts[field][0][kept]]
        self.n_rows = int(rows.sum())
        return int(rows.size) - self.n_rows

    def _drop_of_another_time(self) -> None:
        """A trace is of minutes: what begins days from most of it has a time that can't be."""
        self.pack()
        start = self._parts["start_ns"][0]
        if start.size and int(start.max()) - int(start.min()) > _A_DAY_NS:
            near = np.abs(start - np.int64(np.median(start))) <= _A_DAY_NS
            self.n_dropped += self._keep(near | (self._parts["category"][0] == Category.OTHER))

    def pack(self) -> None:
        """Join what batches left, to be sent to another process."""
        for field, dtype in _FIELDS.items():
            self._parts[field] = [self._whole(field, dtype)]

    def append(self, later: ColumnBuilder) -> None:
        """Take over the rows of the text that follows: as if its batches had been added here."""
        self.n_rows += later.n_rows
        self.n_events += later.n_events
        self.is_strict &= later.is_strict
        self.n_dropped += later.n_dropped
        self.n_begun += later.n_begun
        self.n_memory_events += later.n_memory_events
        self._named_bytes += later._named_bytes
        self._process_names.update(later._process_names)
        self._thread_names.update(later._thread_names)
        for device, (allocated, reserved) in later._memory.items():
            self._raise_peak(device, allocated, reserved)
        renumbered = {
            "name": [self._names[name] for name in later._names],
            "thread": [self._threads.number(pid, tid) for pid, tid in later._threads.keys],
        }
        for field, parts in later._parts.items():
            if field in renumbered:
                numbers = np.array(renumbered[field], dtype=np.int32)
                parts = [numbers[part] for part in parts]
            self._parts[field] += parts

    def columns(self) -> tuple[Spans, KernelShapes | None, float]:
        """All rows sorted by start, and the origin: the file's `ts` at nanosecond 0."""
        self._drop_of_another_time()
        start = self._take("start_ns")
        origin_ns = int(start.min()) if start.size else 0
        start -= origin_ns
        order = np.argsort(start, kind="stable")
        start = start[order]
        name = self._take("name")[order]
        if MEMORY_EVENT in self._names:  # spans of no length, as torch's writer in Python has them
            self.n_memory_events += int((name == self._names[MEMORY_EVENT]).sum())
        thread = self._take("thread")[order]
        category = self._take("category")
        shapes = self._kernel_shapes(category == Category.KERNEL, order)
        category = self._category(category[order], name)
        device = self._take("device")[order]
        stream = self._take("stream")[order]
        # A device row's track is its device and stream; XPU kernels and annotations on a stream
        # name them nowhere else.
        on_device = _ON_A_STREAM[category]
        for column, place in ((device, 0), (stream, 1)):
            missing = on_device & (column == ABSENT)
            if missing.any():
                track = [_fitted(_number(key[place]), np.int32) for key in self._threads.keys]
                column[missing] = np.array(track, dtype=np.int32)[thread[missing]]
        spans = Spans(
            start_ns=start,
            end_ns=start + self._take("length_ns")[order],
            category=category,
            name=name,
            thread=thread,
            correlation=self._take("correlation")[order],
            external_id=self._take("external_id")[order],
            device=device,
            stream=stream,
            bytes=self._take("bytes")[order],
        )
        return spans, shapes, origin_ns / 1000

    def _kernel_shapes(
        self, kernel: NDArray[np.bool_], order: NDArray[np.intp]
    ) -> KernelShapes | None:
        """What kernels say of their launch, in the order of their sorted rows."""
        blocks, occupancy = self._take("blocks_per_sm"), self._take("occupancy_percent")
        if np.isnan(blocks).all() and np.isnan(occupancy).all():
            return None
        number = np.cumsum(kernel) - 1  # of each kernel, in the order of the file
        sorted_kernels = number[order[kernel[order]]]
        return KernelShapes(
            blocks_per_sm=blocks[sorted_kernels], occupancy_percent=occupancy[sorted_kernels]
        )

    def names(self) -> tuple[str, ...]:
        """Event names by index; what can't be printed (half a surrogate pair) is replaced."""
        return tuple(printable(name) for name in self._names)

    def threads(self) -> tuple[Thread, ...]:
        """Threads by index, named by the file's metadata."""
        found = []
        for pid, tid in self._threads.keys:
            key = str(pid), str(tid)
            found.append(
                Thread(
                    pid=printable(key[0]),
                    tid=printable(key[1]),
                    process_name=self._process_names.get(key[0]),
                    name=self._thread_names.get(key),
                )
            )
        return tuple(found)

    def memory_peaks(self) -> tuple[MemoryPeak, ...]:
        """The highest totals of each accelerator's allocator, by device."""
        return tuple(
            MemoryPeak(device=device, allocated_bytes=allocated, reserved_bytes=reserved)
            for device, (allocated, reserved) in sorted(self._memory.items())
        )

    def _raise_peak(self, device: int, allocated: int, reserved: int) -> None:
        if 0 <= device < MAX_DEVICES and max(allocated, reserved) < MAX_BYTES:
            before = self._memory.get(device, (0, 0))
            self._memory[device] = (max(before[0], allocated), max(before[1], reserved))

    def _count(self, event: Event) -> None:
        if isinstance(event, Instant):
            if event.name == MEMORY_EVENT:
                totals: Memory = event.args
                self.n_memory_events += 1
                if totals.device_type != 0:
                    self._raise_peak(totals.device, totals.allocated, totals.reserved)
        elif isinstance(event, Metadata):
            name = printable(event.args.name).strip()
            self._named_bytes += len(name)
            if name and event.name == "process_name":
                self._process_names[str(event.pid)] = name
            elif name and event.name == "thread_name":
                self._thread_names[str(event.pid), str(event.tid)] = name
        elif isinstance(event, Malformed):
            self.n_dropped += 1

    def _category(self, category: NDArray[np.int8], name: NDArray[np.int32]) -> NDArray[np.int8]:
        annotations = np.array([n.startswith(_ANNOTATIONS) for n in self._names], dtype=np.bool_)
        if annotations.any():
            misfiled = annotations[name] & (category == Category.CPU_OP)
            category[misfiled] = Category.USER_ANNOTATION
        return category

    def _put(self, field: str, values: NDArray[Any]) -> None:
        self._parts[field].append(values)

    def _put_at(
        self,
        rows: NDArray[np.intp],
        n_rows: int,
        field: str,
        values: NDArray[Any],
    ) -> None:
        part = np.full(n_rows, ABSENT, dtype=values.dtype)
        part[rows] = values
        self._parts[field].append(part)

    def _whole(self, field: str, dtype: type[np.generic]) -> NDArray[Any]:
        parts = self._parts[field]
        return np.concatenate(parts) if parts else np.empty(0, dtype=dtype)

    def _take(self, field: str) -> NDArray[Any]:
        """One whole column; its parts are freed."""
        column = self._whole(field, _FIELDS[field])
        del self._parts[field]
        return column


_OF_KERNELS = ("blocks_per_sm", "occupancy_percent")
_FIELDS: dict[str, type[np.generic]] = {
    "start_ns": np.int64,
    "length_ns": np.int64,
    "category": np.int8,
    "name": np.int32,
    "thread": np.int32,
    "correlation": np.int64,
    "external_id": np.int64,
    "device": np.int32,
    "stream": np.int32,
    "bytes": np.int64,
    "blocks_per_sm": np.float64,
    "occupancy_percent": np.float64,
}


_PACKED = {np.int32: "i", np.int64: "q", np.float64: "d"}


def _column(values: list[Any], dtype: type[np.generic]) -> NDArray[Any]:
    try:
        layout = struct.Struct(f"={len(values)}{_PACKED[dtype]}")
        return np.frombuffer(layout.pack(*values), dtype)
    except struct.error:  # over-large, or text that is no number
        return np.array([_fitted(_number(v), dtype) for v in values], dtype=dtype)


def _sizes(values: list[int]) -> NDArray[np.int64]:
    """Bytes; ABSENT where there can't be as many."""
    try:
        sizes = np.frombuffer(struct.pack(f"={len(values)}q", *values), np.int64)
    except struct.error:  # beyond 64 bits: a size is no id, and means nothing when wrapped around
        sizes = np.array([v if abs(v) < MAX_BYTES else ABSENT for v in values], np.int64)
    return np.where((sizes >= 0) & (sizes < MAX_BYTES), sizes, ABSENT)


def _number(value: int | str) -> int:
    try:
        return int(value)
    except ValueError:
        return ABSENT


def _fitted(value: int, dtype: type[np.generic]) -> int:
    """A number that overflows its column, wrapped around: equal ids stay equal, so joins hold."""
    n_bits = np.dtype(dtype).itemsize * 8
    value &= (1 << n_bits) - 1
    return value - (1 << n_bits) if value >> (n_bits - 1) else value
