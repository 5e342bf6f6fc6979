"""Samples that a trial makes in the training process, of a loop that makes its own in workers.

The loop forks its workers anew each epoch: what samples open in this process they would share. A
copy of the dataset makes them, and what is kept outside of it is looked for first, in a worker. A
first batch to look at is made where the loop makes its own (`first_made`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.batches.source import one_batch
from loaderdoctor.instrument.dataset import put_back
from loaderdoctor.instrument.dataset.cached import CachedDataset
from loaderdoctor.instrument.dataset.rows import RowBatches, as_it_is
from loaderdoctor.instrument.dataset.safety import left_open, own_copy
from loaderdoctor.instrument.trial.data_axes import N_IN_BATCH, TrialData
from loaderdoctor.instrument.trial.epochs import EpochSource
from loaderdoctor.instrument.trial.trial_checks import loader_settings, start_method_of
from loaderdoctor.settings import Settings

_left_open: weakref.WeakKeyDictionary[DataLoader[Any], tuple[str, ...]] = (
    weakref.WeakKeyDictionary()
)
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
    here = _looks(settings) or not (effective.num_workers or by_own)
    if not own.num_workers or not here or start_method_of(own) != "fork":
        return
    if loader not in _left_open:
        try:
            _left_open[loader] = _asked_in_worker(loader, open_epochs, limit_s)
        except Exception as error:  # of the script's worker_init_fn, say, or a worker that hangs
            raise TrialRefused(
                "whether samples leave something open could not be asked in a worker: "
                f"{type(error).__name__}: {_last_line(error)}"
            ) from error
    if found := _left_open[loader]:
        raise TrialRefused(
            f"making samples leaves {', '.join(found[:3])} open outside of the dataset: made in "
            "the training process, the loop's own workers would share it"
        )


def on_own_copy(loader: DataLoader[Any], effective: Settings, data: TrialData) -> TrialData:
    """The data to be read without workers, where the loop has some: by a copy of the dataset.

    Raises TrialRefused where it can't be copied.
    """
    in_memory = isinstance(data.dataset, (CachedDataset, RowBatches))
    if not loader.num_workers or effective.num_workers or in_memory:
        return data
    dataset, collate = own_copy(data.dataset, data.collate)
    return replace(data, dataset=dataset, collate=collate)


def _last_line(error: Exception) -> str:
    """Of what a worker raised: torch puts its traceback before it."""
    return (str(error).strip().splitlines() or [""])[-1]


def _looks(settings: Settings) -> bool:
    """Whether samples are looked at here before the trial."""
    return bool(
        settings.cache
        or settings.batched
        or settings.uint8
        or settings.device_decode
        or settings.threads
        or settings.storage not in (None, "original")
        or settings.augment not in (None, "on")
        or settings.fields not in (None, "all")
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
