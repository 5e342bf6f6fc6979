"""What the user's code makes of samples: whose it is, what it draws at random, what it reads.

And where that lies.
"""

from __future__ import annotations

import array
import functools
import os
import sys
import types
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import IterableDataset

from loaderdoctor.instrument.dataset.transforms import transform_name
from loaderdoctor.instrument.system import library_of
from loaderdoctor.instrument.wire.records import Normalisation, StoreRecord
from loaderdoctor.instrument.workers.user_code import find_composes

# Attributes by which a wrapper of a framework holds the function that does the work
# (transformers' RemoveColumnsCollator; others name it as DataLoader does).
_INNER = ("data_collator", "collate_fn", "__wrapped__")
_MAX_WRAPPERS = 8


def collate_library(collate_fn: Any) -> str | None:
    """The package whose code it is ("torch_geometric", "torch"); None: the user's own.

    A class of the user's that derives from a library's is the user's: what it overrides can change.
    """
    inner = _innermost(collate_fn)
    code = getattr(getattr(inner, "__func__", inner), "__code__", None)
    if code is not None:
        return library_of(code.co_filename)
    kind = inner if isinstance(inner, type) else type(inner)
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return library_of(file) if isinstance(file, str) else None


def _innermost(collate_fn: Any) -> Any:
    for _ in range(_MAX_WRAPPERS):
        if isinstance(collate_fn, functools.partial):
            collate_fn = collate_fn.func
            continue
        held = getattr(collate_fn, "__dict__", {})
        inner = next((held[name] for name in _INNER if callable(held.get(name))), None)
        if inner is None:
            break
        collate_fn = inner
    return collate_fn


# What of a dataset's own code draws at random: samples that come out differently each time.
#
# Read off the bytecode: making samples to compare them would move the generators that the user's
# own samples are drawn from. A trial of `cache` compares some, once batches are not the loop's own.

_DRAWS = frozenset({
    "random", "rand", "randn", "randint", "randrange", "rand_like", "randn_like", "randint_like",
    "randperm", "random_sample", "standard_normal", "uniform", "normal", "gauss", "integers",
    "choice", "choices", "shuffle", "permutation", "permuted", "bernoulli", "bernoulli_",
    "multinomial", "normal_", "uniform_", "random_", "poisson", "beta", "binomial",
})  # fmt: skip
# The modules and generators whose functions they are: `choice` alone may be anyone's.
_GENERATORS = ("random", "rng", "torch", "generator", "rand", "gen")
# A function that seeds its generator, by the sample's number for one, draws the same again.
_SEEDS = frozenset({"manual_seed", "seed", "default_rng", "RandomState", "Random", "Philox"})
# What only builds the dataset, or is no sample.
_BUILDS = frozenset({"__init__", "__new__", "__post_init__", "__len__", "__setstate__", "__repr__"})
_TORCH_DATA = ("torch.utils.data", "torch.nn", "builtins", "typing", "abc")
_CALLABLE = (types.FunctionType, staticmethod, classmethod)
MAX_DEPTH = 4  # of values in one another, datasets too
MAX_ITEMS = 16
MAX_NAMED = 3


def randomness_of_dataset(dataset: object) -> tuple[str, ...]:
    """Functions of the dataset's code that draw at random: `Photos.augment`. A few at most."""
    found: dict[str, None] = {}
    for function in _functions(dataset, 0, set()):
        if _draws(function.__code__):
            found[function.__qualname__.replace("<locals>.", "")] = None
    return tuple(found)[:MAX_NAMED]


_CONTAINERS = (list, dict, set, deque, bytearray, array.array, np.ndarray, Tensor)


def named_containers(dataset: object) -> tuple[tuple[str, Any], ...]:
    """What the dataset's code names outside of it that holds something: `(name, value)`."""
    found: dict[str, Any] = {}
    for function in _functions(dataset, 0, set()):
        code = function.__code__
        cells = zip(code.co_freevars, function.__closure__ or (), strict=False)
        named = [(name, function.__globals__.get(name)) for name in code.co_names]
        with suppress(ValueError):  # a cell that is not filled yet
            named += [(name, cell.cell_contents) for name, cell in cells]
        found |= {name: value for name, value in named if isinstance(value, _CONTAINERS)}
    return tuple(found.items())


def _draws(code: types.CodeType) -> bool:
    names = set(code.co_names) | set(code.co_varnames) | set(code.co_freevars)
    if names & _SEEDS or not names & _DRAWS:
        return False
    return any(word in name.lower() for name in names for word in _GENERATORS)


