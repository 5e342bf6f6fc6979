"""A trial's source: a new DataLoader over the same data with other settings.

Runs in the measuring process. The user's own loader is left alone; only its dataset, sampler,
collate function and the like are used again. What a trial opens, `close` ends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import (
    DataLoader,
    IterableDataset,
)

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.batches.h2d import ToDevice
from loaderdoctor.instrument.batches.packing import PackedToDevice, arrived
from loaderdoctor.instrument.batches.replay_buffer import ReplaySource
from loaderdoctor.instrument.batches.source import (
    ChangedSource,
    OtherFields,
    SideStreamSource,
    Source,
    SyntheticSource,
    first_batch,
)
from loaderdoctor.instrument.dataset.cached import (
    CachedDataset,
    EncodedFiles,
    OnTensors,
    decoding_on,
    encoded,
    joined,
)
from loaderdoctor.instrument.dataset.rows import RowBatches
from loaderdoctor.instrument.dataset.safety import own_copy
from loaderdoctor.instrument.dataset.transforms import Normaliser, NormalisingToDevice
from loaderdoctor.instrument.system import key_of
from loaderdoctor.instrument.trial import (
    FETCH_LIMIT_S,
    BackgroundFeed,
    EpochFeed,
    LoaderFeed,
    SpdlFeed,
    ThreadFeed,
    shut_down,
)
from loaderdoctor.instrument.trial.data_axes import Note, TrialData, made_once, n_first, trial_data
from loaderdoctor.instrument.trial.epochs import (
    EpochSource,
    first_made,
    from_batch,
    new_loader,
    refuse_what_stays_open,
)
from loaderdoctor.instrument.trial.resident import ResidentSource, resident
from loaderdoctor.instrument.trial.trial_checks import (
    AsIfGuarded,
    check,
    loader_settings,
    start_method_of,
)
from loaderdoctor.instrument.wire.records import TensorRecord, TransferRecord
from loaderdoctor.settings import Settings

OpenIter = Callable[[DataLoader[Any]], Any]


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
    note: Note = lambda kind, text: None,
    opened: Callable[[object], None] = lambda made: None,
    cache_limit_s: float | None = None,
    n_alike: int = 1,
    n_drawn: int = 0,
) -> Source:
    """Open a source with `settings` applied over the loader's own.

    `transfers` are the loop's own host-to-device calls: background=device, side_stream and
    resident move what these move. `open_iter` gives a loader's raw torch iterator, unhooked.
    `batch` is one of the loader's batches, for what it takes to queue them. `non_blocking` is
    for the caller (`transfer.ForceTransfer`) unless the batch is moved here, and so
    are the compute axes (`compute.Compute`). `note` is told what the report must say,
    `opened` of what the trial holds and must be gone once its source is closed.
    `cache_limit_s`: as the limit of `CachedDataset`; where there is one, `resident` refuses samples
    that vary, too. `n_alike`: loaders to be opened together, this
    one included, which must have room next to one another. `n_drawn`: as of `from_batch`.

    Raises TrialRefused where the trial must not be run, whatever torch and the user's code raise
    when it can't be opened, and TimeoutError from its fetches after `fetch_limit_s`.
    """
    effective = settings.over(loader_settings(loader))
    check(
        loader,
        settings,
        effective,
        has_accelerator=device is not None,
        batch=batch,
        n_alike=n_alike,
    )
    forks = not effective.num_workers or start_method_of(effective) == "fork"
    if settings.cache and not forks:
        raise TrialRefused("workers that are not forked would each hold all cached samples")
    to_device = _to_device(settings, device, transfers)

    def epochs(data: TrialData, to_device: ToDevice | None = None) -> EpochSource:
        data = on_own_copy(loader, effective, data)
        made = new_loader(loader, data, effective, fetch_limit_s)
        return opened_epochs(made, data, effective, to_device)

    def opened_epochs(
        made: DataLoader[Any], data: TrialData, of: Settings, to_device: ToDevice | None = None
    ) -> EpochSource:
        opened(made)
        source = _epochs(made, data, of, open_iter, to_device, fetch_limit_s, loader_id)
        opened(source)
        return source

    def first(data: TrialData) -> Any:
        return first_made(loader, data, effective, opened_epochs, fetch_limit_s)

    refuse_what_stays_open(loader, settings, effective, opened_epochs, fetch_limit_s)
    whole: Any = None
    if settings.fields not in (None, "all"):
        own = trial_data(loader, Settings(), note, first_made=first)
        whole = first_batch(epochs(own), settings.fields or "")
    data = trial_data(
        loader, settings, note, first_made=first, forks=forks, cache_limit_s=cache_limit_s
    )
    decoded: OnTensors | None = None
    if settings.device_decode and device is not None:
        data, decoded = files_of(loader, data, device, note)
    if settings.resident and to_device is not None:
        if isinstance(data.dataset, IterableDataset):  # of others only the sampler is asked
            data = on_own_copy(loader, effective, data)
        return resident(
            loader,
            data,
            new_loader(loader, data, effective, fetch_limit_s),
            to_device,
            opened_epochs,
            fetch_limit_s,
            note,
            n=_n_resident(loader, settings.portion),
            refuse_random=cache_limit_s is not None,
        )
    if data.normalise is not None and to_device is not None:
        to_device = NormalisingToDevice(to_device, data.normalise)
    source: Source = epochs(from_batch(loader, data, n_drawn), to_device)
    try:
        if decoded is not None:
            source = ChangedSource(source, decoded)
        for wrap in _wrappers(settings, effective, data.normalise, whole, to_device, note):
            source = wrap(source)
    except BaseException:
        source.close()
        raise
    return source


def _wrappers(
    settings: Settings,
    effective: Settings,
    normalise: Normaliser | None,
    whole: Any,
    to_device: ToDevice | None,
    note: Note,
) -> list[Callable[[Source], Source]]:
    """What stands between the loader's epochs and the loop, from the loader outwards.

    `whole`: a batch with all of its inputs, where the loader makes one only; else None.
    """
    wrappers: list[Callable[[Source], Source]] = []
    # 0. Out of the buffers of the workers.
    if settings.reuse_buffers:
        wrappers.append(lambda s: ChangedSource(s, arrived))
    # 1. Recorded batches are the loader's: this one reads a few and closes it.
    if settings.synthetic:
        wrappers.append(lambda s: SyntheticSource(s, note))
    # 2. The inputs that were left out: what comes next must find them where the loop expects them.
    if whole is not None:
        others = OtherFields(settings.fields or "", whole, to_device)
        wrappers.append(lambda s: ChangedSource(s, others))
    # 3. Last, since it hands out what the loop computes with: the batch on the device, moved ahead
    #    (and normalised there), or normalised as it is handed over. Not both; and neither where
    #    the loader's thread has moved it.
    if settings.side_stream and to_device is not None:
        wrappers.append(lambda s: SideStreamSource(s, to_device))
    elif normalise is not None and effective.background != "device":
        move = NormalisingToDevice(to_device, normalise).move if to_device is not None else None
        floats = move or normalise
        wrappers.append(lambda s: ChangedSource(s, lambda batch: floats(batch)[0]))
    elif settings.packed and to_device is not None and effective.background != "device":
        wrappers.append(lambda s: ChangedSource(s, lambda batch: to_device.move(batch)[0]))
    return wrappers


def _to_device(
    settings: Settings, device: torch.device | None, transfers: tuple[TransferRecord, ...]
) -> ToDevice | None:
    """What moves batches where the trial does so itself; None where the loop does."""
    if device is None:
        return None
    asked = (
        settings.resident
        or settings.side_stream
        or settings.packed
        or settings.background == "device"
    )
    if not transfers and (asked or settings.uint8):
        raise TrialRefused("the loop was not seen to copy anything of its batch to the device")
    if asked or settings.uint8 or settings.fields not in (None, "all"):
        to_device = ToDevice(device, transfers, non_blocking=_non_blocking(settings, transfers))
        return PackedToDevice(to_device) if settings.packed else to_device
    return None


def measure_boundary(source: Source) -> int:
    """Nanoseconds of one epoch boundary of this source beyond a steady fetch; drops batches.

    Shutdown or reset of its workers, its new iterator and first batch. 0 for recorded batches.
    Raises StopIteration where its data is at an end, TypeError for a source not opened here.
    """
    if isinstance(source, (ChangedSource, SideStreamSource)):
        return measure_boundary(source.inner)
    if isinstance(source, (EpochSource, ResidentSource)):
        return source.boundary_ns()
    if isinstance(source, ReplaySource):
        return 0
    raise TypeError(f"{type(source).__name__} is not a trial's source")


def _epochs(
    loader: DataLoader[Any],
    data: TrialData,
    effective: Settings,
    open_iter: OpenIter,
    to_device: ToDevice | None,
    fetch_limit_s: float,
    loader_id: str,
) -> EpochSource:
    """Epochs of the new loader, read by a thread where `background` says so."""
    to_device = to_device if effective.background == "device" else None

    def prepare(batch: Any) -> Any:
        return batch if to_device is None else to_device.move(batch)[0]

    context: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    if to_device is not None and to_device.device.type == "cuda":
        context = _same_stream(to_device.device)

    imports_script = loader.num_workers > 0 and start_method_of(effective) != "fork"
    guard = AsIfGuarded() if imports_script else None

    def open_feed() -> EpochFeed:
        feed: EpochFeed
        with guard.starting() if guard is not None else contextlib.nullcontext():
            if effective.spdl:
                feed = SpdlFeed(loader, fetch_limit_s)
            elif effective.threads:
                feed = ThreadFeed(open_iter(loader), effective.threads, fetch_limit_s)
            else:
                feed = LoaderFeed(open_iter(loader), loader.timeout)
        if effective.background in (None, "off"):
            return feed
        return BackgroundFeed(feed, prepare, fetch_limit_s, context)

    def after(stuck: bool) -> None:
        kept, loader._iterator = loader._iterator, None  # persistent workers
        shut_down(kept, stuck=stuck)
        if guard is not None:
            guard.close()

    return EpochSource(
        open_feed,
        cycle=max(1, loader.num_workers, effective.threads or 0),
        after=after,
        loader_id=loader_id,
        before_epoch=data.before_epoch,
    )


def _same_stream(device: torch.device) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """The loop's own stream, for a thread: what it copies there is ordered before its use."""
    stream = torch.cuda.current_stream(device)

    @contextlib.contextmanager
    def entered() -> Iterator[None]:
        with torch.cuda.device(device), torch.cuda.stream(stream):
            yield

    return entered


