"""The DataLoaders seen in the run, told apart by where each was built, and what each is."""

from __future__ import annotations

import contextlib
import functools
import operator
import os
import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import structs

from loaderdoctor.instrument.session.feed import bypass, bypassed
from loaderdoctor.instrument.session.loader_state import LoaderState
from loaderdoctor.instrument.system import ByObject, Site, user_site
from loaderdoctor.instrument.wire.records import LoaderRecord

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

# Loaders told apart that one line builds; a line that builds more builds them by some rule.
MAX_SAME_PLACE = 8


class LoaderRegistry:
    """Every DataLoader built or iterated, by object, without keeping any alive."""

    def __init__(self) -> None:
        self.states: list[LoaderState] = []
        self.changed_in_passes = set[str]()  # attributes that datasets change themselves
        self.any_built = False  # a script with one may train for long before it iterates it
        self._sites = ByObject[Site]()
        # Where the user built the latest loader over a dataset, by the dataset's id.
        self._by_dataset: dict[int, tuple[weakref.ref[Any], Site]] = {}
        self._by_loader = ByObject[LoaderState]()
        self._lock = threading.Lock()

    def built(self, loader: DataLoader[Any]) -> None:
        self.any_built = True
        self._sites[loader] = user_site(building=loader)

    def complete(self, loader: DataLoader[Any]) -> None:
        """Construction is over. A library's loader over the user's dataset is the user's loader.

        Lightning and accelerate build one of their own from that which they were given.
        """
        site, dataset = self._sites.get(loader), loader.dataset
        if site is None:
            return
        known = self._by_dataset.get(id(dataset))
        if site.library is None:
            with contextlib.suppress(TypeError):  # a list can't be referred to weakly
                self._by_dataset[id(dataset)] = (weakref.ref(dataset), site)
        elif known is not None and known[0]() is dataset:
            self._sites[loader] = known[1]

    def state_of(self, loader: DataLoader[Any]) -> LoaderState:
        """The state of a loader, made at its first iteration.

        A loader rebuilt at the same place after the earlier one died (each epoch, each step) is
        the same loader to the report; a second one alive at that place gets "#2", and so does one
        that a helper builds there for another caller.
        """
        known = self._by_loader.get(loader)
        if known is not None:
            return known
        site = self._sites.get(loader) or user_site()
        record = loader_record(loader, site)  # len(dataset), in which loaders may be read too
        with self._lock:
            known = self._by_loader.get(loader)  # another thread may have been here meanwhile
            if known is not None:
                return known
            same = [s for s in self.states if s.site.label == site.label]
            dead = [s for s in same if s.loader() is None]
            state = _earlier(record, dead, len(same))
            if state is None:
                id_ = f"{site.label}#{len(same) + 1}" if same else site.label
                state = LoaderState(
                    index=len(self.states),
                    id=id_,
                    site=site,
                    loader=weakref.ref(loader),
                    record=structs.replace(record, id=id_),
                )
                self.states.append(state)
            else:
                state.loader = weakref.ref(loader)
                state.rebuilt = True
                before = state.record
                state.record = structs.replace(
                    record, id=state.id, callers=before.callers, safety=before.safety
                )
            self._by_loader[loader] = state
            return state

    def taken_over(self, loader: DataLoader[Any]) -> bool:
        """Whether passes over this loader are no longer torch's own, for good."""
        known = self._by_loader.get(loader)
        return known is not None and known.handed is not None and known.handed.took_over

    def id_of(self, loader: DataLoader[Any]) -> str | None:
        """LoaderRecord.id of a loader of the script; None for one that we opened ourselves."""
        known = self._by_loader.get(loader)
        if known is None and not bypassed():
            known = self.state_of(loader)
        return known.id if known is not None else None

    def spare(self, loader: DataLoader[Any]) -> DataLoader[Any]:
        """`spare_of` a loader of the script, known as that loader."""
        spare = spare_of(loader)
        self.same(spare, self.state_of(loader))
        return spare

    def same(self, loader: DataLoader[Any], state: LoaderState) -> None:
        """A loader of ours that is known as that of the script's."""
        self._by_loader[loader] = state

    def records(self) -> tuple[LoaderRecord, ...]:
        """All loaders iterated so far, by index."""
        return tuple(s.full_record() for s in self.states)

    def files(self) -> frozenset[str]:
        """Where loaders were built and through which calls; names of files that read them."""
        paths = {path for x in self.states for path in (x.site.file, *dict(x.site.callers))}
        loops = {x.loop.rpartition(":")[0] for x in self.states if x.loop is not None}
        return frozenset(map(os.path.realpath, paths)) | loops


