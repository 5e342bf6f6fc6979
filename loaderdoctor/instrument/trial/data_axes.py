"""The data axes of a trial: which dataset, sampler and collate function its loader gets.

What is made once (cached samples, copied files, changed datasets) is kept as long as the user's
loader lives, since a trial is opened many times.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    default_collate,
)

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.batches.packing import PackingCollate, ReusingCollate, ring_for
from loaderdoctor.instrument.batches.source import OneField
from loaderdoctor.instrument.dataset.cached import CachedDataset
from loaderdoctor.instrument.dataset.dataset_files import (
    DiskCopy,
    dataset_files,
    other_place,
    redirected,
    tmpfs_place,
)
from loaderdoctor.instrument.dataset.dataset_tree import making_only
from loaderdoctor.instrument.dataset.loading_threads import N_IN_BATCH, check_threads
from loaderdoctor.instrument.dataset.rows import as_it_is, kept_batches, row_batches
from loaderdoctor.instrument.dataset.transforms import Normaliser, as_bytes, without_augmentation
from loaderdoctor.instrument.system import key_of, memory
from loaderdoctor.settings import DEFAULT_PREFETCH_FACTOR, Settings

Note = Callable[[str, str], None]  # (kind, text): something the report must say

# A cache that is filled within this time is freed after each trial, and filled again.
KEEP_CACHE_S = 1.0
# More of the dataset's pages still in memory than this after they were dropped: not cold.
MAX_WARM_SHARE = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialData:
    """What a trial's loader reads. The defaults of every axis: the user's own objects."""

    dataset: Any
    sampler: Any  # for a loader that makes its batches itself; None: its batch_sampler does
    batch_size: int | None
    collate: Any
    normalise: Normaliser | None = None
    before_epoch: Callable[[], object] | None = None  # not part of the epoch's time


MakeBatch = Callable[[TrialData], Any]


@dataclass(slots=True)
class _Made:
    """What was made of one loader's dataset."""

    datasets: dict[tuple[object, ...], Any] = field(default_factory=dict)
    copies: dict[str, DiskCopy] = field(default_factory=dict)
    checked: set[tuple[object, ...]] = field(default_factory=set)  # whose batches were compared


# By the id of the dataset: loaders are often built again each epoch, and datasets that compare by
# value (arrays, dataclasses) have no hash. One that can't be referred to weakly (a list) is told by
# its loader.
_made: dict[int, _Made] = {}


def trial_data(
    loader: DataLoader[Any],
    settings: Settings,
    note: Note,
    *,
    first_made: MakeBatch,
    forks: bool = True,
    cache_limit_s: float | None = None,
) -> TrialData:
    """The data of a trial with these settings. Raises TrialRefused with the reason.

    `first_made` makes a first batch of map-style data, where the loop makes its own. `forks`: its
    workers are forked, or there are none. `cache_limit_s`: as the limit of `CachedDataset`.
    """
    owner = _owner(loader)
    made = _made_of(owner)
    apart = loader.num_workers > 0
    data = TrialData(
        dataset=loader.dataset,
        sampler=None if _own_batches(loader) else loader.sampler,
        batch_size=loader.batch_size,
        collate=loader.collate_fn,
    )
    if settings.storage not in (None, "original"):
        data = _stored(data, owner, settings.storage or "", made, note, apart=apart)
    if settings.augment not in (None, "on"):
        dataset = _once(
            made,
            (settings.storage, settings.augment),
            lambda: without_augmentation(data.dataset, settings.augment or "", apart=apart),
        )
        data = replace(data, dataset=dataset)
    if settings.uint8:
        dataset, normalise = _once(
            made,
            (settings.storage, settings.augment, key_of(loader.collate_fn), "uint8"),
            lambda: as_bytes(data.dataset, _collate_of(loader), apart=apart),
        )
        data = replace(data, dataset=dataset, normalise=normalise)
    if settings.batched:
        data = _batched(loader, data, settings, made, note, cache_limit_s)
    elif settings.cache:
        cached = _cached(loader, data.dataset, settings, made, note, cache_limit_s)
        data = replace(data, dataset=cached)
    if settings.portion is not None and settings.portion < 1:
        data = replace(data, sampler=_first_part(loader, settings.portion))
    if settings.batch_size is not None and settings.batch_size != loader.batch_size:
        if loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler:
            raise TrialRefused("the loader's batches are made by the script, not by batch_size")
        data = replace(data, batch_size=settings.batch_size)
    if settings.fields not in (None, "all"):
        data = _one_input(data, settings, made, note, forks=forks, apart=apart)
    if settings.threads:
        _borne_by_threads(loader, data, settings.threads, made, note)
    if settings.packed:
        data = _packed(loader, data, made, first_made)
    if settings.reuse_buffers:
        data = _in_ring(loader, data, settings, first_made, forks=forks)
    return data


