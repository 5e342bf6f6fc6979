"""Whether a loader can be opened again, whether workers share its work, and whether it draws.

The first two are read off the objects and the bytecode: calling the user's `__iter__` would already
take what can be had only once. Datasets of libraries that stream shards are recognised by their
classes and where these lie (a module of the user's own that bears a library's name is none of it),
without importing or iterating them: attributes are looked at, and a property or two is asked.

What a dataset draws from are the generators of this process: whether it did, and put back.
"""

from __future__ import annotations

import ctypes
import dis
import functools
import inspect
import os
import pickle
import random
import struct
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import IOBase
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, IterDataPipe

from loaderdoctor.instrument.wire.records import StreamRecord

Library = Literal["datasets", "webdataset", "litdata", "streaming"]
# Of what splits the shards of WebDataset's pipelines; resampled ones are drawn by each worker.
_WDS_RESAMPLED = frozenset({"ResampledShards", "ResampledShardList"})
_WDS_SPLITS = _WDS_RESAMPLED | {"split_by_worker"}
_INSTALLED = frozenset({"site-packages", "dist-packages"})
MAX_STAGES = 256
# Iterators of the standard library: what they gave is gone.
_SPENT_MODULES = frozenset({"itertools", "queue", "_queue", "socket", "_socket", "asyncio"})
# Attributes that an `__iter__` may change without losing its place.
_HARMLESS_STORES = ("epoch", "seed", "rng", "generator", "shuffle")
_WORKER_NAMES = frozenset({"get_worker_info", "_worker_info", "WorkerInfo", "split_by_worker"})
# What a worker_init_fn names that does nothing but seed generators and count threads.
_SEEDING_NAMES = frozenset({
    "torch", "np", "numpy", "random", "seed", "initial_seed", "manual_seed", "manual_seed_all",
    "cuda", "utils", "data", "get_worker_info", "id", "int", "set_num_threads",
})  # fmt: skip
MAX_DEPTH = 3


def stream_of(dataset: object) -> StreamRecord | None:
    """What is known of a streaming library's dataset; None for any other.

    A user's subclass counts as its library's. `n_shards` only where a worker's work is whole
    shards: litdata and MosaicML Streaming deal samples out, whatever shard they lie in.
    """
    library = _library(dataset)
    if library is None:
        return None
    return StreamRecord(
        library=library,
        n_shards=_n_shards(dataset, library),
        splits=splits_itself(dataset) is not False,
    )


def splits_itself(dataset: object) -> bool | None:
    """Whether its workers share the data; None where that is for its code to tell."""
    library = _library(dataset)
    if library in ("litdata", "streaming", "datasets"):
        return True
    if library == "webdataset":
        return any(_name(stage) in _WDS_SPLITS for stage in _stages(dataset, 0))
    return None


def _library(dataset: object) -> Library | None:
    for kind in type(dataset).__mro__:
        library = _defined_by(kind.__module__, kind.__name__)
        if library is not None and _is_installed(kind.__module__):
            return library
    return None


def _defined_by(module: str, name: str) -> Library | None:
    if (module, name) == ("datasets.iterable_dataset", "IterableDataset"):
        return "datasets"
    if (module, name) == ("streaming.base.dataset", "StreamingDataset"):
        return "streaming"
    if module.startswith("litdata.streaming."):
        return "litdata"
    return "webdataset" if module.startswith("webdataset.") else None


def _is_installed(module: str) -> bool:
    """Whether its file is a package's: not of the script's folder or the one it is run in."""
    path = getattr(sys.modules.get(module), "__file__", None)
    if not isinstance(path, str):
        return False
    file = Path(os.path.abspath(path))  # noqa: PTH100  # links stay: packages may be links
    if not _INSTALLED.isdisjoint(file.parts):
        return True
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    folders = {Path.cwd()} | ({Path(script).absolute().parent} if script else set())
    return not any(file.is_relative_to(folder) for folder in folders)


def _n_shards(dataset: Any, library: Library) -> int | None:
    try:
        if library == "datasets":
            return int(dataset.num_shards)
        if library == "webdataset":
            stages = list(_stages(dataset, 0))
            if any(_name(stage) in _WDS_RESAMPLED for stage in stages):
                return None  # drawn without an end, by every worker for itself
            lists = [getattr(stage, "urls", None) for stage in stages]
            return next((len(x) for x in lists if isinstance(x, (list, tuple))), None)
    except Exception:  # the library's own code, of whatever version
        return None
    return None


def _stages(pipeline: Any, depth: int) -> Iterator[Any]:
    """Stages of a WebDataset pipeline, those of pipelines within it too."""
    stages = getattr(pipeline, "pipeline", None)
    if not isinstance(stages, (list, tuple)) or depth > 3:
        return
    for stage in stages[:MAX_STAGES]:
        yield stage
        yield from _stages(stage, depth + 1)


