"""A dataset with some of what it holds replaced; the user's own object is left as it is.

Only the objects on the way to a replaced value are copied, shallowly and without running code of
the user's (`__copy__` and `__getstate__` of a dataset often drop its open files).
"""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import IterableDataset

from loaderdoctor.errors import TrialRefused

Replacement = Callable[[Any], Any]  # the value itself where it stays

MAX_DEPTH = 12
# Paths and labels of a large image folder are some 4 million values.
MAX_VALUES = 20_000_000

_PLAIN = (int, float, complex, bool, type(None), bytes, bytearray, type)
_CLOSED = (
    types.ModuleType, types.FunctionType, types.BuiltinFunctionType, Tensor, np.memmap,
)  # fmt: skip


def replaced(dataset: Any, replacement: Replacement) -> Any:
    """`dataset` with every value `v` that it leads to replaced by `replacement(v)`.

    The very same object where nothing changes. Raises TrialRefused where it is too large to search.
    """
    return _Visit(replacement).visit(dataset, 0)


class _Visit:
    """One walk; remembers what it has made, so that shared and cyclic references hold."""

    def __init__(self, replacement: Replacement) -> None:
        self._replacement = replacement
        self._made: dict[int, Any] = {}
        self._under_way: set[int] = set()
        self._keep: list[Any] = []  # ids stay valid while this lives
        self._n = 0

    def visit(self, node: Any, depth: int) -> Any:
        kind = type(node)
        if kind in _PLAIN or depth > MAX_DEPTH:
            return node
        self._n += 1
        if self._n > MAX_VALUES:
            raise TrialRefused("the dataset leads to too many objects to be searched")
        if id(node) in self._made:
            return self._made[id(node)]
        new = self._replacement(node)
        if new is not node or isinstance(node, (str, *_CLOSED)):
            return new
        if isinstance(node, (list, tuple, dict)):
            return self._remember(node, self._container(node, depth))
        if isinstance(node, np.ndarray):
            return self._remember(node, self._array(node, depth))
        if isinstance(node, types.MethodType):
            owner = self.visit(node.__self__, depth + 1)
            same = owner is node.__self__
            return node if same else types.MethodType(node.__func__, owner)
        if isinstance(node, functools.partial):
            parts = (node.func, node.args, node.keywords)
            func, args, keywords = (self.visit(part, depth + 1) for part in parts)
            same = all(a is b for a, b in zip((func, args, keywords), parts, strict=True))
            return node if same else functools.partial(func, *args, **keywords)
        return self._object(node, depth)

    def _remember(self, node: Any, new: Any) -> Any:
        if not isinstance(node, tuple):  # millions of (path, label) pairs are shared by nobody
            self._keep.append(node)
            self._made[id(node)] = new
        return new

    def _container(self, node: Any, depth: int) -> Any:
        if isinstance(node, dict):
            items = {key: self.visit(value, depth + 1) for key, value in node.items()}
            if all(items[key] is value for key, value in node.items()):
                return node
            made = copy.copy(node)
            made.update(items)
            return made
        values = [self.visit(value, depth + 1) for value in node]
        if all(a is b for a, b in zip(values, node, strict=True)):
            return node
        if hasattr(node, "_fields"):
            return type(node)(*values)
        if type(node) in (list, tuple):
            return type(node)(values)
        made = copy.copy(node)
        if isinstance(made, list):
            made[:] = values
            return made
        return node  # a tuple of the user's own: not to be built without its constructor

    def _array(self, node: np.ndarray[Any, Any], depth: int) -> Any:
        """Arrays of strings or objects, such as paths."""
        if node.dtype.kind not in "UO":
            return node
        values = node.reshape(-1).tolist()
        made = [self.visit(value, depth + 1) for value in values]
        if all(a is b for a, b in zip(made, values, strict=True)):
            return node
        flat = np.array(made) if node.dtype.kind == "U" else np.array([None, *made], object)[1:]
        return flat.reshape(node.shape)

    def _object(self, node: Any, depth: int) -> Any:
        attributes = getattr(node, "__dict__", None)
        if not isinstance(attributes, dict):
            return node
        key = id(node)
        if key in self._under_way:  # a cycle: what refers back gets the copy
            self._made[key] = _bare(node)
            return self._made[key]
        self._under_way.add(key)
        self._keep.append(node)
        new = {name: self.visit(value, depth + 1) for name, value in list(attributes.items())}
        self._under_way.discard(key)
        changed = any(new[name] is not attributes[name] for name in new)
        if not changed and key not in self._made:
            self._made[key] = node
            return node
        made = self._made.setdefault(key, _bare(node)) if key not in self._made else self._made[key]
        vars(made).update(new)
        return made


def _bare(node: Any) -> Any:
    """A new object with the same attributes."""
    kind = type(node)
    try:
        made = object.__new__(kind)
    except TypeError:  # a C type as base: its own idea of a copy
        return copy.copy(node)
    vars(made).update(vars(node))
    for name in _slots(kind):
        if hasattr(node, name):
            object.__setattr__(made, name, getattr(node, name))
    return made


def _slots(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        names = base.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if name not in ("__dict__", "__weakref__"):
                yield f"_{base.__name__.lstrip('_')}{name}" if name.startswith("__") else name


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
