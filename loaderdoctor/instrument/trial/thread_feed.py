"""`threads`: batches made by threads of the training process, in the loader's own order.

The sampler is asked by the loop's thread alone; a batch is made whole by one thread. Nothing is
handed between processes, so nothing is pickled, shared or mapped.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from typing import Any

from torch.utils.data._utils import pin_memory

from loaderdoctor.instrument.dataset.loading_threads import LoadingThreads
from loaderdoctor.instrument.trial.epoch_feeds import CLOSE_LIMIT_S
from loaderdoctor.settings import DEFAULT_PREFETCH_FACTOR


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
        """The sampler has no further index."""
        self._ended = True

    def retire(self) -> None:
        """The epoch is over: its threads go."""
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
