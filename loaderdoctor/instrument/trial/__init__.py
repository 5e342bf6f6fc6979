"""One epoch's stream of batches, as the sources read it: from a loader, threads, or SPDL.

`LoaderFeed` reads a torch iterator; `BackgroundFeed` reads it through a
prefetch_generator.BackgroundGenerator. `ThreadFeed` (`threads`) has threads of the training process
make each batch whole, the sampler asked by the loop's thread alone: nothing is pickled, shared or
mapped. `SpdlFeed` (`spdl`) is read from Meta's SPDL, an optional extra with worker processes of its
own; it seeds no worker: what samples draw at random, forked workers draw alike. All can be ended
early the way an epoch ends, and be closed in bounded time.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from typing import Any, Protocol

from prefetch_generator import BackgroundGenerator
from torch.utils.data import DataLoader, _utils
from torch.utils.data._utils import pin_memory

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.dataset.loading_threads import LoadingThreads
from loaderdoctor.instrument.trial.trial_checks import loader_settings, start_method_of
from loaderdoctor.settings import DEFAULT_PREFETCH_FACTOR

# A batch that takes longer is taken for a hang: spawning 16 workers that import torch takes half a
# minute on two cores.
FETCH_LIMIT_S = 120.0
# How long a thread or worker that doesn't react is waited for.
CLOSE_LIMIT_S = 10.0
# How often workers that hand nothing over are looked at: torch does so when a wait of it is over.
POLL_S = 2.0
_TIMED_OUT = "DataLoader timed out after"  # torch's words


class EpochFeed(Protocol):
    """Batches of one epoch."""

    def next(self) -> Any:
        """The next batch. Raises StopIteration at the epoch's end, TimeoutError when stuck."""

    def end_early(self) -> None:
        """Draw no further samples: what is under way still comes, then the epoch ends."""

    def retire(self) -> None:
        """The epoch is over: leave nothing that only it needed."""

    def close(self, *, stuck: bool) -> None:
        """Stop everything, workers included. `stuck`: don't wait for them first."""


class NoBatchError(TimeoutError):
    """A loader's workers gave no batch within the limit."""


class LoaderFeed:
    """A DataLoader's raw iterator; `limit_s` is how long a batch of its workers may take.

    Without an end where it is infinite: workers are looked at now and then all the same.

    Workers of a trial are none of the script's: one that is killed must not become an error of
    whatever the training thread does at that moment, as torch's SIGCHLD handler would make it. So
    the handler is not told of them, and their death is found by asking now and then.
    """

    def __init__(self, iterator: Any, limit_s: float = 0.0) -> None:
        self._iterator, self._limit_s = iterator, limit_s
        if getattr(iterator, "_workers", None):
            _hide_from_handler(iterator)
            iterator._timeout = min(POLL_S, limit_s)

    def next(self) -> Any:
        """The iterator's next batch. Raises NoBatchError where none comes within the limit."""
        waited_s = 0.0
        while True:
            try:
                return next(self._iterator)
            except RuntimeError as error:  # noqa: PERF203 - a turn is a batch, or a second's wait
                if not str(error).startswith(_TIMED_OUT):
                    raise
                waited_s = self._waited(waited_s, error)

    def reset(self, loader: DataLoader[Any]) -> None:
        """Another pass of workers that persist: first they end the batches that they are at.

        Raises NoBatchError where one of these does not come within the limit.
        """
        iterator = self._iterator
        once = iterator._get_data

        def get_data() -> Any:
            waited_s = 0.0
            while True:
                try:
                    return once()
                except RuntimeError as error:  # noqa: PERF203 - as above
                    if not str(error).startswith(_TIMED_OUT):
                        raise
                    waited_s = self._waited(waited_s, error)

        iterator._get_data = get_data
        try:
            iterator._reset(loader)
        finally:
            del iterator._get_data

    def _waited(self, waited_s: float, error: RuntimeError) -> float:
        """So long by now, with the wait that ended so."""
        waited_s += getattr(self._iterator, "_timeout", POLL_S)
        if waited_s >= self._limit_s:
            raise NoBatchError(f"{_TIMED_OUT} {self._limit_s:g} seconds") from error
        return waited_s

    def end_early(self) -> None:
        if hasattr(self._iterator, "_sampler_iter"):
            self._iterator._sampler_iter = iter(())

    def retire(self) -> None:
        """Nothing: torch ends its workers itself, or keeps them where they persist."""

    def close(self, *, stuck: bool) -> None:
        iterator, self._iterator = self._iterator, iter(())
        shut_down(iterator, stuck=stuck)