def _earlier(record: LoaderRecord, dead: Sequence[LoaderState], n_same: int) -> LoaderState | None:
    """The one of these states of one place that this loader is rebuilt of; None: of none.

    The same calls lead there, or the same samples are drawn alike. A dataset that grows from epoch
    to epoch stays one loader, and so does one whose batches grow; training and validation through
    one helper are two.
    """
    same_calls = [s for s in dead if s.record.callers == record.callers]
    alike = [s for s in dead if _drawn_alike(s.record, record)]
    if not alike:
        alike = [s for s in same_calls if _resized(s.record, record)]
    for state in alike:
        if state in same_calls:
            return state
    for state in alike:
        if state.record.n_samples == record.n_samples:
            return state
    return dead[0] if dead and n_same >= MAX_SAME_PLACE else None


def _resized(a: LoaderRecord, b: LoaderRecord) -> bool:
    """Whether they give the same samples, drawn alike, in batches of another size."""
    resized = structs.replace(a, batch_size=b.batch_size)
    return a.n_samples == b.n_samples and _drawn_alike(resized, b)


def _drawn_alike(a: LoaderRecord, b: LoaderRecord) -> bool:
    return (a.kind, a.dataset, a.batch_size, a.sampler) == (
        b.kind, b.dataset, b.batch_size, b.sampler
    )  # fmt: skip


def loader_record(loader: DataLoader[Any], site: Site) -> LoaderRecord:
    """What a loader built there is, without iterating it and without changing it."""
    # Imports torch, which is the script's to import first: its environment still counts then.
    from loaderdoctor.instrument.dataset.dataset_code import collate_library
    from loaderdoctor.instrument.trial.trial_checks import loader_settings

    dataset = loader.dataset
    iterable = _is_iterable(loader)
    sampler = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    if type(sampler).__name__ == "BatchSampler":
        sampler = getattr(sampler, "sampler", sampler)
    return LoaderRecord(
        id=site.label,
        role="other",
        code=site.code,
        callers=tuple((os.path.realpath(file), line) for file, line in site.callers),
        library=site.library,
        settings=loader_settings(loader),
        kind="iterable" if iterable else "map",
        dataset=type(dataset).__name__,
        n_samples=_length(dataset),
        batch_size=loader.batch_size or _own_size(loader.batch_sampler),
        steps_per_epoch=steps_per_epoch(loader),
        sampler="" if iterable else type(sampler).__name__,
        n_indices=None if iterable else _length(sampler),
        collate=getattr(loader.collate_fn, "__name__", type(loader.collate_fn).__name__),
        collate_library=collate_library(loader.collate_fn),
        has_init=loader.worker_init_fn is not None,
    )


def spare_of(loader: DataLoader[Any]) -> DataLoader[Any]:
    """A loader of the same make over the same objects, without what a class of its own adds.

    It holds no iterator: kept by one, it makes no cycle that would keep workers alive.
    """
    from torch.utils.data import DataLoader

    spare: DataLoader[Any] = object.__new__(DataLoader)
    known = _plain_attributes()
    spare.__dict__.update((k, v) for k, v in loader.__dict__.items() if k in known)
    spare.__dict__["_iterator"] = None
    return spare


@functools.cache
def _plain_attributes() -> frozenset[str]:
    from torch.utils.data import DataLoader

    with bypass():
        return frozenset(vars(DataLoader([0])))  # type: ignore[arg-type]  # a list is a dataset


def steps_per_epoch(loader: DataLoader[Any]) -> int | None:
    """Batches in an epoch. Not len(loader): on an iterable that changes torch's warnings."""
    if not _is_iterable(loader):
        return _length(loader._index_sampler)
    n = _length(loader.dataset)
    if n is None or loader.batch_size is None:
        return n
    return n // loader.batch_size if loader.drop_last else -(-n // loader.batch_size)


def _is_iterable(loader: DataLoader[Any]) -> bool:
    from torch.utils.data import IterableDataset

    return isinstance(loader.dataset, IterableDataset)


def _own_size(batch_sampler: Any) -> int | None:
    """The size of its batches; None where it has none that is one number."""
    try:
        return operator.index(batch_sampler.batch_size)
    except Exception:  # the user's own property may raise anything
        return None


def _length(thing: object) -> int | None:
    try:
        return len(thing)  # type: ignore[arg-type]  # the TypeError is the answer
    except Exception:  # the user's own __len__ may raise anything
        return None
