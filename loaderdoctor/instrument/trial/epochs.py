"""A trial's loader over the loop's data, opened again at each epoch's end, which is timed."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import replace
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler, SequentialSampler

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.system.processes import OnCpus, cpu_sets
from loaderdoctor.instrument.trial import EpochFeed
from loaderdoctor.instrument.trial.compute_switches import less_collected
from loaderdoctor.instrument.trial.data_axes import TrialData
from loaderdoctor.instrument.trial.trial_checks import start_method_of
from loaderdoctor.instrument.wire.records import BoundaryRecord
from loaderdoctor.settings import Settings
from loaderdoctor.units import NS_PER_S

# Fetches of the loader alone that tell a boundary from a steady fetch are given up after this.
STEADY_LIMIT_S = 5.0


class EpochSource:
    """Batches of one epoch after the other. Opens the first feed at once.

    `open_feed` starts an epoch; `cycle` is the number of batches that are made at the same time
    (num_workers, at least 1); `after` runs at `close`, whatever happened; `before_epoch` before
    each epoch but the first, outside what is timed of the boundary.
    """

    def __init__(
        self,
        open_feed: Callable[[], EpochFeed],
        *,
        cycle: int,
        after: Callable[[bool], None],
        loader_id: str = "",
        before_epoch: Callable[[], None] | None = None,
    ) -> None:
        self._open_feed = open_feed
        self._cycle = cycle
        self._after = after
        self._loader_id = loader_id
        self._before_epoch = before_epoch
        self._stuck = False
        self._ended_early = False
        self.startup_ns: int | None = None
        self.boundaries: list[BoundaryRecord] = []  # epochs that ended, oldest first
        self._opened_ns = time.perf_counter_ns()
        try:
            self._feed: EpochFeed | None = self._open()
        except BaseException:
            after(True)
            raise

    def next_batch(self) -> Any:
        """The next batch, of the next epoch where one ends. StopIteration where that is empty."""
        if self._feed is None:
            raise StopIteration
        began = time.perf_counter_ns()
        try:
            batch = self._next(self._feed)
        except StopIteration:
            return self._next_epoch(began)
        if self.startup_ns is None:
            self.startup_ns = time.perf_counter_ns() - self._opened_ns
        return batch

    def drop(self, n: int) -> int:
        n_dropped = 0
        with contextlib.suppress(StopIteration):
            while n_dropped < n:
                self.next_batch()
                n_dropped += 1
        return n_dropped

    def close(self) -> None:
        """End workers, threads and batches under way; at once where a fetch timed out."""
        feed, self._feed = self._feed, None
        if feed is None:
            return
        try:
            feed.close(stuck=self._stuck)
        finally:
            self._after(self._stuck)

    def boundary_ns(self) -> int:
        """Measure one epoch boundary, beyond a steady fetch of the loader alone. Drops batches.

        The epoch is ended as a real one ends, by its last index. Raises StopIteration once
        closed or where an epoch is empty.
        """
        if self._feed is None:
            raise StopIteration
        self._feed.end_early()
        n_before = len(self.boundaries)
        self.drop_until(lambda: len(self.boundaries) > n_before)
        if len(self.boundaries) == n_before:
            raise StopIteration
        ended = self.boundaries[-1]
        total = ended.teardown_ns + ended.create_ns + ended.first_wait_ns
        # The first batches of all workers come together: skip them, then take whole cycles.
        n_before = len(self.boundaries)
        self.drop(self._cycle - 1)
        n_fetches = 2 * self._cycle
        began = time.perf_counter_ns()
        fetched = 0
        while fetched < n_fetches and time.perf_counter_ns() - began < STEADY_LIMIT_S * NS_PER_S:
            fetched += self.drop(1)
            if len(self.boundaries) > n_before:  # an epoch as short as that has no steady part
                return total
        return max(0, total - (time.perf_counter_ns() - began) // max(1, fetched))

    def drop_until(self, done: Callable[[], bool]) -> None:
        """Throw batches away until `done`, or the data ends."""
        while not done() and self.drop(1):
            pass

    def _next(self, feed: EpochFeed) -> Any:
        try:
            return feed.next()
        except TimeoutError:
            self._stuck = True
            raise

    def _open(self) -> EpochFeed:
        with warnings.catch_warnings():
            # torch warns of more workers than CPUs; that is what the trial is to find out.
            warnings.simplefilter("ignore")
            return self._open_feed()

    def _next_epoch(self, ending_ns: int) -> Any:
        assert self._feed is not None
        self._feed.retire()
        ended_ns = opening_ns = time.perf_counter_ns()
        if self._before_epoch is not None:
            self._before_epoch()
            opening_ns = time.perf_counter_ns()
        self._feed = self._open()
        created_ns = time.perf_counter_ns()
        batch = self._next(self._feed)
        self.boundaries.append(
            BoundaryRecord(
                loader=self._loader_id,
                create_ns=created_ns - opening_ns,
                first_wait_ns=time.perf_counter_ns() - created_ns,
                teardown_ns=ended_ns - ending_ns,
                at_ns=ended_ns,
            )
        )
        return batch


def new_loader(
    loader: DataLoader[Any], data: TrialData, effective: Settings, fetch_limit_s: float
) -> DataLoader[Any]:
    """A plain DataLoader over the same data. Subclasses' own `__iter__` is left behind."""
    workers = effective.num_workers or 0
    arguments: dict[str, Any] = {
        "num_workers": workers,
        "collate_fn": data.collate,
        "pin_memory": bool(effective.pin_memory),
        "worker_init_fn": loader.worker_init_fn,
        "generator": loader.generator,
    }
    if loader.pin_memory_device and effective.pin_memory:
        arguments["pin_memory_device"] = loader.pin_memory_device
    if workers and effective.worker_cpus not in (None, "inherited"):
        sets = cpu_sets(effective.worker_cpus)
        arguments["worker_init_fn"] = OnCpus(sets, loader.worker_init_fn)
    if workers and effective.worker_gc not in (None, "automatic"):
        arguments["worker_init_fn"] = less_collected(
            effective.worker_gc,
            arguments["worker_init_fn"],
            forks=start_method_of(effective) == "fork",
        )
    if workers:
        arguments |= {
            "timeout": loader.timeout or fetch_limit_s,
            "persistent_workers": bool(effective.persistent_workers),
            "in_order": effective.in_order is not False,
            "multiprocessing_context": effective.start_method,
        }
        if effective.prefetch_factor is not None:
            arguments["prefetch_factor"] = effective.prefetch_factor
    if isinstance(data.dataset, IterableDataset):
        arguments |= {"batch_size": data.batch_size, "drop_last": loader.drop_last}
    elif loader.batch_sampler is None:
        arguments |= {"batch_size": None, "sampler": data.sampler}
    elif type(loader.batch_sampler) is BatchSampler and loader.batch_size is not None:
        arguments |= {
            "batch_size": data.batch_size,
            "sampler": data.sampler,
            "drop_last": loader.drop_last,
        }
    else:
        arguments["batch_sampler"] = loader.batch_sampler
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # more workers than CPUs: what a trial is to find out
        made: DataLoader[Any] = DataLoader(data.dataset, **arguments)
        if not effective.keep_iterator:
            return made
        for name in ("batch_size", "sampler", "drop_last", "batch_sampler"):
            arguments.pop(name, None)
        return DataLoader(data.dataset, **arguments, **_endless(made))


