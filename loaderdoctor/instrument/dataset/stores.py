"""What a dataset's samples are made from: arrays, lists and tables among its attributes.

Runs in the measuring process. Objects are looked at by their type; no sample is made, and of a
list only the first entry is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import IterableDataset

from loaderdoctor.instrument.dataset.augment import transform_name
from loaderdoctor.instrument.wire.records import Normalisation, StoreRecord
from loaderdoctor.instrument.workers.transform_probe import find_composes

MAX_STORES = 8
MAX_DEPTH = 3  # Subset -> dataset -> …
# Classes that hold rows, by package and name: none of them need be installed.
_TABLES = {
    ("pandas", "DataFrame"): "frame",
    ("pandas", "Series"): "frame",
    ("h5py", "Dataset"): "h5py",
    ("pyarrow", "Table"): "arrow",
    ("pyarrow", "ChunkedArray"): "arrow",
    ("datasets", "Dataset"): "arrow",
}


def stores(dataset: object) -> tuple[StoreRecord, ...]:
    """Attributes with an entry for each sample, of the dataset and of those it wraps."""
    if isinstance(dataset, IterableDataset):
        return ()
    return tuple(_stores(dataset))[:MAX_STORES]


def normalisation(dataset: object) -> Normalisation | None:
    """Mean and deviation of the one Normalize among the dataset's transforms, else None."""
    steps = [t for c in find_composes(dataset) for t in vars(c)["transforms"]]
    try:
        found = {
            Normalisation(mean=_floats(step.mean), std=_floats(step.std))
            for step in steps
            if transform_name(step) == "Normalize"
        }
    except (AttributeError, TypeError, ValueError):  # another library's, or the user's own
        return None
    return found.pop() if len(found) == 1 else None


def _stores(dataset: object) -> Iterator[StoreRecord]:
    holder: Any = dataset
    prefix = ""
    for _ in range(MAX_DEPTH):
        attributes = getattr(holder, "__dict__", None)
        if not isinstance(attributes, dict):
            return
        try:
            n_samples = len(holder)
        except (TypeError, NotImplementedError):
            return
        for name, value in list(attributes.items()):
            if isinstance(name, str) and name.isidentifier():
                store = _store(prefix + name, value, n_samples)
                if store is not None:
                    yield store
        holder, prefix = attributes.get("dataset"), f"{prefix}dataset."


def _store(path: str, value: Any, n_samples: int) -> StoreRecord | None:
    """The record of one attribute; None where it isn't known to hold an entry for each sample."""
    if isinstance(value, (Tensor, np.ndarray)):
        if value.ndim == 0 or value.shape[0] != n_samples:
            return None
        is_tensor = isinstance(value, Tensor)
        if value.dtype == object:
            return StoreRecord(path=path, kind="list", entry=_entry(value[0]))
        return StoreRecord(
            path=path,
            kind="tensor" if is_tensor else "array",
            shape=tuple(int(n) for n in value.shape),
            dtype=str(value.dtype).removeprefix("torch."),
            n_bytes=int(value.nbytes),
        )
    if type(value) in (list, tuple):
        entry = _entry(value[0]) if value else ""
        return StoreRecord(path=path, kind="list", entry=entry) if len(value) == n_samples else None
    kind = type(value)
    table = _TABLES.get((kind.__module__.split(".")[0], kind.__name__))
    if table is None or len(value) != n_samples:
        return None
    shape = getattr(value, "shape", ())
    return StoreRecord(
        path=path,
        kind=table,  # type: ignore[arg-type]  # the values above are its words
        shape=tuple(int(n) for n in shape) if isinstance(shape, tuple) else (),
        dtype=str(getattr(value, "dtype", "")) if table == "h5py" else "",
    )


def _entry(value: Any) -> str:
    """What an entry of a list is, in words: `list of 784 int`, `str`, `tuple of str, int`."""
    kind = type(value).__name__
    if isinstance(value, list) and value:
        return f"{kind} of {len(value)} {_entry(value[0])}"
    if type(value) is tuple and 0 < len(value) <= 3:
        return f"{kind} of {', '.join(type(x).__name__ for x in value)}"
    return kind


def _floats(value: Any) -> tuple[float, ...]:
    """Per channel; a number alone is one channel's."""
    if isinstance(value, (int, float)):
        return (float(value),)
    return tuple(float(x) for x in value)
