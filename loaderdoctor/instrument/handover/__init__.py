"""What makes a pass's batches from its indexes: workers, or this process.

Both are torch's own iterators with another source of indexes: they take them from a stream when
they have room, give batches in the stream's order, and know which they have not given yet, so
that another pool can make those.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.utils.data import DataLoader, Sampler, dataloader

from loaderdoctor.instrument.batches import digest
from loaderdoctor.instrument.dataset import glimpse, states
from loaderdoctor.instrument.trial import LoaderFeed, shut_down
from loaderdoctor.settings import DEFAULT_PREFETCH_FACTOR, Settings

Take = Callable[[], Any]
# torch's own, whoever has wrapped it: the loop's iterator leads back to here.
FETCH: Any = inspect.unwrap(vars(dataloader._BaseDataLoaderIter)["__next__"])
_profiled: Callable[[], bool] = getattr(torch.autograd, "_profiler_enabled", lambda: True)
_IN_PROCESS: Any = dataloader._SingleProcessDataLoaderIter
_WORKERS: Any = dataloader._MultiProcessingDataLoaderIter


DRAWS = "samples are made with random draws, which fall out differently in other workers"
DIFFERS = (
    "a batch made again in another worker is not the same, though no generator was seen to be "
    "drawn from"
)


class WatchedCollate:
    """A collate function that gives (batch, whether something was drawn for it).

    For its process's first batch the states must have been noted (`note`), after it was seeded.
    """

    def __init__(self, collate: Callable[[Any], Any], *, n_batches: int | None = None) -> None:
        """`n_batches`: so many of each process are looked at, and of the others it says no."""
        self._collate = collate
        self._n_left = n_batches
        self._seeded: tuple[Any, ...] | None = None
        self._before: tuple[Any, ...] | None = None

    def note(self) -> None:
        self._seeded, self._before = states(), glimpse()

    def __call__(self, samples: Any) -> tuple[Any, bool]:
        """Collate, and compare with the states behind the batch before."""
        batch = self._collate(samples)
        if self._n_left is not None:
            self._n_left -= 1
            if self._n_left < 0:
                return batch, False
        before, self._before = self._before, glimpse()
        drew = before is not None and before != self._before
        if self._seeded is not None:
            drew, self._seeded = drew or self._seeded != states(), None
        return batch, drew


class NotingInit:
    """A worker_init_fn that calls the user's and then notes the states for the first batch."""

    def __init__(self, init: Callable[[int], None] | None, collate: WatchedCollate) -> None:
        self._init = init
        self._collate = collate

    def __call__(self, worker_id: int) -> None:
        """Runs in a worker that torch has just seeded."""
        if self._init is not None:
            self._init(worker_id)
        self._collate.note()


class NoIndexes(Sampler[Any]):
    """Stands where a sampler stands; the indexes come from elsewhere."""

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0


def stand_in(loader: DataLoader[Any], effective: Settings | None = None) -> DataLoader[Any]:
    """A loader over the same objects with `effective` settings (None: its own).

    Made without its class's `__init__`: no warning is printed that the script would not print.
    What torch draws for it comes from a generator of its own, and so leaves the loop's alone.
    """
    made: Any = object.__new__(DataLoader)
    held = made.__dict__
    held.update(vars(loader))
    held["_iterator"] = None
    held["generator"] = torch.Generator()
    held["batch_sampler" if loader.batch_sampler is not None else "sampler"] = NoIndexes()
    if effective is None:
        return made  # type: ignore[no-any-return]
    workers = effective.num_workers or 0
    held["num_workers"] = workers
    held["pin_memory"] = bool(effective.pin_memory)
    held["persistent_workers"] = bool(workers and effective.persistent_workers)
    held["in_order"] = True
    held["timeout"] = 0
    held["prefetch_factor"] = (
        (effective.prefetch_factor or DEFAULT_PREFETCH_FACTOR) if workers else None
    )
    own_context = loader.multiprocessing_context if loader.num_workers else None
    method = effective.start_method if workers else None
    same = own_context is not None and method in (None, own_context.get_start_method())
    # A context of the user's own making is kept where it starts workers the way that is asked for.
    made.multiprocessing_context = own_context if workers and same else method
    return made  # type: ignore[no-any-return]


