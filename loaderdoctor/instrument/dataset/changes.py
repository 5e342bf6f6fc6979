"""What of a dataset changes while a loop reads it.

Workers hold the dataset as it was when they were started. A loop that changes it meanwhile (a
curriculum, an epoch number, a list shuffled in place, a replay buffer) gets other samples from
workers that are started at another time: `marks` are what of its state can be seen to change
(values, content, versions, which object it is). `BetweenPasses` asks the same for advice: what is
kept from epoch to epoch (workers, samples) would stay as it was.
"""

from __future__ import annotations

import array
import weakref
from collections import UserDict, UserList, deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from pathlib import PurePath
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from loaderdoctor.instrument.batches import attributes
from loaderdoctor.instrument.dataset.dataset_code import named_containers

MAX_DEPTH = 8
MAX_MARKS = 10_000  # about three microseconds each
# Of content, which is read again at each pass: a hash costs about a millisecond a megabyte.
MAX_BYTES = 4_000_000
_REFERENCE_BYTES = 8
# Of each loader: what changes from epoch to epoch does so in the first ones too, as a rule, and
# each look may take tens of milliseconds.
MAX_PASSES_LOOKED_AT = 4
ITS_LENGTH, ITS_ENTRIES = "its length", "its entries"
_PLAIN = (str, bytes, int, float, complex, bool, type(None))
_PLAIN_TYPES = frozenset(_PLAIN)
_SEQUENCES = (list, tuple, deque)


@dataclass(frozen=True, slots=True)
class Marks:
    """Equal where no change can be seen."""

    content: Any
    whole: bool  # nothing that can be changed in place was left out


def marks(dataset: object, *, of_values: bool = False) -> Marks:
    """Of a dataset as it is now, and of what its code names that lies outside of it.

    `of_values`: equal for another object that holds the same, as far as that can be seen.
    Never raises: what objects to being looked at is left out.
    """
    look = _Look(of_values=of_values)
    try:
        named = [(name, look.at(value, 1)) for name, value in named_containers(dataset)]
        content = look.at(dataset, 0), tuple(named)
    except Exception:  # any class may object in its own way, and may be changed by a thread
        return Marks(id(dataset), whole=False)
    return Marks(content, whole=look.whole)


class BetweenPasses:
    """What of a loader's dataset the loop was seen to change, in its first passes.

    Between two of them: also by building it anew with other values. What changes within a pass that
    this process reads is the dataset's own doing (samples that it keeps, a file that it opens),
    and tells nothing. A pass that the loop leaves early has no end where that could be told apart:
    then only the length does.

    Or while it reads it, between two fetches of this process (`while_read`): a replay buffer.
    """

    def __init__(self, own: set[str]) -> None:
        """`own`: attributes that datasets change themselves; loaders may share a dataset."""
        self.changed: str | None = None
        self.while_read: str | None = None
        self._n_left = MAX_PASSES_LOOKED_AT
        self._dataset: Callable[[], Any] = _nothing  # the one that was looked at
        self._length: int | None = None
        self._values: dict[str, Any] = {}  # its attributes, as another object may have them too
        self._begun: dict[str, Any] = {}  # and compared by what `marks` compares
        self._last: dict[str, Any] | None = None  # as the loop had them last; None: not known
        self._fetched: dict[str, Any] | None = None  # behind a fetch of this pass
        self._own = own

    def begins(self, loader: DataLoader[Any]) -> None:
        """A pass begins: what the loop changed since the one before is `changed`, from then on."""
        self._fetched = None
        if not self._n_left:
            return
        self._n_left -= 1
        dataset, length = loader.dataset, _length(loader.dataset)
        parts, values = _parts(dataset), _parts(dataset, of_values=True)
        before = self._dataset()
        found = None
        if self._values and length != self._length:
            found = ITS_LENGTH
        elif before is dataset and self._last is not None:
            found = self._by_loop(self._last, parts)
        elif before is not dataset:
            found = self._by_loop(self._values, values)
        self._dataset, self._length = _reference(dataset), length
        self._values, self._begun = values, parts
        self._last = parts if loader.num_workers else None  # workers read copies of it
        self.changed = found or self.changed

    def ended(self, loader: DataLoader[Any]) -> None:
        """A pass found its end."""
        if self._n_left and not loader.num_workers and loader.dataset is self._dataset():
            self._last = _parts(loader.dataset)
            self._own.update(_differing(self._begun, self._last))

    def around(self, dataset: Any, fetch: Callable[[], Any]) -> Any:
        """Fetches a batch in this process, and looks at the dataset before and after."""
        if not self._n_left:
            return fetch()
        before = _parts(dataset)
        if self._fetched is not None:
            self.while_read = self.while_read or self._by_loop(self._fetched, before)
        batch = fetch()
        self._fetched = _parts(dataset)
        self._own.update(_differing(before, self._fetched))
        return batch

    def _by_loop(self, before: dict[str, Any], now: dict[str, Any]) -> str | None:
        return next((x for x in _differing(before, now) if x not in self._own), None)


def _nothing() -> None:
    return None


def _reference(dataset: Any) -> Callable[[], Any]:
    """To the dataset, for as long as it lives."""
    try:
        return weakref.ref(dataset)
    except TypeError:  # a list: what is held instead is another
        return _nothing


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except Exception:  # the user's own __len__ may raise anything
        return None


