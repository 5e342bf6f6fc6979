"""What would break a user's run if its loader were opened again, or with other workers.

Runs in the measuring process, before any trial. Objects are looked at, code is read, pickling goes
to nowhere: no sample is drawn and the user's `__iter__` is not called.

To try a dataset in the training process of a loop that has workers, there is a copy (`own_copy`).
Many datasets open their file at the first sample: opened in the training process, it would be
shared by all workers that the loop forks later, and their reads would mix. What a copy opens or
keeps is gone with the copy. What code keeps outside of its dataset no copy holds: `left_open` says
what that is, to be asked in a process that ends.
"""

from __future__ import annotations

import gc
import io
import pickle
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.dataset import one_pass_reason, put_back, shards_itself
from loaderdoctor.instrument.dataset.containers import open_handles
from loaderdoctor.instrument.dataset.pickling import TrialPickle, trial_pickle
from loaderdoctor.instrument.wire.records import SafetyRecord


def safety(loader: DataLoader[Any], *, calls_own: bool = True) -> SafetyRecord:
    """Everything checked about one loader, in about two seconds at most.

    `calls_own`: code of the script's own that has a say in pickling is called.
    """
    parts = pickled_parts(loader, calls_own=calls_own)
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
        pickled_bytes=parts.n_bytes,
        shared_bytes=parts.shared_bytes,
    )


def pickled_parts(loader: DataLoader[Any], *, calls_own: bool = True) -> TrialPickle:
    """Whether what a spawned worker needs can be pickled, and how large that is."""
    parts = (loader.dataset, loader.collate_fn, loader.worker_init_fn)
    return trial_pickle(parts, calls_own=calls_own)


# Larger tensors, arrays and bytes are not copied: samples are looked up in them.
MAX_COPIED_BYTES = 2**20
# Nor are longer lists of plain values and of entries made of them: names of files, labels,
# annotations. Of pairs, 100,000 take some 50 ms.
MAX_COPIED_ITEMS = 100_000
# Where the rest takes more, no copy is made.
COPY_LIMIT_S = 5.0
COPY_LIMIT_BYTES = 256 * 2**20
MAX_WRAPPED = 4  # datasets that wrap one another: Subset, ConcatDataset, …

# What may stay open and be shared: reads of these have no place that another could move.
_NO_STATE = ("/dev/null", "/dev/urandom", "/dev/random", "/proc/", "/sys/")

_CODE = (type, FunctionType, BuiltinFunctionType, ModuleType)
_PLAIN = (str, bytes, int, float, bool, tuple, list, dict)
# Tables, which are large and looked up: by the library and the class.
_TABLES = {
    "pandas": ("DataFrame", "Series"),
    "polars": ("DataFrame", "Series"),
    "pyarrow": ("Table", "ChunkedArray", "RecordBatch"),
}
# A new one in place of each: none is held while the loop waits for us.
_LOCKS = {type(make()): make for make in (threading.Lock, threading.RLock)}


@contextmanager
def looked_at(dataset: Any, *, apart: bool) -> Iterator[Any]:
    """The dataset to make samples with here, or where it lives in workers (`apart`) a copy of it.

    Nothing is drawn of the process's generators. Raises TrialRefused where it can't be copied.
    """
    made = own_copy(dataset, None)[0] if apart else dataset
    with put_back():
        yield made


def left_open(dataset: Any) -> tuple[str, ...]:
    """Files and sockets that stay open when samples were made and their dataset is gone.

    To be asked in a process that ends. A GPU that was first used for it counts too. Empty where the
    system does not show open files, or no sample can be made.
    """
    before, had_gpu = _open_files(), torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    try:
        made, _ = own_copy(dataset, None)
        some_samples(made)
    except Exception:  # said where the trial itself makes them
        return ()
    del made
    gc.collect()
    found = list(_open_files() - before)
    if torch.cuda.is_initialized() and not had_gpu:  # type: ignore[no-untyped-call]
        found.append("the GPU")
    return tuple(found)


def _open_files() -> Counter[str]:
    """What the process has open, but for pipes and the like, by name."""
    found: Counter[str] = Counter()
    with suppress(OSError):
        for one in list(Path("/proc/self/fd").iterdir()):
            with suppress(OSError):  # that of the folder itself
                found[str(one.readlink())] += 1
    own = Counter({k: n for k, n in found.items() if k.startswith(("/", "socket:"))})
    return Counter({k: n for k, n in own.items() if not k.startswith(_NO_STATE)})


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
        self._deadline = time.monotonic() + COPY_LIMIT_S

    def write(self, data: Any) -> int:
        if self.tell() > COPY_LIMIT_BYTES or time.monotonic() > self._deadline:
            raise TimeoutError(
                f"more than {COPY_LIMIT_S:g} s or {COPY_LIMIT_BYTES // 2**20} MiB of objects"
            )
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

    def reducer_override(self, obj: Any) -> Any:
        make = _LOCKS.get(type(obj))
        return (make, ()) if make is not None else NotImplemented


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
    if type(obj).__name__ in _TABLES.get(type(obj).__module__.partition(".")[0], ()):
        return True
    if isinstance(obj, (bytes, bytearray, str)):
        return len(obj) > MAX_COPIED_BYTES
    long = isinstance(obj, (list, tuple)) and len(obj) > MAX_COPIED_ITEMS
    return long and isinstance(obj[0], _PLAIN)


# A few samples of a dataset, and what kind of thing a sample is: to try a changed dataset on.

Kind = Any  # nested tuples of names, shapes and dtypes; equal kinds collate alike


def some_samples(dataset: Any) -> list[Any]:
    """The first, the middle and the last sample; of an iterable dataset the first.

    Raises whatever the dataset raises.
    """
    if isinstance(dataset, IterableDataset):
        return [sample for sample, _ in zip(iter(dataset), range(1), strict=False)]
    n = len(dataset)
    return [dataset[i] for i in sorted({0, n // 2, n - 1} if n else ())]


def kind_of(sample: Any) -> Kind:
    """Structure, types, shapes and dtypes of a sample, without its values."""
    if isinstance(sample, Tensor):
        return ("tensor", tuple(sample.shape), str(sample.dtype))
    if isinstance(sample, dict):
        return tuple((key, kind_of(value)) for key, value in sample.items())
    if isinstance(sample, (list, tuple)):
        return (type(sample).__name__, *(kind_of(item) for item in sample))
    shape = getattr(sample, "shape", None) or getattr(sample, "size", None)
    if isinstance(shape, tuple):  # an array or a picture
        return (type(sample).__name__, shape, str(getattr(sample, "dtype", "")))
    return type(sample).__name__


def shapes_in(kind: Kind) -> str:
    """The shapes of a kind in words, for a reason: `(3, 32, 32)`."""
    if isinstance(kind, tuple) and len(kind) > 1 and kind[0] == "tensor":
        return str(kind[1])
    if isinstance(kind, tuple):
        return ", ".join(text for part in kind if (text := shapes_in(part)))
    return ""
