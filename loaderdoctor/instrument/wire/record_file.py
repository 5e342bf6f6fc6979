"""The file a watched process appends what it recorded to: binary, buffered, safe to lose the tail.

One file for each process. After the magic, records follow each other: one byte of kind, four of
payload length, the payload. A process that is killed leaves at most one incomplete record, which
the reader ignores. Whole records are appended by one `write`, so a reader may read at any time.

A worker of a run recorded to its end keeps sums instead (`WorkerSums`), in a small file that never
grows: it maps the file and overwrites it in place; the training process reads all of them every
few seconds and removes those of workers that have ended.

Imports nothing but the standard library: it is loaded in every worker. All times are
CLOCK_MONOTONIC nanoseconds (`time.perf_counter_ns`), the clock that processes share.
"""

from __future__ import annotations

import json
import operator
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from struct import Struct
from typing import Any, Final, NamedTuple

from loaderdoctor.errors import RunError

MAGIC: Final = b"LDREC\x01"
SUFFIX: Final = ".rec"
HEADER: Final = Struct("<BI")  # kind, payload length

# Writing gives up the interpreter, and to get it back takes up to 5 ms where the other thread of a
# worker computes: written every 20 ms, sending a batch of 7 ms took 0.35 ms longer on average.
# So records wait for others; the line sampler writes out what a worker that went idle left behind.
FLUSH_AFTER_NS: Final = 200_000_000
FLUSH_AFTER_RECORDS: Final = 256
CLOSE_WITHIN_S: Final = 1.0  # a signal's handler may close what its own thread is writing
SUMS_SUFFIX: Final = ".sums"
SUMS_MAGIC: Final = 0x31534D55
SUMS: Final = Struct("<IIiIqqqqq")


class Kind(IntEnum):
    """What a record holds. Numbers are written to files: never reuse one."""

    PROCESS = 1  # JSON: who writes; later ones add to earlier ones
    ITERATOR = 2  # JSON: a DataLoader iterator was created
    BATCH = 3  # BATCH, then stamps and indices as int64
    SEND = 4
    DRAW = 5
    DELIVERY = 7
    PIN = 8
    LINES = 9  # JSON: hot lines since the last such record
    TRANSFORMS = 10  # JSON: transform times since the last such record


# serial (of the iterator within the training process), epoch (of that iterator), idx (torch's
# batch number within the epoch), worker (-1: the training process), outcome, n_samples;
# wait_ns (began to wait for an index), begin_ns, collate_ns (0: not reached), end_ns;
# thread_cpu_ns and process_cpu_ns spent from begin to end; n_stamps, n_indices.
BATCH: Final = Struct("<IIqiIIqqqqqqII")
# serial, epoch, idx; put_ns (handed to the queue), start_ns (pickled, into the pipe), end_ns,
# n_bytes, native thread id of the feeder
SEND: Final = Struct("<IIqqqqqq")
DRAW: Final = Struct("<IIqqq")  # serial, epoch, idx; start_ns, end_ns of next(sampler)
DELIVERY: Final = Struct("<IIqqqq")  # serial, epoch, idx; start_ns, end_ns; native thread id
PIN: Final = Struct("<IIqqqqq")  # serial, epoch, idx; wait_ns, start_ns, end_ns; native thread id


class Outcome(IntEnum):
    """How the making of a batch ended."""

    OK = 0
    EXHAUSTED = 1  # an IterableDataset had no more
    ERROR = 2


def assert_shared_clock() -> None:
    """Raises RunError where `perf_counter_ns` is not the system-wide monotonic clock."""
    clock = time.get_clock_info("perf_counter").implementation
    if sys.platform == "linux" and clock != "clock_gettime(CLOCK_MONOTONIC)":
        raise RunError(
            f"time.perf_counter is {clock}, not CLOCK_MONOTONIC: times of workers could not be "
            "compared with the training process. Use a standard CPython."
        )


def _number(value: Any) -> int | None:
    """NumPy's and torch's as Python's own: a loader's arguments may be any; None of all else."""
    try:
        return operator.index(value)
    except TypeError:
        return None