def release(loader: DataLoader[Any]) -> None:
    """Forget what was made of this loader's data, and remove copies of its files."""
    made = _made.pop(id(_owner(loader)), None)
    for copy in made.copies.values() if made is not None else ():
        copy.remove()


def _owner(loader: DataLoader[Any]) -> Any:
    try:
        weakref.ref(loader.dataset)
    except TypeError:
        return loader
    return loader.dataset


def _made_of(owner: Any) -> _Made:
    made = _made.get(id(owner))
    if made is None:
        made = _made[id(owner)] = _Made()
        weakref.finalize(owner, _made.pop, id(owner), None).atexit = False
    return made


def _own_batches(loader: DataLoader[Any]) -> bool:
    """Whether a batch_sampler of the user's own decides what a batch is."""
    return loader.batch_size is None and loader.batch_sampler is not None


def _collate_of(loader: DataLoader[Any]) -> Any:
    """The collate function as a batch of one is made; without batching a sample is the batch."""
    if loader.batch_size is None and loader.batch_sampler is None:
        return lambda samples: loader.collate_fn(samples[0])
    return loader.collate_fn


def made_once(loader: DataLoader[Any], key: tuple[object, ...], make: Callable[[], Any]) -> Any:
    """What `make` makes of this loader's dataset: kept, and given again for the same key."""
    return _once(_made_of(_owner(loader)), key, make)


def _once(made: _Made, key: tuple[object, ...], make: Callable[[], Any]) -> Any:
    if key not in made.datasets:
        made.datasets[key] = make()
    return made.datasets[key]


def _cached(
    loader: DataLoader[Any],
    dataset: Any,
    settings: Settings,
    made: _Made,
    note: Note,
    limit_s: float | None,
) -> Any:
    n = None
    batched = loader.batch_sampler is not None
    if not batched and isinstance(loader.sampler, BatchSampler):
        raise TrialRefused(
            "the loader asks the dataset for whole batches: there is no sample to keep"
        )
    # torch's own collate function copies; without batching the loop gets the sample itself.
    copies = not batched or loader.collate_fn is not default_collate
    # Changed datasets are kept, so ids stay.
    key = (id(dataset), settings.portion, limit_s is not None, copies, batched, "cache")
    if key in made.datasets:
        return made.datasets[key]
    if settings.portion is not None and hasattr(dataset, "__len__"):
        n = n_first(len(dataset), settings.portion)
    apart = loader.num_workers > 0
    cached = CachedDataset(dataset, n, limit_s=limit_s, copies=copies, batched=batched, apart=apart)
    if limit_s is not None and cached.n_kept < (n or len(cached)):
        whole_s = cached.fill_s * (n or len(cached)) / cached.n_kept
        note(
            "cache-in-part",
            f"cache: tried with the first {cached.n_kept:,} of {len(cached):,} samples in memory, "
            f"given in the others' place. Making all of them takes about {whole_s:.0f} s, once.",
        )
    if cached.fill_s > KEEP_CACHE_S or limit_s is not None:
        made.datasets[key] = cached
    return cached


def _batched(
    loader: DataLoader[Any],
    data: TrialData,
    settings: Settings,
    made: _Made,
    note: Note,
    limit_s: float | None,
) -> TrialData:
    """Whole batches of the dataset's rows; with `cache`, of its samples as they were first made."""
    if loader.batch_sampler is None:
        raise TrialRefused("the loader makes no batches of samples (batch_size=None)")
    size = settings.batch_size or loader.batch_size or N_IN_BATCH
    # What is made is kept while the loop's loader is: a dataset changed in place is read anew by
    # its arrays, one whose arrays are exchanged is not.
    kept = (settings.portion, limit_s is not None) if settings.cache else None
    key = (id(data.dataset), key_of(loader.collate_fn), kept, "batched")

    def whole() -> Any:
        if not settings.cache:
            return row_batches(
                data.dataset, loader.collate_fn, size, on_copy=loader.num_workers > 0
            )
        samples = _cached(loader, data.dataset, settings, _Made(), note, limit_s)
        return kept_batches(samples, loader.collate_fn, size)

    return replace(data, dataset=_once(made, key, whole), collate=as_it_is)


def _borne_by_threads(
    loader: DataLoader[Any], data: TrialData, n: int, made: _Made, note: Note
) -> None:
    """Raises TrialRefused where threads would not make the same batches. Looked at once."""
    key = (id(data.dataset), key_of(loader.collate_fn), n, "threads")
    if key not in made.checked:
        check_threads(loader, n, note, dataset=data.dataset, collate=data.collate)
        made.checked.add(key)


def _packed(
    loader: DataLoader[Any], data: TrialData, made: _Made, first_made: MakeBatch
) -> TrialData:
    """Small tensors as one; a batch is compared here, and the first of every process there."""
    key = (id(data.dataset), key_of(loader.collate_fn), "packed")
    if key not in made.checked and not isinstance(data.dataset, IterableDataset):
        PackingCollate(as_it_is)(first_made(data))
        made.checked.add(key)
    return replace(data, collate=PackingCollate(data.collate))


