"""What a dataset keeps: Python objects, of which workers come to have copies, and open handles.

A forked worker shares its parent's memory until one of them writes to a page. Reading a Python
object writes to it, since its reference count lies in the object itself, so in time each worker has
a copy of all lists, dicts and strings of the dataset. What tensors, arrays and Arrow tables hold
lies apart from any count and stays shared.

Runs in the measuring process. No sample is made and no code of the user's is called: only objects
of Python's own types are looked into, and attributes read without the class's help. A few hundred
entries tell how large objects are, and a walk over the container how many there are of them.
"""

from __future__ import annotations

import sqlite3
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from io import BytesIO, IOBase, StringIO
from itertools import islice
from pathlib import Path
from time import perf_counter
from types import FunctionType, GetSetDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from loaderdoctor.instrument.wire.records import ContainerRecord

# Less is lost among what a worker allocates for itself (some 40 MB).
MIN_BYTES = 4 * 2**20
MAX_NAMED = 4
MAX_WRAPPED = 4  # datasets that wrap one another: Subset, ConcatDataset, …
SAMPLED_ENTRIES = 256
NEIGHBOURS = 4  # sampled side by side: what they share is none's own
MAX_ENTRY_OBJECTS = 512  # of one sampled entry
# Entries whose objects are counted apart. Their ids take some 100 bytes each while they are.
MAX_WALKED = 2**17
WALKED_AT_ONCE = 1024  # between two looks at the clock; what is new in the last ones goes on
MAX_PLACES = 16  # of an entry, told apart; later ones count as the last
MAX_IN_ENTRY = 256
LIMIT_S = 0.2  # for all attributes; pairs are walked at 5 million a second
# Reading an object writes to one page of it, where its count lies.
PAGE_BYTES = 4096
# What malloc and Python's own allocator add to a block; the collector's two words before a
# container are counted by `sys.getsizeof`.
_ALIGN = 16
_NOT_DATA = (type, ModuleType, FunctionType, MethodType)
_NO_ENTRIES = frozenset({str, bytes, int, float, bool, type(None), complex, np.ndarray})
# Exactly these: what a subclass does when it is asked for its length or entries is its own code.
_LISTS = frozenset({list, tuple})
_DICTS = frozenset({dict, defaultdict, OrderedDict})
_CONTAINERS = _LISTS | _DICTS | {set, frozenset, deque}


def containers(dataset: object) -> tuple[ContainerRecord, ...]:
    """Attributes of the dataset, and of those it wraps, that hold many Python objects.

    Largest first. `n_bytes` is what workers may copy: of each object no more than the page that its
    count is in, none of what arrays and tensors hold, and no more than this process has.
    """
    until = perf_counter() + LIMIT_S
    most = _own_memory_bytes()
    found = [x for path, value in _attributes(dataset) if (x := _record(path, value, until, most))]
    return tuple(sorted(found, key=lambda x: -x.n_bytes)[:MAX_NAMED])


def _own_memory_bytes(status: Path = Path("/proc/self/status")) -> int | None:
    """Memory of this process that is no file's; None where the system does not tell."""
    try:
        rows = [line.split() for line in status.read_text().splitlines()]
        told = {row[0]: int(row[1]) for row in rows if row and row[0] in ("RssAnon:", "VmSwap:")}
    except (OSError, IndexError, ValueError):
        return None
    return 1024 * sum(told.values()) if "RssAnon:" in told else None


def _attributes(dataset: object) -> Iterator[tuple[str, object]]:
    """Attributes that may be containers, by path; each object once."""
    seen: set[int] = set()
    waiting: deque[tuple[str, object, int]] = deque([("", dataset, 0)])
    while waiting:
        prefix, holder, depth = waiting.popleft()
        attributes = _attributes_of(holder)
        if attributes is None or id(holder) in seen or depth > MAX_WRAPPED:
            continue
        seen.add(id(holder))
        for name, value in list(attributes.items()):
            kind = type(value)
            if id(value) in seen or _is_a(value, *_NOT_DATA, torch.Tensor):
                continue
            path = f"{prefix}{name}"
            if kind in _CONTAINERS or _is_object_array(value):
                seen.add(id(value))
                yield path, value
                if name == "datasets" and kind in _LISTS:  # ConcatDataset
                    waiting.extend(
                        (f"{path}[{i}].", each, depth + 1) for i, each in enumerate(value[:16])
                    )
            elif kind not in _NO_ENTRIES:
                waiting.append((f"{path}.", value, depth + 1))
    if type(dataset) in _LISTS | _DICTS:  # a list is a dataset to torch
        yield "", dataset


