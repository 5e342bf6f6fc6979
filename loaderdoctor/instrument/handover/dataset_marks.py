"""What of a dataset's state can be seen to change: values, content, versions, which object it is.

Workers hold the dataset as it was when they were started. A loop that changes it meanwhile (a
curriculum, an epoch number, a list shuffled in place) gets other samples from workers that are
started at another time.
"""

from __future__ import annotations

import array
from collections import UserDict, UserList, deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from pathlib import PurePath
from typing import Any

import numpy as np
from torch import Tensor, nn

MAX_DEPTH = 8
MAX_MARKS = 10_000  # about three microseconds each
# Of content, which is read again at each pass: a hash costs about a millisecond a megabyte.
MAX_BYTES = 4_000_000
_REFERENCE_BYTES = 8
_PLAIN = (str, bytes, int, float, complex, bool, type(None))
_PLAIN_TYPES = frozenset(_PLAIN)
_SEQUENCES = (list, tuple, deque)


@dataclass(frozen=True, slots=True)
class Marks:
    """Equal where no change can be seen."""

    content: Any
    whole: bool  # nothing that can be changed in place was left out


def marks(dataset: object) -> Marks:
    """Of a dataset as it is now. Never raises: what objects to being looked at is left out."""
    look = _Look()
    try:
        content = look.at(dataset, 0)
    except Exception:  # any class may object in its own way, and may be changed by a thread
        return Marks(id(dataset), whole=False)
    return Marks(content, whole=look.whole)


class _Look:
    """One look at a dataset; what it returns holds nothing that can be changed."""

    def __init__(self) -> None:
        self.whole = True
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
            return id(value), value._version  # raises for those of inference mode
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
        if isinstance(value, type):
            return id(value)
        if hasattr(type(value), "__setitem__") and not isinstance(
            value, (nn.Module, UserDict, UserList)
        ):
            self.whole = False  # a table, say, whose content is out of reach
        return id(value), self._held(value, depth)

    def _held(self, value: Any, depth: int) -> Any:
        """Its attributes."""
        held = getattr(value, "__dict__", None)
        found = dict(held) if isinstance(held, dict) else {}
        for kind in type(value).__mro__:
            slots = vars(kind).get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else tuple(slots):
                if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                    found[name] = getattr(value, name)
        return tuple((name, self.at(item, depth + 1)) for name, item in found.items())

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
        about = id(value), value.shape, value.dtype.str
        return (*about, self._bytes(value, value.nbytes)) if _writable(value) else about

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
        return id(value) if not hasattr(value, "__len__") else (id(value), len(value))


def _writable(value: Any) -> bool:
    """Whether its content can be changed in this process, by itself or what it is a view of."""
    while isinstance(value, np.ndarray):
        if value.flags.writeable:
            return True
        value = value.base
    return False