def _functions(value: object, depth: int, seen: set[int]) -> Iterator[types.FunctionType]:
    """Functions that a sample may come from: of the dataset's class, and of what it holds."""
    if depth > MAX_DEPTH or id(value) in seen:
        return
    seen.add(id(value))
    bound = isinstance(value, (types.MethodType, staticmethod, classmethod))
    function = value.__func__ if bound else value  # type: ignore[attr-defined]  # just asked
    if isinstance(function, types.FunctionType):
        yield from _with_helpers(function, seen)
    elif isinstance(value, (list, tuple, dict)):
        items = value.values() if isinstance(value, dict) else value
        for item in list(islice(items, MAX_ITEMS)):  # it may hold a million
            yield from _functions(item, depth + 1, seen)
    elif hasattr(value, "__dict__") and not isinstance(value, (type, types.ModuleType)):
        for kind in type(value).__mro__:
            if not kind.__module__.startswith(_TORCH_DATA):
                for name, member in list(vars(kind).items()):
                    if name not in _BUILDS and isinstance(member, _CALLABLE):
                        yield from _functions(member, depth, seen)
        for item in list(vars(value).values()):
            yield from _functions(item, depth + 1, seen)


def _with_helpers(function: types.FunctionType, seen: set[int]) -> Iterator[types.FunctionType]:
    """The function, what it decorates, and those of the same module that it names."""
    yield function
    inner = getattr(function, "__wrapped__", None)
    for helper in (inner, *map(function.__globals__.get, function.__code__.co_names)):
        if (
            isinstance(helper, types.FunctionType)
            and (helper is inner or helper.__globals__ is function.__globals__)
            and id(helper) not in seen
        ):
            seen.add(id(helper))
            yield from _with_helpers(helper, seen)


# What a dataset's samples are made from: arrays, lists and tables among its attributes.
#
# Runs in the measuring process. Objects are looked at by their type; no sample is made, and of a
# list only the first entry is read.

MAX_STORES = 8
MAX_STORE_DEPTH = 3  # Subset -> dataset -> …
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
    for _ in range(MAX_STORE_DEPTH):
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


# Where a dataset's data lies, as its attributes, loaded modules and /proc/mounts tell.

MAX_PATHS = 16
# Modules that read from an object store or over HTTP, as "what it reads from".
CLIENTS: Mapping[str, str] = {
    "s3fs": "S3 (s3fs)",
    "boto3": "S3 (boto3)",
    "s3torchconnector": "S3 (s3torchconnector)",
    "gcsfs": "Google Cloud Storage (gcsfs)",
    "google.cloud.storage": "Google Cloud Storage",
    "adlfs": "Azure (adlfs)",
    "fsspec.implementations.http": "HTTP (fsspec)",
}
_MOUNTS = Path("/proc/mounts")
_ESCAPES = {r"\040": " ", r"\011": "\t", r"\012": "\n", r"\134": "\\"}


def file_system(path: str, mounts: str | None = None) -> str | None:
    """`ext4`, `nfs4`, `fuse.sshfs`, `tmpfs`, … of the mount that `path` is below; None: unknown.

    `mounts` is the text of /proc/mounts.
    """
    if mounts is None:
        try:
            mounts = _MOUNTS.read_text()
        except OSError:
            return None
    real = os.path.realpath(path)
    best, kind = "", None
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        point = fields[1]
        for code, character in _ESCAPES.items():
            point = point.replace(code, character)
        below = real == point or real.startswith(point.rstrip("/") + "/")
        if below and len(point) >= len(best):  # of two on one place the later covers the other
            best, kind = point, fields[2]
            if kind == "fuse" and fields[0].replace("-", "").isalnum():
                kind = f"fuse.{fields[0]}"  # "mountpoint-s3": named by what is mounted alone
    return kind


def file_systems(dataset: object) -> tuple[str, ...]:
    """Kinds of the file systems that paths in its attributes lie on: "ext4", "nfs4".

    Of a list of paths the first speaks for all.
    """
    kinds = (file_system(path) for path in _paths(dataset))
    return tuple(dict.fromkeys(kind for kind in kinds if kind is not None))


def clients() -> tuple[str, ...]:
    """What is loaded in this process that reads over the network; loaded need not be used."""
    return tuple(words for name, words in CLIENTS.items() if name in sys.modules)


def _paths(dataset: object) -> list[str]:
    found: dict[str, None] = {}
    holder: Any = dataset
    for _ in range(MAX_DEPTH):
        attributes = getattr(holder, "__dict__", None)
        if not isinstance(attributes, dict):
            break
        for value in list(attributes.values()):
            for text in _texts(value):
                # Not by `Path`, which raises for a text too long to be a name, before Python 3.14.
                if os.sep in text and len(found) < MAX_PATHS and os.path.exists(text):  # noqa: PTH110
                    found[text] = None
        holder = attributes.get("dataset")
    return list(found)


def _texts(value: object) -> Iterator[str]:
    """A path as it stands, or of a list of paths, or of tuples with one, the first."""
    for _ in range(3):
        if isinstance(value, (str, os.PathLike)):
            text = os.fspath(value)
            if isinstance(text, str) and len(text) < 4096 and "\0" not in text:
                yield text
            return
        if not isinstance(value, (list, tuple)) or not value:
            return
        value = value[0]