def _is_a(value: object, *kinds: type) -> bool:
    """By its type alone; `isinstance` asks a proxy what it stands for."""
    return any(x is kind for x in type(value).__mro__ for kind in kinds)


def _attributes_of(value: object) -> dict[str, Any] | None:
    """Its `__dict__`, where no code of its class gives that."""
    for kind in type(value).__mro__:
        found = kind.__dict__.get("__dict__")
        if found is not None:
            own = found.__get__(value) if type(found) is GetSetDescriptorType else None
            return own if type(own) is dict else None
    return None


def _is_object_array(value: Any) -> bool:
    return type(value) is np.ndarray and value.dtype == object and value.ndim == 1


def _record(path: str, value: Any, until: float, most: int | None) -> ContainerRecord | None:
    """None where it is small, or time is up."""
    n = len(value)
    if not n or perf_counter() > until:
        return None
    paired = type(value) in _DICTS
    entries = _sampled(value, n)
    parts: dict[int, list[list[object]]] = {}  # place -> what each object there holds
    times: dict[int, int] = {}  # object -> how many of those hold it
    there: set[int] = set()
    for entry in entries:
        if perf_counter() > until:
            return None
        for place, one, is_walked in _places(entry, paired):
            parts.setdefault(place, [])
            if id(one) in there:
                continue
            there.add(id(one))
            held = [one] if is_walked else list({id(x): x for x in _objects(one)}.values())
            parts[place].append(held)
            for x in held:
                times[id(x)] = times.get(id(x), 0) + 1
    n_there = _distinct(value, n, paired, min(until, perf_counter() + LIMIT_S / 2))
    n_bytes = n_objects = 0.0
    shared: dict[int, int] = {}  # what several of them hold there is once, however many entries
    for place, ones in parts.items():
        if not ones or place not in n_there:
            continue
        own = [_touched_bytes(x) for held in ones for x in held if times[id(x)] == 1]
        shared.update((id(x), _touched_bytes(x)) for held in ones for x in held if times[id(x)] > 1)
        n_bytes += sum(own) / len(ones) * n_there[place]
        n_objects += sum(size > 0 for size in own) / len(ones) * n_there[place]
    n_bytes += sum(shared.values())
    if most is not None:  # objects shared further within than the walk goes
        n_bytes = min(n_bytes, most)
    if n_bytes < MIN_BYTES:
        return None
    return ContainerRecord(
        path=path,
        kind=type(value).__name__,
        n=n,
        n_bytes=int(n_bytes),
        entry=_words(entries[0][1] if paired else entries[0]),
        n_objects=max(1, round(n_objects / n)),
    )