def _name(stage: object) -> str:
    stage = getattr(stage, "func", stage)  # functools.partial
    return getattr(stage, "__name__", type(stage).__name__)


def one_pass_reason(loader: DataLoader[Any]) -> str | None:
    """Why opening this loader again would lose or repeat data; None where it can be."""
    dataset: object = loader.dataset
    if isinstance(dataset, IterableDataset):
        return _one_pass_dataset(dataset)
    for name, sampler in (("batch_sampler", loader.batch_sampler), ("sampler", loader.sampler)):
        reason = _stateful_sampler(sampler)
        if reason:
            return f"the {name} {type(sampler).__name__} {reason}"
    return None


def shards_itself(loader: DataLoader[Any]) -> bool:
    """Whether code of the iterable dataset, or the worker_init_fn, asks which worker it is in."""
    dataset: object = loader.dataset
    if isinstance(dataset, IterDataPipe):
        from torch.utils.data.graph import traverse_dps

        pipes = list(_flat(traverse_dps(dataset)))
        if any(getattr(pipe, "is_shardable", bool)() for pipe in pipes):
            return True
    if _mentions(loader.worker_init_fn, _WORKER_NAMES | {"dataset"}):
        return True
    if splits_itself(dataset) is False:
        return False  # its code names workers for other reasons too
    return asks_for_worker(dataset)


def asks_for_worker(dataset: object) -> bool:
    """Whether code of the dataset, or of what it holds, asks which worker it is in."""
    if splits_itself(dataset):
        return True
    return any(_mentions(part, _WORKER_NAMES) for part in _parts(dataset, 0, set()))


def only_seeds(worker_init_fn: object) -> bool:
    """Whether it does nothing else in a worker, so that it may run in more or fewer of them."""
    code = _code(worker_init_fn)
    if code is None:
        return worker_init_fn is None
    return all(
        set(each.co_names) <= _SEEDING_NAMES
        and not each.co_freevars
        and not any(
            step.opname in ("STORE_ATTR", "STORE_GLOBAL", "STORE_SUBSCR")
            for step in dis.get_instructions(each)
        )
        for each in _nested(code)
    )


def _one_pass_dataset(dataset: object) -> str | None:
    name = type(dataset).__name__
    if _is_own_iterator(dataset):
        return f"the dataset {name} is its own iterator: what it gave is gone"
    code = _iter_code(type(dataset))
    rewinds = code is not None and bool({"seek", "open", "reset"} & set(_names(code)))
    for attribute, value in list(getattr(dataset, "__dict__", {}).items()):
        if _is_spent(value):
            return f"the dataset {name} reads from {attribute}, a {type(value).__name__}"
        if isinstance(value, IOBase) and not rewinds:
            return f"the dataset {name} reads on from the open file {attribute}"
        if isinstance(value, (list, tuple)) and any(_is_spent(item) for item in value[:64]):
            return f"the dataset {name} reads from iterators in {attribute}"
    return None


def _stateful_sampler(sampler: object) -> str | None:
    if sampler is None or type(sampler).__module__.startswith("torch.utils.data"):
        inner = getattr(sampler, "sampler", None)
        if inner is not None and inner is not sampler:
            return _stateful_sampler(inner)
        return None
    if _is_spent(sampler) or _is_own_iterator(sampler):
        return "is an iterator: what it gave is gone"
    if hasattr(sampler, "state_dict") and hasattr(sampler, "load_state_dict"):
        return "remembers its place (state_dict)"
    for value in getattr(sampler, "__dict__", {}).values():
        if _is_spent(value):
            return f"reads from a {type(value).__name__}"
    code = _iter_code(type(sampler))
    stored = [
        str(step.argval)
        for each in (() if code is None else _nested(code))
        for step in dis.get_instructions(each)
        if step.opname == "STORE_ATTR"
        and not any(word in str(step.argval).lower() for word in _HARMLESS_STORES)
    ]
    return f"changes its own {stored[0]} while it is read" if stored else None


def _is_own_iterator(value: object) -> bool:
    """Has `__next__`, and an `__iter__` that only returns self."""
    kind = type(value)
    if not hasattr(kind, "__next__"):
        return False
    code = _iter_code(kind)
    if code is None:
        return True  # an iterator written in C
    return code.co_names == () and not any(
        step.opname.startswith(("STORE_", "CALL", "YIELD")) for step in dis.get_instructions(code)
    )


def _is_spent(value: object) -> bool:
    """An iterator or a stream that gives each item once."""
    if isinstance(value, (types.GeneratorType, map, filter, zip, enumerate)):
        return True
    kind = type(value)
    if kind.__module__.split(".")[0] in _SPENT_MODULES:
        return True
    return kind.__module__ == "builtins" and kind.__name__.endswith("_iterator")


