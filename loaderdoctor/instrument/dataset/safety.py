"""What would break a user's run if its loader were opened again, or with other workers.

Runs in the measuring process, before any trial. Nothing here draws a sample, copies a dataset or
calls the user's `__iter__`: objects are looked at, code is read, pickling goes to nowhere.
"""

from __future__ import annotations

import io
import pickle
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO, IOBase, StringIO
from multiprocessing import context as mp_context
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from loaderdoctor.instrument.batches.batch_tree import UnsupportedBatch, tensors
from loaderdoctor.instrument.dataset.iteration import one_pass_reason, shards_itself
from loaderdoctor.instrument.wire.records import SafetyRecord, TensorRecord

# Modules whose objects are handles on open files: a forked worker shares the file's position or
# the library's state with its parent and siblings.
_HANDLE_MODULES = frozenset(
    {"h5py", "lmdb", "sqlite3", "zipfile", "tarfile", "tables", "netCDF4", "rasterio", "mmap",
     "_sqlite3", "pyarrow", "cv2"}
)  # fmt: skip
_HANDLE_CLASSES = frozenset(
    {"File", "Group", "Dataset", "Environment", "Transaction", "Connection", "Cursor", "ZipFile",
     "TarFile", "DatasetReader", "mmap", "NativeFile", "OSFile", "MemoryMappedFile",
     "VideoCapture"}
)  # fmt: skip


def safety(loader: DataLoader[Any]) -> SafetyRecord:
    """Everything checked about one loader, in about two seconds at most."""
    parts = pickled_parts(loader)
    reason = one_pass_reason(loader)
    unsharded: bool | None = False
    if isinstance(loader.dataset, IterableDataset):
        unsharded = not shards_itself(loader)
    return SafetyRecord(
        pickles=parts.pickles,
        pickle_error=parts.error,
        cuda_tensors=parts.cuda_tensors,
        unsharded_iterable=unsharded,
        open_handles=open_handles(loader.dataset),
        one_pass=reason is not None,
        one_pass_reason=reason,
        pickled_bytes=parts.n_bytes,
        shared_bytes=parts.shared_bytes,
    )


def pickled_parts(loader: DataLoader[Any]) -> TrialPickle:
    """Whether what a spawned worker needs can be pickled, and how large that is."""
    return trial_pickle((loader.dataset, loader.collate_fn, loader.worker_init_fn))


def open_handles(dataset: object) -> tuple[str, ...]:
    """Attributes that hold open files, databases or archives: `images (h5py.File)`."""
    found: list[str] = []
    for name, value in _attributes(dataset):
        if _is_handle(value):
            kind = type(value)
            found.append(f"{name} ({kind.__module__.split('.')[0].lstrip('_')}.{kind.__name__})")
    return tuple(found)


