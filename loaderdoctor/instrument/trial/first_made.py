"""A first batch of a trial's data, to look at, made where the loop makes its own.

A dataset that opens its file at the first sample opens it in a worker where the loop has workers:
opened in this process, all workers that the loop forks later would share it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader

from loaderdoctor.instrument.dataset.draws import put_back
from loaderdoctor.instrument.trial.data_axes import N_IN_BATCH, TrialData
from loaderdoctor.instrument.trial.epochs import EpochSource
from loaderdoctor.instrument.trial.synthetic import one_batch
from loaderdoctor.settings import Settings

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
