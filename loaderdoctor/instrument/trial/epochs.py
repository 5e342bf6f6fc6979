"""A trial's loader over the loop's data, opened again at each epoch's end, which is timed.

What samples open that a trial makes in this process, workers that the loop forks would share: a
copy of the dataset makes them, and what is kept outside of it is looked for first, in a worker.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    Sampler,
    SequentialSampler,
    get_worker_info,
)

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.batches.source import endlessly, one_batch
from loaderdoctor.instrument.dataset import put_back
from loaderdoctor.instrument.dataset.loading_threads import N_IN_BATCH
from loaderdoctor.instrument.dataset.rows import as_it_is
from loaderdoctor.instrument.dataset.safety import left_open
from loaderdoctor.instrument.system import ByObject
from loaderdoctor.instrument.system.processes import OnCpus, cpu_sets
from loaderdoctor.instrument.trial import EpochFeed
from loaderdoctor.instrument.trial.compute_switches import less_collected
from loaderdoctor.instrument.trial.data_axes import TrialData
from loaderdoctor.instrument.trial.trial_checks import (
    loader_settings,
    reads_here,
    start_method_of,
)
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
        before_epoch: Callable[[], object] | None = None,
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
        return DataLoader(data.dataset, **arguments, **endlessly(made))


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


_left_open = ByObject[tuple[str, ...]]()  # by loader

OpenEpochs = Callable[[DataLoader[Any], TrialData, Settings], EpochSource]


def first_made(
    loader: DataLoader[Any],
    data: TrialData,
    effective: Settings,
    open_epochs: OpenEpochs,
    limit_s: float,
) -> Any:
    """The batch of map-style data; `open_epochs` opens a loader made here, where one is needed.

    Nothing is drawn of the loop's sampler and generators. Raises what the dataset raises, and
    TimeoutError or torch's own error after `limit_s`.
    """
    batched = loader.batch_sampler is not None
    indices = list(range(min(len(data.dataset), data.batch_size or N_IN_BATCH)))
    if not loader.num_workers:
        several = getattr(data.dataset, "__getitems__", None)
        with put_back():
            if not batched:
                return data.collate(data.dataset[0])
            return data.collate(several(indices) if several else [data.dataset[i] for i in indices])
    by: dict[str, Any] = (
        {"batch_sampler": [indices]} if batched else {"batch_size": None, "sampler": [0]}
    )
    made: DataLoader[Any] = DataLoader(
        data.dataset,
        num_workers=1,
        collate_fn=data.collate,
        worker_init_fn=loader.worker_init_fn,
        generator=torch.Generator(),
        timeout=loader.timeout or limit_s,
        multiprocessing_context=effective.start_method,
        **by,
    )
    return one_batch(open_epochs(made, data, Settings(start_method=effective.start_method)))


def refuse_what_stays_open(
    loader: DataLoader[Any],
    settings: Settings,
    effective: Settings,
    open_epochs: OpenEpochs,
    limit_s: float,
) -> None:
    """Raise TrialRefused where samples made here would leave the loop's workers something open.

    Asked once of a loader, in a worker. Workers that are not forked inherit nothing.
    """
    own = loader_settings(loader)
    # What is to be resident is made by the loop's own number of workers, but for a stream.
    by_own = settings.resident and not isinstance(loader.dataset, IterableDataset)
    here = reads_here(settings) or not (effective.num_workers or by_own)
    if not own.num_workers or not here or start_method_of(own) != "fork":
        return
    found = _left_open.get(loader)
    if found is None:
        try:
            found = _left_open[loader] = _asked_in_worker(loader, open_epochs, limit_s)
        except Exception as error:  # of the script's worker_init_fn, say, or a worker that hangs
            # Of what a worker raised torch puts the traceback first.
            raise TrialRefused(
                "whether samples leave something open could not be asked in a worker: "
                f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[-1]}"
            ) from error
    if found:
        raise TrialRefused(
            f"making samples leaves {', '.join(found[:3])} open outside of the dataset: made in "
            "the training process, the loop's own workers would share it"
        )


class _Question(Dataset[Any]):
    """What is asked of a dataset in a worker: its one sample is the answer."""

    def __init__(
        self, dataset: Any, ask: Callable[[Any], Any], init: Callable[[int], Any] | None
    ) -> None:
        self._dataset, self._ask, self._init = dataset, ask, init

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        if self._init is not None:
            info: Any = get_worker_info()
            object.__setattr__(info, "dataset", self._dataset)  # which it may look for there
            self._init(info.id)
        return self._ask(self._dataset)


def _asked_in_worker(
    loader: DataLoader[Any], open_epochs: OpenEpochs, limit_s: float
) -> tuple[str, ...]:
    asked: DataLoader[Any] = DataLoader(
        _Question(loader.dataset, left_open, loader.worker_init_fn),
        batch_size=None,
        num_workers=1,
        collate_fn=as_it_is,
        generator=torch.Generator(),
        timeout=loader.timeout or limit_s,
        multiprocessing_context="fork",
    )
    data = TrialData(dataset=asked.dataset, sampler=None, batch_size=None, collate=as_it_is)
    answer: tuple[str, ...] = one_batch(open_epochs(asked, data, Settings(start_method="fork")))
    return answer