def describe_batch(batch: object) -> tuple[TensorRecord, ...]:
    """The tensors of a batch as the loop receives it; empty for a batch that can't be walked."""
    try:
        found = tensors(batch)
    except UnsupportedBatch:
        return ()
    return tuple(
        TensorRecord(
            path=path,
            shape=tuple(tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
            n_bytes=tensor.numel() * tensor.element_size(),
            pinned=_pinned(tensor),
            device=str(tensor.device),
        )
        for path, tensor in found
    )


def _pinned(tensor: torch.Tensor) -> bool:
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        return False
    return torch.cuda.is_available() and tensor.is_pinned()


def _attributes(owner: object) -> Iterator[tuple[str, object]]:
    """Attributes of an object, and of what they hold: one level deeper, few of a long list."""
    for name, value in list(getattr(owner, "__dict__", {}).items()):
        yield name, value
        if isinstance(value, dict):
            yield from ((f"{name}[{key!r}]", item) for key, item in list(value.items())[:16])
        elif isinstance(value, (list, tuple)):
            yield from ((f"{name}[{i}]", item) for i, item in enumerate(value[:16]))
        elif type(value).__module__ != "builtins" and not isinstance(value, (type, torch.Tensor)):
            inner = getattr(value, "__dict__", {})
            if isinstance(inner, dict):
                yield from ((f"{name}.{key}", item) for key, item in list(inner.items())[:64])


def _is_handle(value: object) -> bool:
    if isinstance(value, IOBase):
        return not isinstance(value, (BytesIO, StringIO)) and not value.closed
    if isinstance(value, sqlite3.Connection):
        return True
    return any(
        kind.__module__.split(".")[0] in _HANDLE_MODULES and kind.__name__ in _HANDLE_CLASSES
        for kind in type(value).__mro__
    )


# Whether objects reach a spawned worker: pickled to nowhere, within a time and a size.
#
# Tensors and arrays are counted, not copied; so a dataset of many gigabytes costs nothing.

# A dataset that takes longer to pickle is started by no sane spawn; beyond, nothing is known.
LIMIT_S = 2.0
# Python objects pickle at some 100 MB/s; what tensors and arrays hold is not counted here.
LIMIT_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPickle:
    """What pickling would do. `pickles` None: not known, a limit was reached; `error` says so."""

    pickles: bool | None
    error: str | None
    shared_bytes: int  # CPU tensors, which spawn moves into /dev/shm, once for all workers
    n_bytes: int  # what each spawned worker would hold; up to the limit where that was reached
    cuda_tensors: bool


class _TooMuch(Exception):  # noqa: N818  # no error: the end of patience
    """A limit is reached."""


class _Sink(io.RawIOBase):
    """Counts what is written and forgets it."""

    def __init__(self, limit_s: float, limit_bytes: int) -> None:
        self.n_bytes = 0
        self._deadline = time.monotonic() + limit_s
        self._limit_bytes = limit_bytes

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self.n_bytes += size
        if self.n_bytes > self._limit_bytes or time.monotonic() > self._deadline:
            raise _TooMuch
        return size


class _CountingPickler(ForkingPickler):
    """What multiprocessing uses to start a process, but for the content of tensors and arrays."""

    def __init__(self, sink: _Sink) -> None:
        super().__init__(sink, pickle.HIGHEST_PROTOCOL)
        self.content_bytes = 0
        self.shared_bytes = 0
        self.cuda_tensors = False

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.Tensor):
            self.cuda_tensors = self.cuda_tensors or obj.device.type == "cuda"
            if obj.requires_grad and not obj.is_leaf:
                raise pickle.PicklingError("a tensor with a gradient history can't be pickled")
            if obj.device.type == "cpu" and not obj.is_shared():  # type: ignore[no-untyped-call]
                self.shared_bytes += obj.numel() * obj.element_size()
            return int, ()
        if isinstance(obj, np.ndarray) and obj.dtype != np.dtype(object):
            self.content_bytes += obj.nbytes
            return int, ()
        return NotImplemented


class _NoProcess:
    """Stands in for the process being started: locks and pipes pickle only then."""

    def duplicate_for_child(self, fd: int) -> int:
        return fd

    def DupFd(self, fd: int) -> int:  # noqa: N802  # multiprocessing's name
        return fd


def trial_pickle(
    objects: Any, *, limit_s: float = LIMIT_S, limit_bytes: int = LIMIT_BYTES
) -> TrialPickle:
    """Pickle to nowhere, as `Process.start` under spawn would."""
    sink = _Sink(limit_s, limit_bytes)
    pickler = _CountingPickler(sink)
    pickles: bool | None = True
    error: str | None = None
    try:
        with _as_if_spawning():
            pickler.dump(objects)
    except _TooMuch:
        pickles = None
        error = f"not known: stopped after {limit_s:g} s or {limit_bytes // 2**20} MiB of objects"
    except Exception as failure:  # the user's own __reduce__ or __getstate__ may raise anything
        pickles = False
        error = f"{type(failure).__name__}: {failure}"
    return TrialPickle(
        pickles=pickles,
        error=error,
        shared_bytes=pickler.shared_bytes,
        n_bytes=sink.n_bytes + pickler.content_bytes,
        cuda_tensors=pickler.cuda_tensors,
    )


@contextmanager
def _as_if_spawning() -> Iterator[None]:
    before = mp_context.get_spawning_popen()
    mp_context.set_spawning_popen(_NoProcess())  # type: ignore[arg-type]  # all that is asked of it
    try:
        yield
    finally:
        mp_context.set_spawning_popen(before)
