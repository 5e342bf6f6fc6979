"""Batches as trees: find the tensors of any batch, rebuild it around other tensors, hash it.

A batch is a tensor, or dicts, lists, tuples, named tuples, dataclasses and custom objects that
hold tensors at any depth. Python objects only: but for its hashes (`digest`, `fingerprint`)
nothing here touches a tensor's content.
"""

from __future__ import annotations

import copy
import pickle
import types
import weakref
from collections.abc import Callable, Collection, Iterator
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.wire.records import TensorRecord

OnTensor = Callable[[str, Tensor], Tensor]
Array = np.ndarray[Any, Any]

# Deeper or larger batches are no batches: an object that leads to a dataset or a tokenizer.
MAX_DEPTH = 12
MAX_NODES = 200_000

_LEAVES = (
    str, bytes, bytearray, int, float, complex, bool, type(None), type, range,
    types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType,
    torch.device, torch.dtype, torch.nn.Module, weakref.ref,
)  # fmt: skip
_PLAIN = (str, bytes, bytearray, int, float, complex, bool, type(None))
# Of each tensor, its first bytes: hashing a megabyte takes about a millisecond.
MAX_BYTES = 2**20


class UnsupportedBatch(TrialRefused):
    """A batch, or a dataset, that can't be walked, copied or compared; the message says why."""


def tensors(batch: Any) -> list[tuple[str, Tensor]]:
    """Each tensor of the batch once, with its path (`[0]`, `['image']`, `.pixel_values`).

    Raises UnsupportedBatch where the batch is too deep or leads to too many objects.
    """
    found = nodes(batch, leaves=False)
    return [(path, node) for path, node in found if isinstance(node, Tensor)]


def nodes(batch: Any, *, leaves: bool = True) -> Iterator[tuple[str, Any]]:
    """Every node with its path, parents first; what a container holds once.

    `leaves`: plain values too, and what is held twice twice. Raises UnsupportedBatch where the
    batch is too deep or leads to too many objects.
    """
    seen: set[int] = set()
    n_nodes = 0
    stack: list[tuple[str, Any, int]] = [("", batch, 0)]
    while stack:
        path, node, depth = stack.pop()
        ends = isinstance(node, _LEAVES) or id(node) in seen
        if ends and not leaves:
            continue
        n_nodes += 1
        if depth > MAX_DEPTH or n_nodes > MAX_NODES:
            raise UnsupportedBatch(
                f"{type(batch).__name__} leads to more than {MAX_NODES} objects or is nested "
                f"deeper than {MAX_DEPTH}"
            )
        yield path, node
        if not ends:
            seen.add(id(node))
            if not isinstance(node, (Tensor, np.ndarray)):
                stack.extend((at, item, depth + 1) for at, item in reversed(_items(node, path)))


def integers(batch: Any, most: int) -> tuple[int, ...]:
    """The first `most` whole numbers: Python's own, and of tensors with one element in host memory.

    Lengths, counts and sizes: what code of the loop may branch on.
    """
    found: list[int] = []
    seen: set[int] = set()
    stack: list[tuple[Any, int]] = [(batch, 0)]
    while stack and len(found) < most:
        node, depth = stack.pop()
        if isinstance(node, int):
            found.append(int(node))
        elif isinstance(node, Tensor):
            if _is_host_integer(node):
                found.append(int(node))
        elif not isinstance(node, (np.ndarray, *_LEAVES)) and id(node) not in seen:
            seen.add(id(node))
            if depth < MAX_DEPTH and len(seen) <= MAX_NODES:
                plain = type(node) in (list, tuple)
                inner = node[:most] if plain else [item for _, item in _items(node, "")]
                stack.extend((item, depth + 1) for item in reversed(inner))
    return tuple(found)


def holders(batch: Any) -> frozenset[int]:
    """`id` of every container that holds a tensor or an array, directly or deeper.

    Valid while the batch lives. `rebuild` uses it to pass over long lists of plain values.
    """
    found: set[int] = set()
    _holds(batch, found, {}, 0)
    return frozenset(found)


def rebuild(
    batch: Any,
    on_tensor: OnTensor,
    *,
    on_array: Callable[[Array], Array] | None = None,
    holding: Collection[int] | None = None,
) -> Any:
    """The same batch with each tensor replaced by `on_tensor(path, tensor)`.

    Lists, dicts and objects that hold tensors are new, so that what the loop does to a container
    stays there; other leaves are shared. A tensor that occurs twice is replaced once. `holding`
    is `holders(batch)` where that is known. Raises UnsupportedBatch.
    """
    kind = type(batch)
    if kind is list or kind is tuple:  # what most loaders yield: no bookkeeping
        if all(type(item) is Tensor for item in batch) and len(set(map(id, batch))) == len(batch):
            return kind([on_tensor(f"[{i}]", item) for i, item in enumerate(batch)])
    elif isinstance(batch, Tensor):
        return on_tensor("", batch)
    held = holders(batch) if holding is None else holding
    return _Rebuilder(on_tensor, on_array, held).rebuilt(batch, "")