def _mentions(part: object, names: frozenset[str] | set[str]) -> bool:
    """Whether a function's or a class's own code uses one of the names."""
    if isinstance(part, type):
        return any(
            _mentions(member, names)
            for kind in part.__mro__
            if not kind.__module__.startswith(("torch.utils.data", "builtins", "typing"))
            for member in list(vars(kind).values())
        )
    if isinstance(part, (staticmethod, classmethod, property)):
        part = part.fget if isinstance(part, property) else part.__func__
    decorated = getattr(part, "__wrapped__", None)
    if isinstance(decorated, types.FunctionType) and _mentions(decorated, names):
        return True
    code = _code(part)
    if code is None:
        return False
    if any(names & set(_names(each)) for each in _nested(code)):
        return True
    scope = getattr(getattr(part, "__func__", part), "__globals__", {})
    # One call deep, within the same module: a helper that shards.
    called = (scope.get(name) for name in _names(code))
    return any(
        isinstance(helper, types.FunctionType)
        and helper.__globals__ is scope
        and bool(names & set(_names(helper.__code__)))
        for helper in called
    )


def _parts(value: object, depth: int, seen: set[int]) -> Iterator[object]:
    """Classes and functions that an iterable dataset is made of."""
    if id(value) in seen or depth > MAX_DEPTH:
        return
    seen.add(id(value))
    if isinstance(value, (types.FunctionType, types.MethodType)):
        yield value
        return
    if isinstance(value, (list, tuple, dict)):
        for item in list(islice(value.values() if isinstance(value, dict) else value, 64)):
            yield from _parts(item, depth + 1, seen)
        return
    if type(value).__module__ == "builtins":
        return
    yield type(value)
    for item in list(getattr(value, "__dict__", {}).values()):
        yield from _parts(item, depth + 1, seen)


def _code(part: object) -> types.CodeType | None:
    function = getattr(part, "func", part)  # functools.partial
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    return code if isinstance(code, types.CodeType) else None


def _iter_code(kind: type) -> types.CodeType | None:
    """Of the class's own `__iter__`, whatever decorates it."""
    own: Any = getattr(kind, "__iter__", None)
    return _code(inspect.unwrap(own))


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested(constant)


def _names(code: types.CodeType) -> tuple[str, ...]:
    return (*code.co_names, *code.co_freevars)


def _flat(graph: Any) -> Iterator[Any]:
    for pipe, inner in graph.values():
        yield pipe
        yield from _flat(inner)


# NumPy's Mersenne Twister in memory: 624 words and how many of them are used up.
_NUMPY: Any = np.random
_TWISTER = "MT19937"
_TWISTER_BYTES = 624 * 4 + 4


def states() -> tuple[Any, ...]:
    """Of Python's, NumPy's and torch's global generators in this process; equal if none drew."""
    state = _NUMPY.get_state(legacy=False)
    legacy: tuple[Any, ...]
    if state["bit_generator"] == _TWISTER:  # arrays are compared by their bytes
        words, used = state["state"]["key"].tobytes(), state["state"]["pos"]
        legacy = (words, used, state["has_gauss"], state["gauss"])
    else:
        legacy = (pickle.dumps(state),)
    return random.getstate(), legacy, torch.get_rng_state().numpy().tobytes()


def glimpse() -> tuple[Any, ...]:
    """The same for a twelfth of the time (5 us for 60), for each batch that a worker makes.

    The getters of Python and NumPy make lists of 624 numbers; here they are read where they lie.
    Not seen: that NumPy keeps the second of two normal numbers for the next draw (`states` is).
    """
    made: Any = getattr(getattr(_NUMPY.mtrand, "_rand", None), "_bit_generator", None)
    if type(made).__name__ != _TWISTER:  # another was set, or another NumPy
        return states()
    legacy = ctypes.string_at(made.ctypes.state_address, _TWISTER_BYTES)
    of_python = _pythons(getattr(random, "_inst", None))
    python = random.getstate() if of_python is None else of_python()
    return python, legacy, torch.get_rng_state().numpy().tobytes()


@functools.cache
def _pythons(generator: Any) -> Callable[[], tuple[Any, ...]] | None:
    """What reads the words of Python's generator and how many are used; None where they lie else.

    CPython has them behind an object's head, which is made sure of.
    """
    head = object.__basicsize__
    if sys.implementation.name != "cpython" or type(generator) is not random.Random:
        return None
    if type(generator).__basicsize__ < head + _TWISTER_BYTES:
        return None
    at = id(generator) + head
    used, *words = struct.unpack("=i624I", ctypes.string_at(at, _TWISTER_BYTES))
    if (*words, used) != generator.getstate()[1]:
        return None
    return lambda: (ctypes.string_at(at, _TWISTER_BYTES), getattr(generator, "gauss_next", None))


@contextmanager
def put_back() -> Iterator[None]:
    """What is drawn within is not drawn for what comes after: the loop's own draws stay."""
    python, legacy = random.getstate(), _NUMPY.get_state(legacy=False)
    torchs = torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        torch.set_rng_state(torchs)
        _NUMPY.set_state(legacy)