class RecordWriter:
    """Appends records to this process's own file. Threads of the process may share it.

    Never raises into the user's code: once the disk is full, or the file has `limit_bytes`, it
    drops what comes.
    """

    __slots__ = ("_fd", "_last_flush_ns", "_left", "_lock", "_pending", "path", "pid")

    def __init__(self, records_dir: Path, role: str, limit_bytes: int | None = None) -> None:
        self.pid = os.getpid()
        self._left = limit_bytes
        self.path = records_dir / f"{role}-{self.pid}-{time.perf_counter_ns()}{SUFFIX}"
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND
        self._fd = os.open(self.path, flags, 0o600)
        self._pending: list[bytes] = [MAGIC]
        self._lock = threading.Lock()
        self._last_flush_ns = 0
        self.flush()

    @property
    def full(self) -> bool:
        """Whether nothing more is written."""
        return self._fd < 0

    def add(self, kind: Kind, payload: bytes) -> None:
        """Queues one record; it reaches the file with a later `flush` or `flush_if_due`."""
        self._pending.append(HEADER.pack(kind, len(payload)) + payload)

    def add_json(self, kind: Kind, value: Any) -> None:
        text = json.dumps(value, separators=(",", ":"), default=_number)
        self.add(kind, text.encode())

    def flush_if_due(self, now_ns: int) -> None:
        """Writes when enough has gathered or enough time has passed."""
        if (
            now_ns - self._last_flush_ns > FLUSH_AFTER_NS
            or len(self._pending) > FLUSH_AFTER_RECORDS
        ):
            self.flush()

    def flush(self) -> None:
        """Writes what is queued. Returns at once where another thread is at it."""
        if not self._pending or not self._lock.acquire(blocking=False):
            return
        try:
            n = len(self._pending)
            chunk = b"".join(self._pending[:n])
            del self._pending[:n]
            self._last_flush_ns = time.perf_counter_ns()
            if self._fd >= 0:
                self._write(chunk)
        finally:
            self._lock.release()

    def close(self) -> None:
        """Writes what is queued and closes the file; later records are dropped."""
        self.flush()
        # Another thread that is at it would go on in whatever file gets the number next.
        waited = self._lock.acquire(timeout=CLOSE_WITHIN_S)
        try:
            self._close_file()
        finally:
            if waited:
                self._lock.release()

    def abandon(self) -> None:
        """In a forked child: forgets the parent's file and its queued records."""
        self._pending = []
        self._close_file()

    def _close_file(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _write(self, chunk: bytes) -> None:
        view = memoryview(chunk)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
            if self._left is None:
                return
            self._left -= len(chunk)
            if self._left > 0:
                return
        except OSError:
            pass
        self._close_file()


class WorkerSums(NamedTuple):
    """One worker so far. `ended`: it has said that it ends."""

    magic: int
    pid: int
    worker: int
    ended: int
    started_ns: int
    n_batches: int
    make_ns: int
    cpu_ns: int
    idle_ns: int

    def since(self, before: WorkerSums | None) -> WorkerSums:
        """Its counts without those of an earlier look at it."""
        if before is None:
            return self
        return self._replace(
            n_batches=self.n_batches - before.n_batches,
            make_ns=self.make_ns - before.make_ns,
            cpu_ns=self.cpu_ns - before.cpu_ns,
            idle_ns=self.idle_ns - before.idle_ns,
        )


def read_sums(folder: Path) -> Iterator[tuple[Path, WorkerSums]]:
    """Every worker that has a file in `folder`; files that are no such are passed over."""
    try:
        with os.scandir(folder) as found:
            paths = [Path(entry.path) for entry in found if entry.name.endswith(SUMS_SUFFIX)]
    except OSError:
        return
    for path in paths:
        with suppress(OSError):
            content = path.read_bytes()
            if len(content) == SUMS.size:
                sums = WorkerSums(*SUMS.unpack(content))
                if sums.magic == SUMS_MAGIC:
                    yield path, sums