class EndlessBatches(Sampler[Any]):
    """The indexes of epoch after epoch, for one iterator; `len` is one epoch's, as the loop has it.

    Runs in the training process. A sampler that gives nothing ends it, or it would spin.
    """

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches) if isinstance(self._batches, Sized) else 0

    def __iter__(self) -> Iterator[Any]:
        while True:
            n = 0
            for n, batch in enumerate(self._batches, 1):  # noqa: B007 - counts what came
                yield batch
            if n == 0:
                return


def _endless(loader: DataLoader[Any]) -> dict[str, Any]:
    """A loader's arguments for its sampling, never ending. Raises TrialRefused."""
    if isinstance(loader.dataset, IterableDataset):
        raise TrialRefused(
            "an iterable dataset ends by itself: one iterator can't serve all epochs"
        )
    if loader.batch_sampler is None:
        return {"batch_size": None, "sampler": EndlessBatches(loader.sampler)}
    return {"batch_sampler": EndlessBatches(loader.batch_sampler)}


class FromHere(Sampler[int]):
    """The indexes 0 … n - 1 in order: of the first epoch those from `first` on, later all."""

    def __init__(self, n: int, first: int) -> None:
        self._n, self._first = n, first

    def __iter__(self) -> Iterator[int]:
        first, self._first = self._first, 0
        return iter(range(first, self._n))

    def __len__(self) -> int:
        return self._n


def from_batch(loader: DataLoader[Any], data: TrialData, n_batches: int) -> TrialData:
    """The trial's data from behind so many batches of the loop's epoch on, where order is known.

    Samples that lie in order of their length make batches of another cost at each place: from the
    first on, a trial looked 3.1 times as fast as a loop that was in the middle of them. The first
    ones in the place of all (`cache` in part) can't be gone on with: raises TrialRefused.
    """
    sampler: Any = loader.sampler
    sequential = type(sampler) is SequentialSampler and data.sampler is sampler
    batched = type(loader.batch_sampler) is BatchSampler and loader.batch_size is not None
    if not n_batches or not sequential or not batched:
        return data
    if getattr(data.dataset, "n_kept", len(sampler)) < len(sampler):
        raise TrialRefused(
            "its batches come in the dataset's order and differ in shape: the first samples can't "
            "stand for those that the loop is at"
        )
    n, first = len(sampler), n_batches * (loader.batch_size or 1)
    return replace(data, sampler=FromHere(n, first)) if first < n else data