Kind = Literal["switched", "failed", "refused", "draws"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What happened to a loader's settings."""

    kind: Kind
    settings: Settings  # complete
    reason: str = ""


class PoolUnfitError(Exception):
    """A pool's batches are not those of the loader's own settings; the message is the reason."""


def in_words(error: Exception) -> str:
    """Of a pool that can't go on."""
    return f"{type(error).__name__}: {error}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A batch that the loader's own settings made: its indexes, and what it hashes to."""

    index: Any
    digest: bytes


def _nothing() -> Any:
    raise StopIteration


class _Indexes:
    """Which indexes a pool took and has not given a batch for, oldest first."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.source: Take = _nothing
        self.under_way: deque[Any] = deque()
        # What the oldest of them hash to, whose batches are only compared: they come first.
        self.expected: deque[bytes] = deque()
        self._to_prove = deque(samples)

    def take(self) -> Any:
        """The next index. Raises StopIteration where there is none now."""
        if self._to_prove:
            sample = self._to_prove.popleft()
            self.expected.append(sample.digest)
            index = sample.index
        else:
            index = self.source()
        self.under_way.append(index)
        return index

    def forget(self) -> None:
        """Drop what is under way: another pass begins."""
        self.under_way.clear()
        self.expected.clear()
        self._to_prove.clear()

    @property
    def of_pass(self) -> list[Any]:
        """Those under way that belong to the pass."""
        return list(self.under_way)[len(self.expected) :]


def _next(iterator: Any) -> Any:
    """Torch's `__next__` past our own hook, which would only hand it on.

    Its span for profilers costs 5 to 25 us a batch: only where one listens.
    """
    if _profiled():
        return FETCH(iterator)
    batch = iterator._next_data()
    iterator._num_yielded += 1
    return batch


class _InProcess(_IN_PROCESS):  # type: ignore[misc]  # Any: torch's, untyped
    """torch's iterator without workers, over indexes of ours."""

    __next__ = _next

    def __init__(self, loader: DataLoader[Any], indexes: _Indexes) -> None:
        self._indexes = indexes
        super().__init__(loader)

    def _next_index(self) -> Any:
        return self._indexes.take()


class _Workers(_WORKERS):  # type: ignore[misc]  # Any: torch's, untyped
    """torch's iterator with workers, over indexes of ours, seeded as it is told."""

    __next__ = _next

    def __init__(self, loader: DataLoader[Any], indexes: _Indexes, seed: int) -> None:
        self._indexes = indexes
        self._seed = seed
        super().__init__(loader)

    @property
    def _base_seed(self) -> int:
        return self._seed

    @_base_seed.setter
    def _base_seed(self, drawn: int) -> None:
        """What torch draws for it here comes from nowhere: see `stand_in`."""

    def _next_index(self) -> Any:
        return self._indexes.take()

    def fill(self) -> None:
        """Give the workers as many indexes as they have room for and are there."""
        while len(self._task_info) < self._prefetch_factor * self._num_workers:
            n_sent = self._send_idx
            self._try_put_index()
            if self._send_idx == n_sent:
                return


class Pool:
    """Workers (or none) with certain settings; batches of a pass in the order of its indexes."""

    def __init__(
        self,
        loader: DataLoader[Any],
        settings: Settings,
        *,
        seed: int,
        samples: Sequence[Sample] = (),
        no_draws: bool = False,
        limit_s: float,
        opened: Callable[[DataLoader[Any]], None] = lambda made: None,
    ) -> None:
        """Start it. `settings` are complete; `samples` are made first, and must come out the same.

        `no_draws`: a batch for which a worker drew at random is not handed out.
        `limit_s`: a batch that takes longer is a hang. `opened` gets the loader that it is opened
        from, before any worker starts. Raises what torch and starting processes raise.
        """
        self.settings = settings
        self.saw_draws = False
        self.last_index: Any = None  # whose batch it gave last
        self._no_draws = no_draws
        self._indexes = _Indexes(samples)
        self._loader = stand_in(loader, settings)
        self._workers: _Workers | None = None
        self._room = settings.queue_length  # indexes that its workers have room for
        opened(self._loader)
        # Each batch's draws are looked at where none is allowed; else only those that samples are
        # compared with, which one worker after the other makes.
        self._watched = bool(settings.num_workers) and (no_draws or bool(samples))
        if settings.num_workers:
            if self._watched:
                n = None if no_draws else len(samples)
                collate = WatchedCollate(loader.collate_fn, n_batches=n)
                held = vars(self._loader)
                held["collate_fn"] = collate
                held["worker_init_fn"] = NotingInit(loader.worker_init_fn, collate)
            self._workers = _Workers(self._loader, self._indexes, seed)
            self._feed = LoaderFeed(self._workers, limit_s)
        else:
            self._feed = LoaderFeed(_InProcess(self._loader, self._indexes))

    @property
    def n_under_way(self) -> int:
        """Batches of the pass that it was asked for and has not given."""
        return len(self._indexes.of_pass)

    def serve(self, take: Take) -> None:
        """Make batches of the indexes that `take` gives; it raises StopIteration where none is."""
        self._indexes.source = take

    def begin_pass(self) -> None:
        """Workers that persist: another pass begins, whatever is left of the one before."""
        self._indexes.source = _nothing
        self._indexes.forget()
        if self._workers is not None:
            self._feed.reset(self._loader)

    def stop_taking(self) -> None:
        """Take no further index: what is under way still comes."""
        self._indexes.source = _nothing

    def fill(self) -> None:
        """Take as many indexes as there is room for."""
        if self._workers is not None:
            self._workers.fill()

    def next_batch(self, own: Any = None) -> Any:
        """The next batch; torch's `own` is not asked. StopIteration where no index is left.

        PoolUnfitError where a sample came out differently, TimeoutError where none comes, and
        whatever the dataset raises or torch does when a worker died: its index is under way still.
        """
        workers, indexes, drew = self._workers, self._indexes, False
        watched = self._watched
        under_way, expected = indexes.under_way, indexes.expected
        while True:
            if workers is not None:
                if len(workers._task_info) < self._room:
                    workers.fill()
                if not under_way:
                    raise StopIteration
            batch = self._feed.next()
            if watched:
                batch, drew = batch
            if drew:
                self.saw_draws = True
            if expected and digest(batch) != expected[0]:
                raise PoolUnfitError(DRAWS if self.saw_draws else DIFFERS)
            if drew and self._no_draws:
                raise PoolUnfitError(DRAWS)
            self.last_index = under_way.popleft()
            if not expected:
                return batch
            expected.popleft()

    def skip_failed(self) -> None:
        """Go on behind the index whose batch could not be made, as torch does."""
        if self._indexes.under_way:
            self._indexes.under_way.popleft()
        if self._indexes.expected:
            self._indexes.expected.popleft()

    def close(self, *, stuck: bool = False) -> list[Any]:
        """End it; the indexes of the pass whose batches it has not given, in order."""
        left = self._indexes.of_pass
        self._indexes.forget()
        self._indexes.source = _nothing
        self._feed.close(stuck=stuck)
        self._workers = None
        return left


class OwnRest:
    """What torch's own iterator has under way when a pass is taken over: it still comes.

    Holds no reference to the iterator, which the loop holds: `next_batch` is given it.
    """

    def __init__(self, settings: Settings, n_batches: int) -> None:
        self.settings = settings
        self.n_under_way = n_batches

    def next_batch(self, own: Any) -> Any:
        """The next of them; workers go after the last. Raises what it would have raised."""
        if not self.n_under_way:
            raise StopIteration
        self.n_under_way -= 1
        batch = FETCH(own)
        if not self.n_under_way:
            shut_down(own, stuck=False)
        return batch