class BackgroundFeed:
    """A feed read ahead by a thread, which also runs `prepare` on each batch.

    BackgroundGenerator 1.0.3 has no stop: its thread ends when its generator does, and not before
    there is room in its queue, so both are seen to here.
    """

    def __init__(
        self,
        inner: EpochFeed,
        prepare: Callable[[Any], Any],
        limit_s: float,
        context: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    ) -> None:
        self._inner = inner
        self._limit_s = limit_s
        self._stop = threading.Event()
        self._thread = BackgroundGenerator(self._batches(prepare, context))
        self._thread.name = "loaderdoctor-background"

    def next(self) -> Any:
        # As BackgroundGenerator.next, which waits without a limit.
        if not self._thread.Continue:
            raise StopIteration
        try:
            came, item = self._thread.queue.get(timeout=self._limit_s)
        except queue.Empty:
            raise TimeoutError(f"no batch from the thread within {self._limit_s:g} s") from None
        if came:
            return item
        self._thread.Continue = False
        raise item

    def end_early(self) -> None:
        self._inner.end_early()

    def retire(self) -> None:
        self._end_thread(CLOSE_LIMIT_S)
        self._inner.retire()

    def close(self, *, stuck: bool) -> None:
        """End the thread, then the loader; the loader first where the thread waits for it."""
        self._stop.set()
        if stuck or not self._end_thread(CLOSE_LIMIT_S):
            self._inner.close(stuck=True)
            self._end_thread(CLOSE_LIMIT_S)
        else:
            self._inner.close(stuck=False)

    def _batches(
        self,
        prepare: Callable[[Any], Any],
        context: Callable[[], contextlib.AbstractContextManager[Any]],
    ) -> Iterator[Any]:
        with context():
            while not self._stop.is_set():
                try:
                    batch = self._inner.next()
                except StopIteration:
                    return
                yield prepare(batch)
                del batch

    def _end_thread(self, limit_s: float) -> bool:
        """Make room in the queue until the thread is gone; whether it went."""
        self._stop.set()
        deadline = time.monotonic() + limit_s
        while True:
            went = not self._thread.is_alive()
            with contextlib.suppress(queue.Empty):
                while True:
                    self._thread.queue.get_nowait()
            if went or time.monotonic() > deadline:
                return went
            self._thread.join(timeout=0.005)


def shut_down(iterator: Any, *, stuck: bool) -> None:
    """End a torch iterator's workers and pin-memory thread; at once where they are stuck."""
    if not hasattr(iterator, "_shutdown_workers"):
        return
    _hide_from_handler(iterator)
    if stuck:  # not to be waited for five seconds each
        _kill(iterator)
    else:
        iterator._shutdown_workers()
    # A persistent, pinned iterator is kept in a set of torch's until the process exits.
    with contextlib.suppress(Exception):
        from torch.utils.data import dataloader

        dataloader._persistent_workers_atexit.discard(iterator)


def _kill(iterator: Any) -> None:
    """End workers that are stuck or dead, and what served them.

    Not by torch's own way down: it sets an event whose lock a killed worker may have taken with it,
    and would wait for that for ever.
    """
    iterator._shutdown = True
    thread = getattr(iterator, "_pin_memory_thread", None)
    if thread is not None:
        _ends_quietly(thread)  # it may be receiving a batch
        iterator._pin_memory_thread_done_event.set()
    for worker in iterator._workers:
        worker.kill()
    if thread is not None:
        thread.join(CLOSE_LIMIT_S)  # it looks at the event every five seconds
    for worker in iterator._workers:
        worker.join(CLOSE_LIMIT_S)
    for queue_ in (*iterator._index_queues, iterator._worker_result_queue):
        queue_.cancel_join_thread()
        queue_.close()


def _ends_quietly(thread: threading.Thread) -> None:
    """Let it print no traceback where what it reads from ends before it does."""
    shown = threading.excepthook

    def others(ended: threading.ExceptHookArgs) -> None:
        if ended.thread is not thread or not isinstance(ended.exc_value, OSError | EOFError):
            shown(ended)
        elif threading.excepthook is others:
            threading.excepthook = shown

    threading.excepthook = others


