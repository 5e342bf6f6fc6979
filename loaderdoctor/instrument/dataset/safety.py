"""What would break a user's run if its loader were opened again, or with other workers.

Runs in the measuring process, before any trial. Nothing here draws a sample, copies a dataset or
calls the user's `__iter__`: objects are looked at, code is read, pickling goes to nowhere.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from io import BytesIO, IOBase, StringIO
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from loaderdoctor.instrument.batches.batch_tree import UnsupportedBatch, tensors
from loaderdoctor.instrument.dataset.iteration import one_pass_reason, shards_itself
from loaderdoctor.instrument.dataset.pickling import TrialPickle, trial_pickle
from loaderdoctor.instrument.wire.records import SafetyRecord, TensorRecord

# Modules whose objects are handles on open files: a forked worker shares the file's position or
# the library's state with its parent and siblings.
_HANDLE_MODULES = frozenset(
    {"h5py", "lmdb", "sqlite3", "zipfile", "tarfile", "tables", "netCDF4", "rasterio", "mmap",
     "_sqlite3", "pyarrow", "cv2"}
)  # fmt: skip
_HANDLE_CLASSES = frozenset(
    {"File", "Group", "Dataset", "Environment", "Transaction", "Connection", "Cursor", "ZipFile",
     "TarFile", "DatasetReader", "mmap", "NativeFile", "OSFile", "MemoryMappedFile",
     "VideoCapture"}
)  # fmt: skip


def safety(loader: DataLoader[Any]) -> SafetyRecord:
    """Everything checked about one loader, in about two seconds at most."""
    parts = pickled_parts(loader)
    reason = one_pass_reason(loader)
    unsharded: bool | None = False
    if isinstance(loader.dataset, IterableDataset):
        unsharded = not shards_itself(loader)
    return SafetyRecord(
        pickles=parts.pickles,
        pickle_error=parts.error,
        cuda_tensors=parts.cuda_tensors,
        unsharded_iterable=unsharded,
        open_handles=open_handles(loader.dataset),
        one_pass=reason is not None,
        one_pass_reason=reason,
    )


def pickled_parts(loader: DataLoader[Any]) -> TrialPickle:
    """Whether what a spawned worker needs can be pickled, and how large that is."""
    return trial_pickle((loader.dataset, loader.collate_fn, loader.worker_init_fn))


def open_handles(dataset: object) -> tuple[str, ...]:
    """Attributes that hold open files, databases or archives: `images (h5py.File)`."""
    found: list[str] = []
    for name, value in _attributes(dataset):
        if _is_handle(value):
            kind = type(value)
            found.append(f"{name} ({kind.__module__.split('.')[0].lstrip('_')}.{kind.__name__})")
    return tuple(found)


def describe_batch(batch: object) -> tuple[TensorRecord, ...]:
    """The tensors of a batch as the loop receives it; empty for a batch that can't be walked."""
    try:
        found = tensors(batch)
    except UnsupportedBatch:
        return ()
    return tuple(
        TensorRecord(
            path=path,
            shape=tuple(tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
            n_bytes=tensor.numel() * tensor.element_size(),
            pinned=_pinned(tensor),
            device=str(tensor.device),
        )
        for path, tensor in found
    )


def _pinned(tensor: torch.Tensor) -> bool:
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        return False
    return torch.cuda.is_available() and tensor.is_pinned()


def _attributes(owner: object) -> Iterator[tuple[str, object]]:
    """Attributes of an object, and of what they hold: one level deeper, few of a long list."""
    for name, value in list(getattr(owner, "__dict__", {}).items()):
        yield name, value
        if isinstance(value, dict):
            yield from ((f"{name}[{key!r}]", item) for key, item in list(value.items())[:16])
        elif isinstance(value, (list, tuple)):
            yield from ((f"{name}[{i}]", item) for i, item in enumerate(value[:16]))
        elif type(value).__module__ != "builtins" and not isinstance(value, (type, torch.Tensor)):
            inner = getattr(value, "__dict__", {})
            if isinstance(inner, dict):
                yield from ((f"{name}.{key}", item) for key, item in list(inner.items())[:64])


def _is_handle(value: object) -> bool:
    if isinstance(value, IOBase):
        return not isinstance(value, (BytesIO, StringIO)) and not value.closed
    if isinstance(value, sqlite3.Connection):
        return True
    return any(
        kind.__module__.split(".")[0] in _HANDLE_MODULES and kind.__name__ in _HANDLE_CLASSES
        for kind in type(value).__mro__
    )