def _parts(dataset: Any, *, of_values: bool = False) -> dict[str, Any]:
    """What a dataset is compared by, for each of its attributes and of what its code names."""
    content = marks(dataset, of_values=of_values).content
    if not isinstance(content, tuple):  # it objects to being looked at
        return {} if of_values else {ITS_ENTRIES: content}
    inner, named = content
    if isinstance(inner, _Object):
        return dict(inner.held) | dict(named)
    return {ITS_ENTRIES: inner} | dict(named)


def _differing(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    return [name for name, mark in b.items() if name in a and a[name] != mark]


class _Object(NamedTuple):
    """What an object is compared by that is no container of Python's."""

    name: Any  # which object it is, or of values its class
    held: tuple[tuple[str, Any], ...]


class _Look:
    """One look at a dataset; what it returns holds nothing that can be changed."""

    def __init__(self, *, of_values: bool) -> None:
        self.whole = True
        self._of_values = of_values
        self._room = MAX_BYTES
        self._n_marks = 0
        self._seen: dict[int, int] = {}  # objects by id, numbered

    def at(self, value: Any, depth: int) -> Any:
        """What `value` is compared by."""
        if isinstance(value, (*_PLAIN, np.generic)):
            return value
        if isinstance(value, PurePath):  # notes in itself what was asked of it
            return str(value)
        if id(value) in self._seen:
            return self._seen[id(value)]
        self._seen[id(value)] = len(self._seen)
        self._n_marks += 1
        if self._n_marks > MAX_MARKS or depth > MAX_DEPTH:
            return self._unseen(value)
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, np.ndarray):
            return self._array(value, depth)
        if isinstance(value, (bytearray, array.array)):
            return self._bytes(value, len(value) * getattr(value, "itemsize", 1))
        if isinstance(value, _SEQUENCES):
            return self._items(value, depth), self._held(value, depth)
        if isinstance(value, dict):
            if not self._fits(2 * len(value)):
                return self._unseen(value)
            keys = tuple(k if isinstance(k, (*_PLAIN, tuple)) else id(k) for k in value)
            return keys, self._items(value.values(), depth), self._held(value, depth)
        if isinstance(value, (set, frozenset)):
            fits = self._fits(len(value)) and set(map(type, value)) <= _PLAIN_TYPES | {tuple}
            return frozenset(value) if fits else self._unseen(value)
        if isinstance(value, (type, FunctionType)):
            return value.__qualname__ if self._of_values else id(value)
        if hasattr(type(value), "__setitem__") and not isinstance(
            value, (nn.Module, UserDict, UserList)
        ):
            self.whole = False  # a table, say, whose content is out of reach
        return _Object(self._which(value), self._held(value, depth))

    def _which(self, value: Any) -> Any:
        return type(value).__qualname__ if self._of_values else id(value)

    def _tensor(self, value: Tensor) -> Any:
        if not self._of_values:
            return id(value), value._version  # raises for those of inference mode
        about = tuple(value.shape), str(value.dtype)
        if value.device.type != "cpu" or value.is_sparse or not value.is_contiguous():
            return about
        data = value.detach().view(torch.uint8) if value.dim() else value.detach().tolist()
        return about, self._bytes(data.numpy(), value.nbytes) if isinstance(data, Tensor) else data

    def _held(self, value: Any, depth: int) -> tuple[tuple[str, Any], ...]:
        """Its attributes."""
        return tuple((name, self.at(item, depth + 1)) for name, item in attributes(value))

    def _items(self, items: Collection[Any], depth: int) -> Any:
        if not self._fits(len(items)):
            return self._unseen(items)
        kinds = set(map(type, items))
        if kinds <= _PLAIN_TYPES:
            return tuple(items)
        if kinds == {tuple}:  # names with classes, say
            inner: Iterable[Any] = chain.from_iterable(items)
            if set(map(type, inner)) <= _PLAIN_TYPES and self._fits(sum(map(len, items))):
                return tuple(items)
        return tuple(self.at(item, depth + 1) for item in items)

    def _array(self, value: np.ndarray[Any, Any], depth: int) -> Any:
        if value.dtype.hasobject:
            return value.shape, self._items(value.reshape(-1).tolist(), depth)
        about = self._which(value), value.shape, value.dtype.str
        looks = self._of_values or _writable(value)
        return (*about, self._bytes(value, value.nbytes)) if looks else about

    def _bytes(self, value: Any, n_bytes: int) -> Any:
        if not self._fits(n_bytes / _REFERENCE_BYTES):
            return self._unseen(value)
        data = np.ascontiguousarray(value).tobytes() if isinstance(value, np.ndarray) else value
        return blake2b(data, digest_size=16).digest()

    def _fits(self, n_references: float) -> bool:
        """Whether there is room for so much more content; it is taken."""
        n_bytes = n_references * _REFERENCE_BYTES
        if n_bytes > self._room:
            return False
        self._room -= int(n_bytes)
        return True

    def _unseen(self, value: Any) -> Any:
        self.whole = False
        which = self._which(value)
        return which if not hasattr(value, "__len__") else (which, len(value))


def _writable(value: Any) -> bool:
    """Whether its content can be changed in this process, by itself or what it is a view of."""
    while isinstance(value, np.ndarray):
        if value.flags.writeable:
            return True
        value = value.base
    return False
