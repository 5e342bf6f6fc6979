"""Why a trial is refused: data that would be lost or repeated, a crash foretold, or no room."""

from __future__ import annotations

import multiprocessing
import weakref
from typing import Any

import psutil
import torch
from torch.utils.data import DataLoader, IterableDataset

from loaderdoctor.combinations import invalid_reason
from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.dataset.iteration import one_pass_reason, shards_itself
from loaderdoctor.instrument.dataset.safety import TrialPickle, pickled_parts
from loaderdoctor.instrument.system.machine import open_files_limit
from loaderdoctor.instrument.system.memory import available_bytes, shm_free_bytes
from loaderdoctor.instrument.trial.main_guard import can_be_guarded, main_is_guarded
from loaderdoctor.instrument.wire.records import TensorRecord
from loaderdoctor.settings import (
    FILES_PER_WORKER,
    FORKED_WORKER_BYTES,
    SPAWNED_WORKER_BYTES,
    Settings,
    StartMethod,
)

# Of /dev/shm and of free memory, what a trial may fill: others live there too.
MAX_SHARE_OF_ROOM = 0.90

_pickles: weakref.WeakKeyDictionary[DataLoader[Any], TrialPickle] = weakref.WeakKeyDictionary()


def check(
    loader: DataLoader[Any],
    settings: Settings,
    effective: Settings,
    *,
    has_accelerator: bool,
    batch: tuple[TensorRecord, ...],
    n_alike: int = 1,
) -> None:
    """Raise TrialRefused where the trial must not be run.

    `settings` is what the trial changes, `effective` what its loader would have. `batch` is one
    batch of the loader, for its size; empty: not known. `n_alike` loaders must have room together.
    """
    workers = effective.num_workers or 0
    asked = settings if settings.resident else settings.over(Settings(num_workers=workers))
    reason = invalid_reason(asked, has_accelerator=has_accelerator)
    reason = reason or one_pass_reason(loader)
    if reason is None and workers:
        reason = (
            _duplicates(loader, workers)
            or _crashes(loader, effective)
            or _too_large(loader, effective, batch, n_alike)
        )
    if reason is not None:
        raise TrialRefused(reason)


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


def _duplicates(loader: DataLoader[Any], workers: int) -> str | None:
    if not isinstance(loader.dataset, IterableDataset):
        return None
    # As many as the user's own workers repeat no more than the user's run does already.
    if workers <= max(1, loader.num_workers) or shards_itself(loader):
        return None
    return (
        f"{type(loader.dataset).__name__} doesn't share its data between workers: "
        f"{workers} of them would each give all of it"
    )


def _crashes(loader: DataLoader[Any], effective: Settings) -> str | None:
    method = start_method_of(effective)
    if method == "fork":
        cuda_used: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        if cuda_used and _pickled(loader).cuda_tensors:
            return "the dataset holds CUDA tensors, which a forked worker can't use"
        return None
    parts = _pickled(loader)
    if parts.pickles is False:
        return f"the dataset or collate_fn can't be sent to a worker by {method}: {parts.error}"
    if not main_is_guarded() and not can_be_guarded():
        return (
            f"a worker started by {method} would run the script again: it has no "
            'if __name__ == "__main__" guard'
        )
    return None


def _too_large(
    loader: DataLoader[Any], effective: Settings, batch: tuple[TensorRecord, ...], n_alike: int
) -> str | None:
    workers = (effective.num_workers or 0) * n_alike
    spawned = start_method_of(effective) != "fork"
    queued = (effective.queue_length + 1) * n_alike
    in_shm = queued * sum(tensor.n_bytes for tensor in batch)
    private = workers * (SPAWNED_WORKER_BYTES if spawned else FORKED_WORKER_BYTES)
    if spawned:
        parts = _pickled(loader)
        in_shm += parts.shared_bytes
        private += workers * parts.n_bytes
    free = shm_free_bytes()
    if free is not None and in_shm > MAX_SHARE_OF_ROOM * free:
        return f"/dev/shm is too small: {in_shm} bytes of batches may wait there, {free} are free"
    available = available_bytes()
    if available is not None and in_shm + private > MAX_SHARE_OF_ROOM * available:
        return f"{workers} workers would take about {in_shm + private} of {available} free bytes"
    limit = open_files_limit()
    if limit is not None:
        files = psutil.Process().num_fds() + workers * FILES_PER_WORKER
        files += queued * max(1, len(batch))
        if files > limit:
            return f"up to {files} files would be open at once and {limit} may be"
    return None


def _pickled(loader: DataLoader[Any]) -> TrialPickle:
    if loader not in _pickles:
        _pickles[loader] = pickled_parts(loader)
    return _pickles[loader]
