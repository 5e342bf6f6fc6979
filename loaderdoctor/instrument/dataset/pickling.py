"""Whether objects reach a spawned worker: pickled to nowhere, within a time and a size.

Tensors and arrays are counted, not copied; so a dataset of many gigabytes costs nothing. Code of
the script's own that has a say in it runs, as it does when a worker is started: `__getstate__` may
close a file. Where the script starts no such worker, it is not called.
"""

from __future__ import annotations

import io
import pickle
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import context as mp_context
from multiprocessing.reduction import ForkingPickler
from types import FunctionType
from typing import Any

import numpy as np
import torch

from loaderdoctor.instrument.system import is_own

# A dataset that takes longer to pickle is started by no sane spawn; beyond, nothing is known.
LIMIT_S = 2.0


# Python objects pickle at some 100 MB/s; what tensors and arrays hold is not counted here.
LIMIT_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPickle:
    """What pickling would do. `pickles` None: not known, it was not ended; `error` says why."""

    pickles: bool | None
    error: str | None
    shared_bytes: int  # CPU tensors, which spawn moves into /dev/shm, once for all workers
    n_bytes: int  # what each spawned worker would hold; up to the limit where that was reached
    cuda_tensors: bool


class _TooMuch(Exception):  # noqa: N818  # no error: the end of patience
    """A limit is reached."""


class _OwnCode(Exception):  # noqa: N818  # nor is this one
    """The script's own code would be called."""


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

    def __init__(self, sink: _Sink, *, calls_own: bool = True) -> None:
        super().__init__(sink, pickle.HIGHEST_PROTOCOL)
        # Classes, by id, whose objects are pickled without the script's own code; None: any may be.
        self._foreign: set[int] | None = None if calls_own else set()
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
        if self._foreign is not None and id(type(obj)) not in self._foreign:
            if _pickles_itself(type(obj)):
                raise _OwnCode(type(obj).__name__)
            self._foreign.add(id(type(obj)))
        return NotImplemented


_HOOKS = ("__getstate__", "__reduce__", "__reduce_ex__", "__getnewargs__", "__getnewargs_ex__")


def _pickles_itself(kind: type) -> bool:
    """Whether code of the script's own says how its objects are pickled."""
    found = [vars(base).get(name) for base in kind.__mro__ for name in _HOOKS]
    return any(isinstance(x, FunctionType) and is_own(x.__code__.co_filename) for x in found)


class _NoProcess:
    """Stands in for the process being started: locks and pipes pickle only then."""

    def duplicate_for_child(self, fd: int) -> int:
        return fd

    def DupFd(self, fd: int) -> int:  # noqa: N802  # multiprocessing's name
        return fd


def trial_pickle(
    objects: Any,
    *,
    limit_s: float = LIMIT_S,
    limit_bytes: int = LIMIT_BYTES,
    calls_own: bool = True,
) -> TrialPickle:
    """Pickle to nowhere, as `Process.start` under spawn would."""
    sink = _Sink(limit_s, limit_bytes)
    pickler = _CountingPickler(sink, calls_own=calls_own)
    pickles: bool | None = True
    error: str | None = None
    try:
        with _as_if_spawning():
            pickler.dump(objects)
    except _TooMuch:
        pickles = None
        error = f"not known: stopped after {limit_s:g} s or {limit_bytes // 2**20} MiB of objects"
    except _OwnCode as refused:
        pickles = None
        error = f"not known: {refused} has code of its own for it, which was not called"
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