def _sampled(value: Any, n: int) -> list[Any]:
    """Entries spread over the container, some neighbours each; of a dict, (key, value)."""
    if type(value) in _LISTS or type(value) is np.ndarray:
        step = max(NEIGHBOURS, n * NEIGHBOURS // SAMPLED_ENTRIES)
        at = [i + j for i in range(0, n, step) for j in range(NEIGHBOURS) if i + j < n]
        return [value[i] for i in at[:SAMPLED_ENTRIES]]
    # Others can only be gone through, which would touch their entries: the first ones then.
    return list(islice(_entries(value), SAMPLED_ENTRIES))


def _entries(value: Any) -> Iterator[Any]:
    return iter(dict.items(value) if type(value) in _DICTS else value)


def _places(entry: Any, paired: bool) -> Iterator[tuple[int, object, bool]]:
    """(place, object, whether what it holds has places of its own) of an entry.

    A key, the entry, keys within it, and what it holds by position.
    """
    if paired:
        yield 0, entry[0], False
        entry = entry[1]
    kind = type(entry)
    if kind in _LISTS:
        yield 1, entry, True
        for j, one in enumerate(islice(entry, MAX_IN_ENTRY)):
            yield 3 + min(j, MAX_PLACES), one, False
    elif kind in _DICTS:
        yield 1, entry, True
        for j, (key, one) in enumerate(islice(dict.items(entry), MAX_IN_ENTRY)):
            yield 2, key, False
            yield 3 + min(j, MAX_PLACES), one, False
    else:
        yield 1, entry, False


def _distinct(value: Any, n: int, paired: bool, until: float) -> dict[int, float]:
    """How many objects lie in each place of all entries, one in several of them once.

    Counted as far as time allows; of the entries after that as many are new as of the last counted.
    """
    there: dict[int, set[int]] = {}
    before: dict[int, int] = {}
    entries, walked, at_once = _entries(value), 0, 0
    while walked < min(n, MAX_WALKED) and (not walked or perf_counter() < until):
        before = {place: len(ids) for place, ids in there.items()}
        at_once = 0
        for entry in islice(entries, WALKED_AT_ONCE):
            at_once += 1
            for place, one, _ in _places(entry, paired):
                there.setdefault(place, set()).add(id(one))
            if not at_once % 32 and perf_counter() > until:
                break
        if not at_once:
            break  # it has become shorter
        walked += at_once
    rest = (n - walked) / max(1, at_once)
    return {
        place: len(ids) + max(0.0, rest) * (len(ids) - before.get(place, 0))
        for place, ids in there.items()
    }


def _objects(entry: object) -> Iterator[object]:
    """An object and what it holds, to a depth and a number."""
    waiting: deque[tuple[Any, int]] = deque([(entry, 0)])
    for _ in range(MAX_ENTRY_OBJECTS):
        if not waiting:
            return
        value, depth = waiting.popleft()
        yield value
        kind = type(value)
        if depth >= 4 or kind in _NO_ENTRIES or _is_a(value, *_NOT_DATA, torch.Tensor):
            continue
        if kind in _DICTS:
            pairs = islice(dict.items(value), MAX_IN_ENTRY)
            waiting.extend((x, depth + 1) for pair in pairs for x in pair)
        elif kind in _CONTAINERS:
            waiting.extend((x, depth + 1) for x in islice(value, MAX_ENTRY_OBJECTS))
        else:
            attributes = _attributes_of(value)
            if attributes is not None:
                waiting.append((attributes, depth + 1))


def _touched_bytes(value: object) -> int:
    """What reading this object may copy; 0 of one that is never counted."""
    kind = type(value)
    if value is None or kind is bool or (type(value) is int and -5 <= value <= 256):
        return 0  # there is one of each
    if kind in _NO_ENTRIES and kind is not np.ndarray:
        size = sys.getsizeof(value)
    elif kind in _CONTAINERS:
        # Of a list or dict its header: the table of pointers is not written to by reading.
        size = sys.getsizeof(value) if kind is tuple else min(sys.getsizeof(value), 80)
    elif kind is np.ndarray:
        size = 112
    else:
        size = 80 if _is_a(value, torch.Tensor) else object.__sizeof__(value)
    return min(PAGE_BYTES, -(-size // _ALIGN) * _ALIGN)


def _words(value: Any) -> str:
    """What an entry is: `str`, `tuple of str, int`, `dict of 7`, `list of 784 float`."""
    kind = type(value).__name__
    if type(value) is tuple and 0 < len(value) <= 3:
        return f"{kind} of {', '.join(type(x).__name__ for x in value)}"
    if type(value) in _LISTS and value:
        return f"{kind} of {len(value)} {type(value[0]).__name__}"
    return f"{kind} of {len(value)}" if type(value) in _DICTS else kind


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


def open_handles(dataset: object) -> tuple[str, ...]:
    """Attributes that hold open files, databases or archives: `images (h5py.File)`."""
    found: list[str] = []
    for name, value in _looked_into(dataset):
        if _is_handle(value):
            kind = type(value)
            found.append(f"{name} ({kind.__module__.split('.')[0].lstrip('_')}.{kind.__name__})")
    return tuple(found)


def _looked_into(owner: object) -> Iterator[tuple[str, object]]:
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