class _Rebuilder:
    """One rebuild: remembers what it has replaced, so shared and cyclic references hold."""

    def __init__(
        self,
        on_tensor: OnTensor,
        on_array: Callable[[Array], Array] | None,
        holding: Collection[int],
    ) -> None:
        self._on_tensor = on_tensor
        self._on_array = on_array
        self._holding = holding
        self._done: dict[int, Any] = {}

    def rebuilt(self, node: Any, path: str) -> Any:
        if isinstance(node, _LEAVES):
            return node
        if id(node) in self._done:
            return self._done[id(node)]
        if isinstance(node, Tensor):
            made: Any = self._on_tensor(path, node)
        elif isinstance(node, np.ndarray):
            made = self._on_array(node) if self._on_array is not None else node
        elif id(node) not in self._holding:
            return copy.copy(node) if type(node) in (list, dict) else node
        else:
            return self._container(node, path)
        self._done[id(node)] = made
        return made

    def _container(self, node: Any, path: str) -> Any:
        made: Any
        if isinstance(node, tuple):
            items = [self.rebuilt(item, at) for at, item in _items(node, path)]
            if hasattr(node, "_fields"):
                # `_make` where there is one skips checks a subclass does in `__new__`
                made = tuple.__new__(type(node), items)
            else:
                made = type(node)(items) if type(node) is not tuple else tuple(items)
            self._done[id(node)] = made
            return made
        made = bare_copy(node)
        self._done[id(node)] = made
        if isinstance(node, list):
            for i, (at, item) in enumerate(_items(node, path)):
                list.__setitem__(made, i, self.rebuilt(item, at))
        elif isinstance(node, dict):
            for key, item in node.items():
                dict.__setitem__(made, key, self.rebuilt(item, f"{path}[{key!r}]"))
        for name, item in attributes(node):
            _set(made, name, self._attribute(item, f"{path}.{name}"))
        return made

    def _attribute(self, item: Any, path: str) -> Any:
        if isinstance(item, weakref.ref) and id(item()) in self._done:
            return weakref.ref(self._done[id(item())])  # a child's link to its parent
        return self.rebuilt(item, path)


def _is_host_integer(tensor: Tensor) -> bool:
    if type(tensor) is not Tensor or tensor.device.type != "cpu" or tensor.numel() != 1:
        return False
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.is_quantized)


def _holds(node: Any, found: set[int], known: dict[int, bool], depth: int) -> bool:
    if isinstance(node, _LEAVES):
        return False
    if isinstance(node, (Tensor, np.ndarray)):
        return True
    if id(node) in known:
        return known[id(node)]
    if depth > MAX_DEPTH or len(known) > MAX_NODES:
        raise UnsupportedBatch(f"a batch nested deeper than {MAX_DEPTH} or too large to walk")
    known[id(node)] = False
    holds = False
    for _, item in _items(node, ""):  # no short cut: every child has to be known
        holds = _holds(item, found, known, depth + 1) or holds
    known[id(node)] = holds
    if holds:
        found.add(id(node))
    return holds


def _items(node: Any, path: str) -> list[tuple[str, Any]]:
    """The children of one node with their paths. Raises UnsupportedBatch."""
    try:
        return list(_children(node, path))
    except Exception as error:  # a class of the user's own, which may object to being walked
        raise UnsupportedBatch(f"{type(node).__name__} can't be walked: {error!r}") from error


