"""Collects decoded events as columns, batch by batch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaderdoctor.trace.columns import ABSENT, DEVICE_CATEGORIES, Category, Spans, Thread
from loaderdoctor.trace.wire import HOST_CATEGORIES, Event, category_of, printable

# Annotations of torch.profiler that the TensorBoard plugin's dialect (and torch < 1.12) files
# under cpu_op, since the plugin knows no other place for them.
_ANNOTATIONS = ("enumerate(DataLoader)", "ProfilerStep#", "Optimizer.")
# Events to look at one by one: metadata, begin, end, and what has no kind.
_COUNTED = frozenset(["M", "B", "E", ""])
# No clock counts so far (285 years); sums of two times stay far from the ends of int64.
_MAX_US = 4e15


class Rows:
    """Complete events so far, one numpy array per field and batch; names and threads interned."""

    def __init__(self) -> None:
        self.n_rows = 0
        self.n_dropped = 0  # malformed: no kind, no usable time, negative duration
        self.n_unpaired = 0  # begin and end events (ph B, E): torch.profiler writes none
        self._names = _Ids()
        self._categories = _Ids()
        self._threads = _Ids()
        self._parts: dict[str, list[NDArray[Any]]] = {field: [] for field in _FIELDS}
        self._process_names: dict[str, str] = {}
        self._thread_names: dict[tuple[str, str], str] = {}

    def add(self, events: list[Event]) -> None:
        """Take over one batch, in file order."""
        for event in [e for e in events if e.ph in _COUNTED]:
            self._count(event)
        events = [e for e in events if e.ph == "X"]
        self.n_rows += len(events)
        ts = np.array([e.ts for e in events], dtype=np.float64)
        dur = np.array([e.dur for e in events], dtype=np.float64)
        usable = (np.abs(ts) <= _MAX_US) & (dur >= 0) & (dur <= _MAX_US)
        if not usable.all():
            self.n_dropped += int(usable.size - usable.sum())
            events = [e for e, keep in zip(events, usable.tolist(), strict=True) if keep]
            ts, dur = ts[usable], dur[usable]
        args = [e.args for e in events]
        names, categories, threads = self._names, self._categories, self._threads
        cats = [categories[e.cat] for e in events]
        self._put("start_ns", np.rint(ts * 1000), np.int64)
        self._put("length_ns", np.rint(dur * 1000), np.int64)
        self._put("category", cats, np.int32)
        self._put("name", [names[e.name] for e in events], np.int32)
        self._put("thread", [threads[e.pid, e.tid] for e in events], np.int32)
        self._put("correlation", [a.correlation for a in args], np.int64)
        self._put("external_id", [a.external_id for a in args], np.int64)
        # Most rows are of the host and have none of these.
        on_host = np.array([category_of(c) in HOST_CATEGORIES for c in categories], dtype=np.bool_)
        rows = np.flatnonzero(~on_host[cats]) if cats else np.empty(0, dtype=np.intp)
        args = [args[row] for row in rows.tolist()]
        self._put_at(rows, len(cats), "device", [a.device for a in args], np.int32)
        self._put_at(rows, len(cats), "stream", [a.stream for a in args], np.int32)
        self._put_at(rows, len(cats), "bytes", [a.bytes for a in args], np.int64)

    def spans(self) -> tuple[Spans, float]:
        """All rows sorted by start, and the origin: the file's `ts` at nanosecond 0."""
        start = self._take("start_ns", np.int64)
        origin_ns = int(start.min()) if start.size else 0
        start -= origin_ns
        order = np.argsort(start, kind="stable")
        start = start[order]
        name = self._take("name", np.int32)[order]
        thread = self._take("thread", np.int32)[order]
        category = self._category(self._take("category", np.int32)[order], name)
        device = self._take("device", np.int32)[order]
        stream = self._take("stream", np.int32)[order]
        # A device row's track is its device and stream; XPU kernels and annotations on a stream
        # name them nowhere else.
        on_device = np.isin(category, (*DEVICE_CATEGORIES, Category.GPU_ANNOTATION))
        for column, place in ((device, 0), (stream, 1)):
            missing = on_device & (column == ABSENT)
            if missing.any():
                track = [_fitted(_number(key[place]), np.int32) for key in self._threads]
                column[missing] = np.array(track, dtype=np.int32)[thread[missing]]
        spans = Spans(
            start_ns=start,
            end_ns=start + self._take("length_ns", np.int64)[order],
            category=category,
            name=name,
            thread=thread,
            correlation=self._take("correlation", np.int64)[order],
            external_id=self._take("external_id", np.int64)[order],
            device=device,
            stream=stream,
            bytes=self._take("bytes", np.int64)[order],
        )
        return spans, origin_ns / 1000

    def names(self) -> tuple[str, ...]:
        """Event names by index; what can't be printed (half a surrogate pair) is replaced."""
        return tuple(printable(name) for name in self._names)

    def threads(self) -> tuple[Thread, ...]:
        """Threads by index, named by the file's metadata."""
        found = []
        for pid, tid in self._threads:
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

    def _count(self, event: Event) -> None:
        if event.ph == "M":
            name = printable(event.args.name).strip()
            if name and event.name == "process_name":
                self._process_names[str(event.pid)] = name
            elif name and event.name == "thread_name":
                self._thread_names[str(event.pid), str(event.tid)] = name
        elif event.ph:
            self.n_unpaired += 1
        else:
            self.n_dropped += 1

    def _category(self, raw: NDArray[np.int32], name: NDArray[np.int32]) -> NDArray[np.int8]:
        known = np.array([category_of(cat) for cat in self._categories], dtype=np.int8)
        category = known[raw] if known.size else np.empty(0, dtype=np.int8)
        annotations = np.array([n.startswith(_ANNOTATIONS) for n in self._names], dtype=np.bool_)
        if annotations.any():
            misfiled = annotations[name] & (category == Category.CPU_OP)
            category[misfiled] = Category.USER_ANNOTATION
        return category

    def _put(self, field: str, values: Any, dtype: type[np.generic]) -> None:
        self._parts[field].append(_column(values, dtype))

    def _put_at(
        self, rows: NDArray[np.intp], n_rows: int, field: str, values: Any, dtype: type[np.generic]
    ) -> None:
        part = np.full(n_rows, ABSENT, dtype=dtype)
        part[rows] = _column(values, dtype)
        self._parts[field].append(part)

    def _take(self, field: str, dtype: type[np.generic]) -> NDArray[Any]:
        """One whole column; its parts are freed."""
        parts = self._parts.pop(field)
        return np.concatenate(parts) if parts else np.empty(0, dtype=dtype)


_FIELDS = (
    "start_ns",
    "length_ns",
    "category",
    "name",
    "thread",
    "correlation",
    "external_id",
    "device",
    "stream",
    "bytes",
)


class _Ids(dict[Any, int]):
    """Numbers things in the order first seen."""

    def __missing__(self, key: Any) -> int:
        number = self[key] = len(self)
        return number


def _column(values: Any, dtype: type[np.generic]) -> NDArray[Any]:
    try:
        return np.array(values, dtype=dtype)
    except (OverflowError, ValueError):  # over-large, or text that is no number
        return np.array([_fitted(_number(v), dtype) for v in values], dtype=dtype)


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