def _non_blocking(settings: Settings, transfers: tuple[TransferRecord, ...]) -> bool:
    if settings.non_blocking is not None:
        return settings.non_blocking
    return bool(settings.side_stream) or any(transfer.non_blocking for transfer in transfers)


def _n_resident(loader: DataLoader[Any], portion: float | None) -> int:
    """How many samples are to be on the device; of an iterable dataset batches."""
    iterable = isinstance(loader.dataset, IterableDataset)
    try:
        n = max(1, len(loader)) if iterable else len(loader.dataset)  # type: ignore[arg-type]
    except TypeError:
        raise TrialRefused("the dataset has no length, so whether it fits can't be told") from None
    return n if iterable or portion is None else n_first(n, portion)


def files_of(
    loader: DataLoader[Any], data: TrialData, device: torch.device, note: Note
) -> tuple[TrialData, OnTensors]:
    """`device_decode`: the data as files, and what decodes its batches there. Raises TrialRefused.

    `note` is told by how much pictures differ.
    """
    if loader.batch_sampler is None:
        raise TrialRefused("the loader makes no batches of samples (batch_size=None)")

    def made() -> tuple[EncodedFiles, OnTensors]:
        files, finish, difference = encoded(
            data.dataset, data.collate, decoding_on(device), apart=loader.num_workers > 0
        )
        note(
            "device-decode-differs",
            f"device_decode: pictures of the same draws differ by up to {difference:.2%} of their "
            "range on average from those that the dataset makes, and their random draws are made "
            "in the training process: training is the same only as far as that goes.",
        )
        return files, finish

    key = (id(data.dataset), key_of(loader.collate_fn), "device_decode")
    files, finish = made_once(loader, key, made)
    return replace(data, dataset=files, collate=joined), finish


def on_own_copy(loader: DataLoader[Any], effective: Settings, data: TrialData) -> TrialData:
    """The data to be read without workers, where the loop has some: by a copy of the dataset.

    Raises TrialRefused where it can't be copied.
    """
    in_memory = isinstance(data.dataset, (CachedDataset, RowBatches))
    if not loader.num_workers or effective.num_workers or in_memory:
        return data
    dataset, collate = own_copy(data.dataset, data.collate)
    return replace(data, dataset=dataset, collate=collate)