def _in_ring(
    loader: DataLoader[Any],
    data: TrialData,
    settings: Settings,
    first_made: MakeBatch,
    *,
    forks: bool,
) -> TrialData:
    """Batches in shared buffers that are used again; their size is that of a first batch."""
    if not forks:
        raise TrialRefused("workers that are not forked don't inherit the buffers")
    if isinstance(data.dataset, IterableDataset):
        raise TrialRefused("of an iterable dataset no batch can be made to see how large they are")
    own = loader.num_workers if settings.num_workers is None else settings.num_workers
    ahead = settings.prefetch_factor or loader.prefetch_factor or DEFAULT_PREFETCH_FACTOR
    ring = ring_for(first_made(data), own, ahead)
    before = data.before_epoch

    def new_epoch() -> None:
        ring.new_epoch()
        if before is not None:
            before()

    return replace(data, collate=ReusingCollate(data.collate, ring), before_epoch=new_epoch)


def _one_input(
    data: TrialData, settings: Settings, made: _Made, note: Note, *, forks: bool, apart: bool
) -> TrialData:
    field, key = settings.fields or "", (id(data.dataset), settings.fields, "fields")
    alone = None
    if forks:
        alone = _once(
            made, key, lambda: making_only(data.dataset, field, data.collate, apart=apart)
        )
    if alone is None:
        note(
            "other-inputs-made",
            f"fields={field}: samples are still made whole (their __getitem__, or the collate "
            "function, can't be cut down to one input); only what comes after is saved.",
        )
    dataset = data.dataset if alone is None else alone
    return replace(data, dataset=dataset, collate=OneField(data.collate, field))


def _stored(
    data: TrialData, owner: Any, storage: str, made: _Made, note: Note, *, apart: bool
) -> TrialData:
    original = data.dataset
    found = _once(made, ("files",), lambda: dataset_files(original, apart=apart))
    if storage == "cold":
        files = found.files
    else:
        place = tmpfs_place() if storage == "tmpfs" else other_place(storage)
        if storage not in made.copies:
            made.copies[storage] = DiskCopy(found, place)
            weakref.finalize(owner, made.copies[storage].remove)
        copy = made.copies[storage]
        files = copy.files
        dataset = _once(
            made, (storage, None), lambda: redirected(original, found, copy.path, apart=apart)
        )
        data = replace(data, dataset=dataset)
        if storage == "tmpfs":
            return data
    if not memory.can_drop_pages():
        if storage == "cold":
            raise TrialRefused("this system doesn't let a process drop pages of files")
        note(
            "storage-warm", f"storage={storage}: read from memory, since its pages can't be dropped"
        )
        return data
    cached = memory.drop_pages(files)
    if cached.share > MAX_WARM_SHARE:
        stayed = f"{cached.n_in_memory} of {cached.n_pages} pages of the dataset's files"
        if storage == "cold":
            raise TrialRefused(f"{stayed} stayed in memory though they were dropped")
        note("storage-warm", f"storage={storage}: {stayed} stayed in memory")
    return replace(data, before_epoch=lambda: memory.drop_pages(files))


class FirstSamples(Sampler[int]):
    """`portion`: the indexes below `n` of a sampler of the user's own, in its order."""

    def __init__(self, inner: Any, n: int) -> None:
        self._inner = inner
        self._n = n

    def __iter__(self) -> Iterator[int]:
        return (index for index in self._inner if index < self._n)

    def __len__(self) -> int:
        """About: samplers that draw more or fewer samples than there are don't say which."""
        return min(self._n, len(self._inner))


def _first_part(loader: DataLoader[Any], portion: float) -> Sampler[int] | Any:
    """A sampler over the first `portion` of the loader's dataset, otherwise like the loader's own.

    Raises TrialRefused where samples can't be told by number.
    """
    dataset: Any = loader.dataset
    if isinstance(dataset, IterableDataset):
        raise TrialRefused("the dataset is an iterable one: its first part can't be told")
    if isinstance(loader.sampler, BatchSampler):
        raise TrialRefused("the loader asks the dataset for whole batches")
    if _own_batches(loader):
        raise TrialRefused("its own batch_sampler decides which samples make a batch")
    n = n_first(len(dataset), portion)
    sampler: Any = loader.sampler
    if type(sampler) is SequentialSampler:
        return SequentialSampler(range(n))
    if type(sampler) is RandomSampler and sampler._num_samples is None:
        return RandomSampler(range(n), replacement=sampler.replacement, generator=sampler.generator)
    return FirstSamples(sampler, n)


def n_first(n: int, portion: float) -> int:
    """How many of `n` samples the portion is, at least one."""
    return max(1, math.ceil(portion * n - 1e-9))
