"""Why a trial is refused: what torch does not accept, or what it would break (`hazards`)."""

from __future__ import annotations

import multiprocessing
import weakref
from typing import Any

import psutil
import torch
from torch.utils.data import DataLoader, IterableDataset

from loaderdoctor.combinations import invalid_reason
from loaderdoctor.errors import TrialRefused
from loaderdoctor.hazards import Change, FeedBatch, Room, container_words, hazard
from loaderdoctor.instrument.dataset.containers import containers
from loaderdoctor.instrument.dataset.iteration import one_pass_reason, shards_itself
from loaderdoctor.instrument.dataset.safety import TrialPickle, open_handles, pickled_parts
from loaderdoctor.instrument.system.machine import (
    available_bytes,
    local_ranks,
    open_files_limit,
    shm_free_bytes,
)
from loaderdoctor.instrument.trial.worker_starts import can_be_guarded, main_is_guarded
from loaderdoctor.instrument.wire.records import ContainerRecord, SafetyRecord, TensorRecord
from loaderdoctor.settings import DEFAULT_PREFETCH_FACTOR, Settings, StartMethod

_pickles: weakref.WeakKeyDictionary[DataLoader[Any], TrialPickle] = weakref.WeakKeyDictionary()
_containers: weakref.WeakKeyDictionary[DataLoader[Any], tuple[ContainerRecord, ...]] = (
    weakref.WeakKeyDictionary()
)
_NOT_PICKLED = TrialPickle(pickles=None, error=None, shared_bytes=0, n_bytes=0, cuda_tensors=False)


def check(
    loader: DataLoader[Any],
    settings: Settings,
    effective: Settings,
    *,
    has_accelerator: bool,
    batch: tuple[TensorRecord, ...],
    n_alike: int = 1,
    continues: bool = False,
) -> None:
    """Raise TrialRefused where the trial must not be run.

    `settings` is what the trial changes, `effective` what its loader would have. `batch` is one
    batch of the loader, for its size; empty: not known. `n_alike` loaders must have room together.
    `continues`: the training goes on with the loop's own stream of indexes, which is not opened
    again, so that a place that is lost when it is matters nothing.
    """
    workers = effective.num_workers or 0
    asked = settings if settings.resident else settings.over(Settings(num_workers=workers))
    reason = invalid_reason(asked, has_accelerator=has_accelerator)
    if reason is None:
        found = hazard(_change(loader, settings, effective, batch, n_alike, continues=continues))
        reason = found.reason if found is not None else None
    if reason is not None:
        raise TrialRefused(reason)


def _change(
    loader: DataLoader[Any],
    settings: Settings,
    effective: Settings,
    batch: tuple[TensorRecord, ...],
    n_alike: int,
    *,
    continues: bool,
) -> Change:
    """What is known of this trial; only what its kind of workers makes worth asking."""
    workers, method = effective.num_workers or 0, start_method_of(effective)
    forks, iterable = method == "fork", isinstance(loader.dataset, IterableDataset)
    cuda_used: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    parts = _pickled(loader) if workers and (cuda_used or not forks) else _NOT_PICKLED
    copied = _copied(loader) if workers > loader.num_workers else ()
    one_pass = None if continues else one_pass_reason(loader)
    each = FeedBatch(cpu_bytes=sum(tensor.n_bytes for tensor in batch), n_tensors=len(batch))
    return Change(
        settings=settings,
        whole=effective,
        had=loader.num_workers,
        had_queue=loader.prefetch_factor or DEFAULT_PREFETCH_FACTOR,
        alongside=True,
        dataset=type(loader.dataset).__name__,
        iterable=iterable,
        safety=SafetyRecord(
            pickles=parts.pickles,
            pickle_error=parts.error,
            cuda_tensors=parts.cuda_tensors,
            unsharded_iterable=iterable and workers > 1 and not shards_itself(loader),
            open_handles=open_handles(loader.dataset) if workers or settings.threads else (),
            one_pass=one_pass is not None,
            one_pass_reason=one_pass,
        ),
        start_method=method,
        main_runs_again=not forks and not main_is_guarded() and not can_be_guarded(),
        room=Room(
            shm_free_bytes=shm_free_bytes(),
            available_bytes=available_bytes(),
            open_files_limit=open_files_limit(),
            open_files=psutil.Process().num_fds(),
            n_ranks=local_ranks() or 1,
        ),
        batches=(each,) * n_alike,
        n_new=workers * n_alike,
        shared_bytes=parts.shared_bytes,
        pickled_bytes=parts.n_bytes,
        container_bytes=sum(x.n_bytes for x in copied),
        container=container_words(copied[0]) if copied else None,
    )


def loader_settings(loader: DataLoader[Any]) -> Settings:
    """The loader's own settings; worker-only axes are unset at 0 workers."""
    workers = loader.num_workers
    method: StartMethod | None = None
    if workers:
        context = loader.multiprocessing_context
        name = context.get_start_method() if context is not None else default_start_method()
        method = name if name in ("fork", "spawn", "forkserver") else None  # type: ignore[assignment]
    return Settings(
        num_workers=workers,
        prefetch_factor=loader.prefetch_factor if workers else None,
        persistent_workers=loader.persistent_workers if workers else None,
        pin_memory=bool(loader.pin_memory),
        in_order=getattr(loader, "in_order", None) if workers else None,
        start_method=method,
    )


def default_start_method() -> str:
    """The start method workers would use now, without fixing it as asking for it would."""
    chosen = multiprocessing.get_start_method(allow_none=True)
    return chosen or multiprocessing.get_all_start_methods()[0]


def start_method_of(effective: Settings) -> str:
    """How the workers would be started: as set, else as the process is set up."""
    return effective.start_method or default_start_method()


def _pickled(loader: DataLoader[Any]) -> TrialPickle:
    if loader not in _pickles:
        _pickles[loader] = pickled_parts(loader)
    return _pickles[loader]


def _copied(loader: DataLoader[Any]) -> tuple[ContainerRecord, ...]:
    """Containers that each worker comes to copy.

    Asked where there are more workers than the loop has: with as many or fewer, what the loop's own
    copy is given back when they go.
    """
    if loader not in _containers:
        try:
            _containers[loader] = containers(loader.dataset)
        except Exception:  # foreign attributes: nothing is known, as with none
            _containers[loader] = ()
    return _containers[loader]
