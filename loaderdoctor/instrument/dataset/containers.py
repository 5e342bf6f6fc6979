"""Python objects that a dataset keeps: what forked workers copy, page by page, as they read them.

A forked worker shares its parent's memory until one of them writes to a page. Reading a Python
object writes to it, since its reference count lies in the object itself, so in time each worker has
a copy of all lists, dicts and strings of the dataset. What tensors, arrays and Arrow tables hold
lies apart from any count and stays shared.

Runs in the measuring process. Objects are looked at by their type; no sample is made, no code of
the user's is called, and of a container a few hundred entries stand for all.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from itertools import islice
from time import perf_counter
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from loaderdoctor.instrument.wire.records import ContainerRecord

# Less is lost among what a worker allocates for itself (some 40 MB).
MIN_BYTES = 4 * 2**20
MAX_NAMED = 4
MAX_WRAPPED = 4  # datasets that wrap one another: Subset, ConcatDataset, …
SAMPLED_ENTRIES = 256
MAX_ENTRY_OBJECTS = 512  # of one sampled entry
LIMIT_S = 0.2  # for all attributes; a million strings in one list took 1 ms
# Reading an object writes to one page of it, where its count lies.
PAGE_BYTES = 4096
# What malloc and Python's own allocator add to a block; the collector's two words before a
# container are counted by `sys.getsizeof`.
_ALIGN = 16
_NOT_DATA = (type, ModuleType, FunctionType, MethodType)
_CONTAINERS = (list, tuple, dict, set, frozenset, deque)


def containers(dataset: object) -> tuple[ContainerRecord, ...]:
    """Attributes of the dataset, and of those it wraps, that hold many Python objects.

    Largest first. `n_bytes` is what workers may copy: of each object no more than the page that its
    count is in, and none of what arrays and tensors hold.
    """
    until = perf_counter() + LIMIT_S
    found = [x for path, value in _attributes(dataset) if (x := _record(path, value, until))]
    return tuple(sorted(found, key=lambda x: -x.n_bytes)[:MAX_NAMED])


def _attributes(dataset: object) -> Iterator[tuple[str, object]]:
    """Attributes that may be containers, by path; each object once."""
    seen: set[int] = set()
    waiting: deque[tuple[str, object, int]] = deque([("", dataset, 0)])
    while waiting:
        prefix, holder, depth = waiting.popleft()
        attributes = getattr(holder, "__dict__", None)
        if not isinstance(attributes, dict) or id(holder) in seen or depth > MAX_WRAPPED:
            continue
        seen.add(id(holder))
        for name, value in list(attributes.items()):
            if id(value) in seen or isinstance(value, (*_NOT_DATA, torch.Tensor)):
                continue
            path = f"{prefix}{name}"
            if isinstance(value, _CONTAINERS) or _is_object_array(value):
                seen.add(id(value))
                yield path, value
                if name == "datasets" and isinstance(value, (list, tuple)):  # ConcatDataset
                    waiting.extend(
                        (f"{path}[{i}].", each, depth + 1) for i, each in enumerate(value[:16])
                    )
            elif type(value).__module__ != "builtins":
                waiting.append((f"{path}.", value, depth + 1))
    if isinstance(dataset, (list, tuple, dict)):  # a list is a dataset to torch
        yield "", dataset


def _is_object_array(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == object and value.ndim == 1


def _record(path: str, value: Any, until: float) -> ContainerRecord | None:
    """None where it is small, or time is up."""
    n = len(value)
    if not n or perf_counter() > until:
        return None
    entries = _sampled(value, n)
    seen: dict[int, int] = {}  # object -> how many of the sampled entries hold it
    sizes: dict[int, int] = {}
    made_here = int(isinstance(value, dict))  # the pair of key and value
    for entry in entries:
        for one in {id(x): x for x in islice(_objects(entry), made_here, None)}.values():
            seen[id(one)] = seen.get(id(one), 0) + 1
            sizes[id(one)] = _touched_bytes(one)
    # What several of them share (labels, cached numbers) there is once, however many entries.
    own = sum(sizes[x] for x, times in seen.items() if times == 1)
    shared = sum(sizes[x] for x, times in seen.items() if times > 1)
    n_bytes = own * n // len(entries) + shared
    if n_bytes < MIN_BYTES:
        return None
    n_own = sum(times == 1 and sizes[x] > 0 for x, times in seen.items())
    first = entries[0][1] if isinstance(value, dict) else entries[0]
    return ContainerRecord(
        path=path,
        kind=type(value).__name__,
        n=n,
        n_bytes=n_bytes,
        entry=_words(first),
        n_objects=max(1, round(n_own / len(entries))),
    )


def _sampled(value: Any, n: int) -> list[Any]:
    """Entries spread over the container; of a dict, (key, value)."""
    step = max(1, n // SAMPLED_ENTRIES)
    if isinstance(value, (list, tuple, np.ndarray)):
        return [value[i] for i in range(0, n, step)][:SAMPLED_ENTRIES]
    # Others can only be gone through, which would touch their entries: the first ones then.
    return list(islice(value.items() if isinstance(value, dict) else value, SAMPLED_ENTRIES))


def _objects(entry: object) -> Iterator[object]:
    """An entry and what it holds, to a depth and a number."""
    waiting: deque[tuple[object, int]] = deque([(entry, 0)])
    for _ in range(MAX_ENTRY_OBJECTS):
        if not waiting:
            return
        value, depth = waiting.popleft()
        yield value
        if depth >= 4 or isinstance(value, (*_NOT_DATA, str, bytes, int, float)):
            continue
        if isinstance(value, dict):
            waiting.extend((x, depth + 1) for pair in islice(value.items(), 256) for x in pair)
        elif isinstance(value, _CONTAINERS):
            waiting.extend((x, depth + 1) for x in islice(value, MAX_ENTRY_OBJECTS))
        elif not isinstance(value, (torch.Tensor, np.ndarray)):
            attributes = getattr(value, "__dict__", None)
            if isinstance(attributes, dict):
                waiting.append((attributes, depth + 1))


def _touched_bytes(value: object) -> int:
    """What reading this object may copy; 0 of one that is never counted."""
    if value is None or isinstance(value, bool) or (type(value) is int and -5 <= value <= 256):
        return 0  # there is one of each
    if isinstance(value, torch.Tensor):
        size = 80
    elif isinstance(value, np.ndarray):
        size = 112
    else:
        size = object.__sizeof__(value) if type(value).__module__ != "builtins" else _size(value)
    return min(PAGE_BYTES, -(-size // _ALIGN) * _ALIGN)


def _size(value: object) -> int:
    """Of a list or dict its header: the table of pointers is not written to by reading."""
    size = sys.getsizeof(value)
    return min(size, 80) if isinstance(value, (list, dict, set, frozenset, deque)) else size


def _words(value: Any) -> str:
    """What an entry is: `str`, `tuple of str, int`, `dict of 7`, `list of 784 float`."""
    kind = type(value).__name__
    if type(value) is tuple and 0 < len(value) <= 3:
        return f"{kind} of {', '.join(type(x).__name__ for x in value)}"
    if isinstance(value, (list, tuple)) and value:
        return f"{kind} of {len(value)} {type(value[0]).__name__}"
    return f"{kind} of {len(value)}" if isinstance(value, dict) else kind
