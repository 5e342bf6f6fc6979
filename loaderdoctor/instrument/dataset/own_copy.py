"""A copy of a dataset to try in the training process of a loop that has workers.

Many datasets open their file at the first sample. Opened in the training process, it would be
shared by all workers that the loop forks later, and their reads would mix. What a copy opens or
keeps is gone with the copy.
"""

from __future__ import annotations

import io
import pickle
import time
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.dataset.safety import open_handles

# Larger tensors, arrays and bytes are not copied: samples are looked up in them.
MAX_COPIED_BYTES = 2**20
# Nor are longer lists of plain values: names of files, labels. Of pairs, 100,000 take some 50 ms.
MAX_COPIED_ITEMS = 100_000
# Where the rest takes more, no copy is made.
LIMIT_S = 5.0
LIMIT_BYTES = 256 * 2**20
MAX_WRAPPED = 4  # datasets that wrap one another: Subset, ConcatDataset, …

_CODE = (type, FunctionType, BuiltinFunctionType, ModuleType)
_PLAIN = (str, bytes, int, float, bool, tuple)


def own_copy(dataset: Any, collate: Any) -> tuple[Any, Any]:
    """The dataset, those that it wraps, and its collate function, which may be a method of it.

    Code and large data are shared with the original. Raises TrialRefused where it can't be copied.
    """
    sink, shared = _Bounded(), _Shared()
    try:
        _Pickler(sink, shared).dump((dataset, collate))
        sink.seek(0)
        made: tuple[Any, Any] = _Unpickler(sink, shared).load()
    except Exception as error:  # the user's own __getstate__ and __reduce__ may raise anything
        raise TrialRefused(
            f"{type(dataset).__name__} can't be copied ({type(error).__name__}: {error}), and the "
            "loop's workers would share what it opens when it is tried in the training process"
        ) from error
    return made


def all_open_handles(dataset: object) -> tuple[str, ...]:
    """As `open_handles`, of the dataset and of those that it wraps."""
    found: dict[str, None] = {}
    level: list[object] = [dataset]
    for _ in range(MAX_WRAPPED):
        for one in level:
            found |= dict.fromkeys(open_handles(one))
        level = [inner for one in level for inner in _wrapped(one)]
    return tuple(found)


def _wrapped(dataset: object) -> list[object]:
    values = list(getattr(dataset, "__dict__", {}).values())
    lists = [value[:16] for value in values if isinstance(value, (list, tuple))]
    return [x for group in (values, *lists) for x in group if isinstance(x, Dataset)]


class _Bounded(io.BytesIO):
    """Holds what is written, up to the limits."""

    def __init__(self) -> None:
        super().__init__()
        self._deadline = time.monotonic() + LIMIT_S

    def write(self, data: Any) -> int:
        if self.tell() > LIMIT_BYTES or time.monotonic() > self._deadline:
            raise TimeoutError(f"more than {LIMIT_S:g} s or {LIMIT_BYTES // 2**20} MiB of objects")
        return super().write(data)


class _Shared(list[Any]):
    """What original and copy both have."""


class _Pickler(pickle.Pickler):
    def __init__(self, sink: io.BytesIO, shared: _Shared) -> None:
        super().__init__(sink, pickle.HIGHEST_PROTOCOL)
        self._shared = shared

    def persistent_id(self, obj: Any) -> int | None:
        if not _is_shared(obj):
            return None
        self._shared.append(obj)
        return len(self._shared) - 1


class _Unpickler(pickle.Unpickler):
    def __init__(self, source: io.BytesIO, shared: _Shared) -> None:
        super().__init__(source)
        self._shared = shared

    def persistent_load(self, pid: Any) -> Any:
        return self._shared[pid]


def _is_shared(obj: Any) -> bool:
    if isinstance(obj, _CODE):
        return True
    if isinstance(obj, torch.Tensor):
        return obj.device.type != "cpu" or obj.numel() * obj.element_size() > MAX_COPIED_BYTES
    if isinstance(obj, np.ndarray):
        return obj.nbytes > MAX_COPIED_BYTES
    if isinstance(obj, (bytes, bytearray, str)):
        return len(obj) > MAX_COPIED_BYTES
    long = isinstance(obj, (list, tuple)) and len(obj) > MAX_COPIED_ITEMS
    return long and isinstance(obj[0], _PLAIN)
