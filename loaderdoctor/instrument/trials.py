"""A trial's source: a new DataLoader over the same data with other settings.

Runs in the measuring process. The user's own loader is left alone; only its dataset, sampler,
collate function and the like are used again. What a trial opens, `close` ends.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler

from loaderdoctor.instrument.epoch_feeds import BackgroundFeed, EpochFeed, LoaderFeed, shut_down
from loaderdoctor.instrument.epochs import EpochSource
from loaderdoctor.instrument.movers import Mover
from loaderdoctor.instrument.protocol import TensorRecord, TransferRecord
from loaderdoctor.instrument.resident import ResidentSource
from loaderdoctor.instrument.side_stream import SideStreamSource
from loaderdoctor.instrument.supply import RingSource, Source
from loaderdoctor.instrument.trial_checks import check
from loaderdoctor.instrument.withheld import Withheld
from loaderdoctor.settings import Settings

__all__ = ["Withheld", "loader_settings", "measure_boundary", "open_trial"]

# A fetch that takes longer is taken for a hang: spawning 16 workers that import torch takes half
# a minute on two cores.
FETCH_LIMIT_S = 120.0

OpenIter = Callable[[DataLoader[Any]], Any]


def loader_settings(loader: DataLoader[Any]) -> Settings:
    """The loader's own settings; what means nothing without workers is None at 0 of them."""
    if not loader.num_workers:
        return Settings(num_workers=0, pin_memory=bool(loader.pin_memory))
    context: Any = loader.multiprocessing_context
    return Settings(
        num_workers=loader.num_workers,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
        pin_memory=bool(loader.pin_memory),
        in_order=getattr(loader, "in_order", True),
        start_method=None if context is None else context.get_start_method(),
    )


def open_trial(
    loader: DataLoader[Any],
    settings: Settings,
    *,
    device: torch.device | None,
    transfers: tuple[TransferRecord, ...],
    open_iter: OpenIter,
    batch: tuple[TensorRecord, ...] = (),
    loader_id: str = "",
    fetch_limit_s: float = FETCH_LIMIT_S,
) -> Source:
    """Open a source with `settings` applied over the loader's own.

    `transfers` are the loop's own host-to-device calls: background=device, side_stream and
    resident move what these move. `open_iter` gives a loader's raw torch iterator, unhooked.
    `batch` is one of the loader's batches, for what it takes to queue them. `non_blocking` is
    for the caller (`transfer.ForceTransfer`) unless the batch is moved here.

    Raises Withheld where the trial must not be run, whatever torch and the user's code raise when
    it can't be opened, and TimeoutError from its fetches after `fetch_limit_s`.
    """
    own = loader_settings(loader)
    effective = settings.over(own)
    check(loader, settings, effective, has_accelerator=device is not None, batch=batch)
    moves = settings.resident or settings.side_stream or settings.background == "device"
    mover: Mover | None = None
    if moves and device is not None:
        if not transfers:
            raise Withheld("the loop was not seen to copy anything of its batch to the device")
        mover = Mover(device, transfers, non_blocking=_non_blocking(settings, transfers))
    new_loader = _new_loader(loader, effective, fetch_limit_s)
    if settings.resident and mover is not None:
        epoch = _epochs(new_loader, effective, open_iter, None, fetch_limit_s, loader_id)
        return ResidentSource(epoch, mover, _length(loader), shuffle=_shuffles(loader))
    epochs = _epochs(new_loader, effective, open_iter, mover, fetch_limit_s, loader_id)
    if settings.side_stream and mover is not None:
        try:
            return SideStreamSource(epochs, mover)
        except BaseException:
            epochs.close()
            raise
    return epochs


def measure_boundary(source: Source) -> int:
    """Nanoseconds of one epoch boundary of this source beyond a steady fetch; drops batches.

    Shutdown or reset of its workers, its new iterator and first batch. 0 for recorded batches.
    Raises StopIteration where its data is at an end, TypeError for a source not opened here.
    """
    if isinstance(source, SideStreamSource):
        return measure_boundary(source.inner)
    if isinstance(source, (EpochSource, ResidentSource)):
        return source.boundary_ns()
    if isinstance(source, RingSource):
        return 0
    raise TypeError(f"{type(source).__name__} is no trial's source")