def _children(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        yield from ((f"{path}.{name}", item) for name, item in zip(node._fields, node, strict=True))
    elif isinstance(node, (list, tuple)):
        yield from ((f"{path}[{i}]", item) for i, item in enumerate(node))
    elif isinstance(node, dict):
        yield from ((f"{path}[{key!r}]", item) for key, item in node.items())
    if not isinstance(node, tuple):
        yield from ((f"{path}.{name}", item) for name, item in attributes(node))


def attributes(node: Any) -> Iterator[tuple[str, Any]]:
    """What an object stores itself, in `__dict__` and `__slots__`."""
    stored = getattr(node, "__dict__", None)
    if isinstance(stored, dict):
        yield from list(stored.items())
    for kind in type(node).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name in ("__dict__", "__weakref__"):
                continue
            full = f"_{kind.__name__.lstrip('_')}{name}" if name.startswith("__") else name
            descriptor = kind.__dict__.get(full)
            if isinstance(descriptor, types.MemberDescriptorType):
                try:
                    yield full, descriptor.__get__(node, kind)
                except AttributeError:
                    continue  # a slot never filled


def _set(node: Any, name: str, value: Any) -> None:
    """Store an attribute past frozen dataclasses and `__setattr__` of the user's own."""
    stored = getattr(node, "__dict__", None)
    if isinstance(stored, dict) and name in stored:
        stored[name] = value
    else:
        object.__setattr__(node, name, value)


def bare_copy(node: Any) -> Any:
    """A new object of the same type with the same children, sharing no container with it.

    Raises UnsupportedBatch where its class doesn't let it be copied.
    """
    kind = type(node)
    try:
        if isinstance(node, (list, dict)):
            return kind(node) if kind in (list, dict) else copy.copy(node)
        try:
            made = object.__new__(kind)
        except TypeError:  # a C type as base: its own idea of a copy
            made = copy.copy(node)
    except Exception as error:  # the user's own __copy__
        raise UnsupportedBatch(f"{kind.__name__} can't be copied: {error}") from error
    if isinstance(getattr(node, "__dict__", None), dict):
        made.__dict__.update(node.__dict__)  # past properties of the same names
    for name, item in attributes(node):
        _set(made, name, item)
    return made


def digest(batch: Any) -> bytes:
    """Of its structure, types, plain values and all bytes of tensors and arrays.

    Raises UnsupportedBatch where it holds what can't be compared (it is no data).
    """
    hashed = blake2b(digest_size=16)
    for path, node in nodes(batch):
        hashed.update(f"{path}\0{type(node).__module__}.{type(node).__qualname__}\0".encode())
        if isinstance(node, Tensor):
            _add_tensor(hashed, node)
        elif isinstance(node, np.ndarray) and node.dtype != np.dtype(object):
            hashed.update(f"{node.dtype}{node.shape}".encode())
            hashed.update(np.ascontiguousarray(node).reshape(-1).view(np.uint8).data)
        elif isinstance(node, _PLAIN):
            hashed.update(repr(node).encode())
        elif isinstance(node, (set, frozenset)):
            hashed.update(repr(sorted(map(repr, node))).encode())
        elif not isinstance(node, (list, tuple, dict)) and not getattr(node, "__dict__", None):
            _add_opaque(hashed, node)
    return hashed.digest()


def _add_tensor(hashed: blake2b, tensor: Tensor) -> None:
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise UnsupportedBatch(
            f"its batches can't be compared: a {tensor.layout} tensor can't be compared bit by bit"
        )
    hashed.update(f"{tensor.dtype}{tuple(tensor.shape)}{tensor.device.type}".encode())
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    if plain.numel():
        hashed.update(plain.reshape(-1).view(torch.uint8).numpy().data)


def _add_opaque(hashed: blake2b, node: Any) -> None:
    """A value without attributes of its own: what pickling makes of it."""
    try:
        hashed.update(pickle.dumps(node))
    except Exception as error:  # any type may refuse in its own way
        raise UnsupportedBatch(
            f"its batches can't be compared: a {type(node).__name__} can't be compared"
        ) from error


def fingerprint(batch: Any) -> bytes | None:
    """Of its tensors in host memory; None where it has none, or they can't be read as bytes."""
    try:
        found = tensors(batch)
        known = blake2b(digest_size=16)
        for path, tensor in found:
            if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
                return None
            flat = tensor.detach().reshape(-1)[: MAX_BYTES // max(1, tensor.element_size())]
            known.update(f"{path}{tuple(tensor.shape)}{tensor.dtype}".encode())
            known.update(flat.contiguous().view(torch.uint8).numpy().tobytes())
    except (UnsupportedBatch, RuntimeError, TypeError):  # quantised, nested, a subclass of its own
        return None
    return known.digest() if found else None


def holds_others(batch: object) -> bool:
    """Whether an entry of a list, a tuple or a dict is no tensor: a name, a number, a list."""
    if not isinstance(batch, (list, tuple, dict)):
        return False
    entries = batch.values() if isinstance(batch, dict) else batch
    return not all(isinstance(entry, Tensor) for entry in entries)


def describe_batch(batch: object) -> tuple[TensorRecord, ...]:
    """The tensors of a batch as the loop receives it; empty for a batch that can't be walked."""
    try:
        found = tensors(batch)
    except UnsupportedBatch:
        return ()
    return tuple(
        TensorRecord(
            path=path,
            shape=tuple(tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
            n_bytes=tensor.numel() * tensor.element_size(),
            pinned=_pinned(tensor),
            device=str(tensor.device),
        )
        for path, tensor in found
    )


def _pinned(tensor: torch.Tensor) -> bool:
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        return False
    return torch.cuda.is_available() and tensor.is_pinned()
