"""The records of one run as columns and values: what `worker_records.read` returns.

Imports no torch. All times are CLOCK_MONOTONIC nanoseconds; -1 marks what was not recorded. A
batch has one name in every process: (serial of the iterator, its epoch, torch's batch number).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
Bool = NDArray[np.bool_]
Rows = TypeVar("Rows", bound="_Rows")

ABSENT = -1
MAIN_PROCESS = -1  # in `Batches.worker`: made in the training process (0 workers)

_KEY = np.dtype([("serial", np.int64), ("epoch", np.int64), ("idx", np.int64)])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """Columns of equal length, one row for each batch."""

    serial: I64
    epoch: I64
    idx: I64

    def __len__(self) -> int:
        return int(self.serial.shape[0])

    def where(self: Rows, mask: Bool | NDArray[np.intp]) -> Rows:
        return replace(self, **{x.name: getattr(self, x.name)[mask] for x in fields(self)})

    @property
    def key(self) -> NDArray[Any]:
        """(serial, epoch, idx) of each row, comparable and searchable."""
        return keys(self.serial, self.epoch, self.idx)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches(_Rows):
    """One row for each batch made or failed, ordered by `begin_ns`. Equal lengths."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """One row for each timed sample, by batch. Very short ones are timed in some batches only."""

    batch: I64  # row in Batches
    start_ns: I64
    duration_ns: I64
    index: I64  # what the sampler drew; -1 where it is not an integer


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSpans(_Rows):
    """Spans of one kind, one for each batch, in the order of their ends."""

    start_ns: I64
    end_ns: I64
    wait_ns: I64  # pin thread: began to wait; else equal to start_ns
    thread: I64  # native thread id; -1 where not recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class IteratorRecord:
    """A DataLoader iterator that the training process opened."""

    serial: int
    created_ns: int
    num_workers: int
    prefetch_factor: int | None
    in_order: bool
    pin_memory: bool
    dataset: int  # equal for loaders over the same dataset object
    # LoaderRecord.id; None: not one of the script's own (a trial's), or not recorded.
    loader: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadCount:
    """What a worker read while it made so many batches."""

    n_batches: int
    n_bytes: int  # by read calls, of files and whatever is read like one
    n_calls: int
    disk_bytes: int  # that came from a disk, and not from the page cache


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedCount:
    """What Python's garbage collector did in a worker while it made these batches."""

    n_batches: int
    n_full: int
    ns: int


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
    # Of its life, the main thread stood ready in a run queue with no CPU free (0…1, Linux).
    run_wait_share: float | None = None
    reads: ReadCount | None = None  # None: not told by the system, or no batch between two looks
    collected: CollectedCount | None = None  # None: not recorded, or no batch between two looks
    # Containers of the dataset that became longer: attribute path, entries at first and at last.
    grown: tuple[tuple[str, int, int], ...] = ()
    # By how much more malloc holds free than at first; None: not glibc's.
    heap_freed_bytes: int | None = None


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
    serial: int  # of the iterator that the batch was for


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformTime:
    """Time in one transform over the samples that were probed, within one stretch of time."""

    pid: int
    since_ns: int
    until_ns: int
    name: str
    total_ns: int
    n_samples: int
    serial: int  # of the iterator whose samples these were


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLog:
    """Everything the records of one run say."""

    batches: Batches
    samples: Samples
    sampler_draws: BatchSpans  # next(sampler), in the training process
    deliveries: BatchSpans  # the loop's fetch that returned the batch, seen from within __next__
    pins: BatchSpans  # made by the pin-memory thread, or within the fetch at 0 workers
    iterators: tuple[IteratorRecord, ...]
    processes: tuple[ProcessRecord, ...]
    lines: tuple[LineCount, ...]
    transforms: tuple[TransformTime, ...]
    n_truncated: int  # files that end within a record: a process was killed, or still writes


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