def _epochs(
    loader: DataLoader[Any],
    effective: Settings,
    open_iter: OpenIter,
    mover: Mover | None,
    fetch_limit_s: float,
    loader_id: str,
) -> EpochSource:
    """Epochs of the new loader, read by a thread where `background` says so."""
    to_device = mover if effective.background == "device" else None

    def prepare(batch: Any) -> Any:
        return batch if to_device is None else to_device.move(batch)[0]

    context: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    if to_device is not None and to_device.device.type == "cuda":
        context = _same_stream(to_device.device)

    def open_feed() -> EpochFeed:
        feed = LoaderFeed(open_iter(loader))
        if effective.background in (None, "off"):
            return feed
        return BackgroundFeed(feed, prepare, fetch_limit_s, context)

    def after(stuck: bool) -> None:
        kept, loader._iterator = loader._iterator, None  # persistent workers
        shut_down(kept, stuck=stuck)

    return EpochSource(
        open_feed, cycle=max(1, loader.num_workers), after=after, loader_id=loader_id
    )


def _same_stream(
    device: torch.device,
) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """The loop's own stream, for a thread: what it copies there is ordered before its use."""
    stream = torch.cuda.current_stream(device)

    @contextlib.contextmanager
    def entered() -> Iterator[None]:
        with torch.cuda.device(device), torch.cuda.stream(stream):
            yield

    return entered


def _new_loader(
    loader: DataLoader[Any], effective: Settings, fetch_limit_s: float
) -> DataLoader[Any]:
    """A plain DataLoader over the same data. Subclasses' own `__iter__` is left behind."""
    workers = effective.num_workers or 0
    arguments: dict[str, Any] = {
        "num_workers": workers,
        "collate_fn": loader.collate_fn,
        "pin_memory": bool(effective.pin_memory),
        "worker_init_fn": loader.worker_init_fn,
        "generator": loader.generator,
    }
    if loader.pin_memory_device and effective.pin_memory:
        arguments["pin_memory_device"] = loader.pin_memory_device
    if workers:
        arguments |= {
            "timeout": loader.timeout or fetch_limit_s,
            "persistent_workers": bool(effective.persistent_workers),
            "in_order": effective.in_order is not False,
            "multiprocessing_context": effective.start_method,
        }
        if effective.prefetch_factor is not None:
            arguments["prefetch_factor"] = effective.prefetch_factor
    if isinstance(loader.dataset, IterableDataset):
        arguments |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    elif loader.batch_sampler is None:
        arguments |= {"batch_size": None, "sampler": loader.sampler}
    elif type(loader.batch_sampler) is BatchSampler and loader.batch_size is not None:
        arguments |= {
            "batch_size": loader.batch_size,
            "sampler": loader.sampler,
            "drop_last": loader.drop_last,
        }
    else:
        arguments["batch_sampler"] = loader.batch_sampler
    with warnings.catch_warnings():
        # torch warns of more workers than CPUs; that is what the trial is to find out.
        warnings.simplefilter("ignore")
        return DataLoader(loader.dataset, **arguments)


def _non_blocking(settings: Settings, transfers: tuple[TransferRecord, ...]) -> bool:
    if settings.non_blocking is not None:
        return settings.non_blocking
    return bool(settings.side_stream) or any(transfer.non_blocking for transfer in transfers)


def _shuffles(loader: DataLoader[Any]) -> bool:
    """Whether the order changes from epoch to epoch: any sampler but torch's sequential one."""
    samplers = (loader.sampler, getattr(loader.batch_sampler, "sampler", None))
    if any(isinstance(sampler, RandomSampler) for sampler in samplers):
        return True
    kind = type(loader.sampler).__name__
    return kind not in ("SequentialSampler", "_InfiniteConstantSampler")


def _length(loader: DataLoader[Any]) -> int:
    try:
        return max(1, len(loader))
    except TypeError:
        raise Withheld("the dataset has no length, so whether it fits can't be told") from None