def _hide_from_handler(iterator: Any) -> None:
    """Takes its workers from the list of those whose death torch raises in the main thread."""
    with contextlib.suppress(Exception):
        if iterator._worker_pids_set:
            _utils.signal_handling._remove_worker_pids(id(iterator))  # type: ignore[attr-defined]
            iterator._worker_pids_set = False


class ThreadFeed:
    """One epoch of an iterator without workers, its batches made by `n` threads.

    Each has as many batches ready as a worker would have (torch's own `prefetch_factor`). A batch
    that takes longer than `limit_s` is a TimeoutError.
    """

    def __init__(self, iterator: Any, n: int, limit_s: float) -> None:
        self._iterator, self._limit_s = iterator, limit_s
        self._pool = LoadingThreads(n)
        self._ahead: deque[Future[Any]] = deque()
        self._n_ahead = n * DEFAULT_PREFETCH_FACTOR
        self._ended = False
        self._fill()

    def next(self) -> Any:
        """The next batch in the sampler's order, or what making it raised."""
        if not self._ahead:
            raise StopIteration
        try:
            batch = self._ahead[0].result(self._limit_s)
        except NotInTime:
            if self._ahead[0].done():
                raise  # the dataset's own
            raise TimeoutError(f"no batch from a thread within {self._limit_s:g} s") from None
        self._ahead.popleft()
        self._fill()
        return batch

    def end_early(self) -> None:
        self._ended = True

    def retire(self) -> None:
        self._pool.end(CLOSE_LIMIT_S)

    def close(self, *, stuck: bool) -> None:
        """Drop what is under way; a thread that is stuck is left behind."""
        self._ended = True
        for one in self._ahead:
            one.cancel()
        self._ahead.clear()
        self._pool.end(0.0 if stuck else CLOSE_LIMIT_S)

    def _fill(self) -> None:
        while len(self._ahead) < self._n_ahead and not self._ended:
            try:
                indices = self._iterator._next_index()
            except StopIteration:
                self._ended = True
                return
            self._ahead.append(self._pool.submit(lambda at=indices: _made(self._iterator, at)))


def _made(iterator: Any, indices: Any) -> Any:
    batch = iterator._dataset_fetcher.fetch(indices)
    if iterator._pin_memory:
        pin: Any = pin_memory.pin_memory
        batch = pin(batch, iterator._pin_memory_device)
    return batch


class SpdlFeed:
    """One epoch of the loader's batches, in the sampler's order.

    Raises TrialRefused where SPDL is not installed, or lacks what the loader has.
    """

    def __init__(self, loader: DataLoader[Any], limit_s: float) -> None:
        try:
            from spdl.dataloader import get_pytorch_dataloader
        except ImportError:
            raise TrialRefused("spdl is not installed (pip install loaderdoctor[spdl])") from None
        if loader.worker_init_fn is not None:
            raise TrialRefused("spdl calls no worker_init_fn, and the loader has one")
        batched = loader.batch_sampler is not None
        self._asked = _Asked(loader.batch_sampler or loader.sampler)
        by: dict[str, Any] = {"batch_sampler" if batched else "sampler": self._asked}
        own = get_pytorch_dataloader(
            loader.dataset,
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            timeout=limit_s,
            multiprocessing_context=start_method_of(loader_settings(loader)),
            prefetch_factor=loader.prefetch_factor or DEFAULT_PREFETCH_FACTOR,
            in_order=True,
            batch_size=None,
            **by,
        )
        self._batches: Iterator[Any] = iter(own)
        self._n = 0

    def next(self) -> Any:
        """The next batch. Raises RuntimeError at an epoch's end where SPDL left some out."""
        for batch in self._batches:
            self._n += 1
            return batch
        if self._n < self._asked.n and not self._asked.over:
            raise RuntimeError(
                f"SPDL left out {self._asked.n - self._n} of {self._asked.n} batches: making them "
                "raised an error, which it logs"
            )
        raise StopIteration

    def end_early(self) -> None:
        self._asked.over = True

    def retire(self) -> None:
        """Nothing: SPDL ends its workers with the epoch."""

    def close(self, *, stuck: bool) -> None:
        """End its workers, which waits for the batches that they are making."""
        self.end_early()
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()


class _Asked:
    """The sampler's indexes, until it is over."""

    def __init__(self, sampler: Iterable[Any]) -> None:
        self._sampler, self.over = sampler, False
        self.n = 0

    def __iter__(self) -> Iterator[Any]:
        for asked in self._sampler:
            if self.over:
                return
            self.n += 1
            yield asked
