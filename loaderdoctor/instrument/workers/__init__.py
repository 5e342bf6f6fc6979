"""What stands in for torch's worker loop; one that keeps sums, as long as a run lasts.

`worker.RecordedLoop` writes a record a batch, which a diagnosis needs for some seconds; sums, in
constant memory, are kept around it or, once there are enough records, in its place.
"""

from __future__ import annotations

import functools
import inspect
import mmap
import multiprocessing.queues
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

from torch.utils.data._utils import worker as torch_worker

from loaderdoctor.instrument.wire.record_file import SUMS, SUMS_MAGIC, SUMS_SUFFIX

# Written at most this often: CPU time is a system call, and nobody reads more often.
WRITE_NS: Final = 100_000_000


def install(folder: Path) -> None:
    """Keep sums of every worker started from now on. Raises OSError where there is no room."""
    folder.mkdir(parents=True, exist_ok=True)
    torch_worker._worker_loop = SummedLoop(torch_worker._worker_loop, str(folder))


def remove() -> None:
    """Workers started from now on keep nothing."""
    loop = torch_worker._worker_loop
    if isinstance(loop, SummedLoop):
        torch_worker._worker_loop = loop.original


class Closes(Protocol):
    """What records in a worker."""

    def close(self) -> None:
        """The worker ends."""


class WorkerLoop(ABC):
    """Stands in for torch's `_worker_loop`, or for another that does: records, and runs that."""

    def __init__(self, original: Callable[..., None]) -> None:
        functools.update_wrapper(self, original)
        self.original = original

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Runs in the worker's main thread until torch ends the worker."""
        try:
            opened = self._open(args, kwargs)
        except Exception:  # what is recorded is worth less than the user's run
            opened = None
        try:
            self.original(*args, **kwargs)
        finally:
            if opened is not None:
                opened.close()

    def not_torchs(self) -> Callable[..., None] | None:
        """For spawn and forkserver: the original; None: torch's own, which is patched by now.

        It can't be pickled by its name while that name is.
        """
        own = self.original
        name = (getattr(own, "__module__", None), getattr(own, "__qualname__", None))
        patched = not isinstance(own, WorkerLoop) and name == (
            torch_worker.__name__,
            "_worker_loop",
        )
        return None if patched else own

    @abstractmethod
    def _open(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Closes | None:
        """Begin to record, in the worker; None where the call is not known."""


def find_argument(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], name: str
) -> Any:
    """The argument of that name in a call of `function`; None where it has no such parameter."""
    try:
        # A user's wrapper around the loop leads to torch's own signature by __wrapped__.
        return inspect.signature(function).bind(*args, **kwargs).arguments.get(name)
    except (TypeError, ValueError):
        return None


def find_queues(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, Any] | None:
    """Index queue and data queue of a worker loop's call: by name, else in order of type."""
    named = tuple(
        find_argument(function, args, kwargs, name) for name in ("index_queue", "data_queue")
    )
    if all(hasattr(q, "get") and hasattr(q, "put") for q in named):
        return named[0], named[1]
    typed = [
        value
        for value in (*args, *kwargs.values())
        if isinstance(value, multiprocessing.queues.Queue)
    ]
    return (typed[0], typed[1]) if len(typed) >= 2 else None


class SummedLoop(WorkerLoop):
    """Keeps sums, in the place of torch's own or of `RecordedLoop` around it."""

    def __init__(self, original: Callable[..., None], folder: str) -> None:
        super().__init__(original)
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return (_restore, (self.not_torchs(), self.folder))

    def _open(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Sums | None:
        queues = find_queues(self.original, args, kwargs)
        if queues is None:
            return None
        worker = find_argument(self.original, args, kwargs, "worker_id")
        sums = _Sums(Path(self.folder), worker if isinstance(worker, int) else -1)
        index_queue, data_queue = queues
        index_queue.get = sums.getting(index_queue.get)
        data_queue.put = sums.putting(data_queue.put)
        return sums


def _restore(original: Callable[..., None] | None, folder: str) -> SummedLoop:
    return SummedLoop(original or torch_worker._worker_loop, folder)


class _Sums:
    """Those of one worker, in its own process."""

    def __init__(self, folder: Path, worker: int) -> None:
        self._worker = worker
        self._started_ns = self._written_ns = time.perf_counter_ns()
        self._n_batches = self._make_ns = self._idle_ns = 0
        self._began_ns = self._waiting_ns = 0
        path = folder / f"{os.getpid()}-{self._started_ns}{SUMS_SUFFIX}"
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            # Written, or a full disk would end the worker by SIGBUS at its first sum.
            os.write(descriptor, bytes(SUMS.size))
            self._map = mmap.mmap(descriptor, SUMS.size)
        finally:
            os.close(descriptor)
        self._write()

    def getting(self, get: Callable[..., Any]) -> Callable[..., Any]:
        now = time.perf_counter_ns

        def timed_get(*args: Any, **kwargs: Any) -> Any:
            # torch asks again every few seconds: an idle worker has been so since it first asked.
            if not self._waiting_ns:
                self._waiting_ns = now()
            request = get(*args, **kwargs)
            began_ns = self._began_ns = now()
            self._idle_ns += began_ns - self._waiting_ns
            self._waiting_ns = 0
            return request

        return timed_get

    def putting(self, put: Callable[..., Any]) -> Callable[..., Any]:
        now = time.perf_counter_ns

        def timed_put(*args: Any, **kwargs: Any) -> Any:
            end_ns = now()
            if self._began_ns:
                took_ns, self._began_ns = end_ns - self._began_ns, 0
                self._n_batches += 1
                self._make_ns += took_ns
                if end_ns - self._written_ns > WRITE_NS:
                    self._written_ns = end_ns
                    self._write()
            return put(*args, **kwargs)

        return timed_put

    def close(self) -> None:
        self._write(ended=1)

    def _write(self, ended: int = 0) -> None:
        SUMS.pack_into(
            self._map,
            0,
            SUMS_MAGIC,
            os.getpid(),
            self._worker,
            ended,
            self._started_ns,
            self._n_batches,
            self._make_ns,
            time.thread_time_ns(),
            self._idle_ns,
        )
