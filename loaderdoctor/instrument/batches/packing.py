"""`packed` and `reuse_buffers`: the tensors of a batch travel in one memory.

`packed`: small tensors travel as one, and are views of it on the device. Packed where the batch is
collated (in a worker, into shared memory), so that a queue, the pin-memory thread and the copy each
handle one tensor. A view has a version of its own: what the loop writes into one does not count as
a change of the others.

`reuse_buffers`: workers write their batches into shared memory that stays mapped. A buffer is given
back when the last tensor over it is gone: the batch's tensors share a storage over a Python object,
and torch holds that object as long as any tensor, slice or NumPy view of them lives. So none is
ever written into that the loop still holds. Where none is free, or a batch doesn't fit, it travels
as it would have. For workers that are forked: they inherit the buffers.
"""

from __future__ import annotations

import itertools
import os
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import default_collate, get_worker_info
from torch.utils.data._utils import worker as torch_worker

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.batches import digest, tensors
from loaderdoctor.instrument.batches.h2d import ToDevice, raw_to
from loaderdoctor.instrument.system.machine import shm_free_bytes

# Larger tensors travel alone: packing copies them once more, and their copies are not the many.
MAX_SMALL_BYTES = 2**20
MIN_SMALL = 2  # of them in a batch, or there is nothing to pack
# Kernels read rows of 16 bytes at once, allocators align to 64 and more.
ALIGNMENT = 64
NOT_PLAIN = "its batches are no plain lists, tuples and dicts of tensors"
# A worker's own: batches that it has ready, one being made, one that the loop holds.
BEYOND_QUEUE = 2
# What later batches may be larger than the first, before they travel as before.
ROOM = 1.25
MAX_SHARE_OF_SHM = 0.9
_ids = itertools.count()
_rings: weakref.WeakValueDictionary[int, Ring] = weakref.WeakValueDictionary()


class Slot(NamedTuple):
    """Where a tensor of the batch lies in the packed one.

    Dozens of them travel with each batch: a dataclass takes a hundred times as long to unpickle.
    """

    path: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    at: int  # bytes

    def view(self, memory: torch.UntypedStorage) -> Tensor:
        """The tensor, over the memory of the packed one, wherever that is."""
        item = torch.empty(0, dtype=self.dtype, device=memory.device)
        return item.set_(memory, self.at // item.element_size(), self.shape)  # type: ignore[call-overload, no-any-return]


@dataclass(slots=True)
class PackedBatch:
    """A batch whose small tensors are in `packed`; in `rest` slots stand in their places."""

    packed: Tensor  # bytes
    rest: Any

    def pin_memory(self) -> PackedBatch:
        """As DataLoader asks of a type of its own: everything pinned."""
        return PackedBatch(self.packed.pin_memory(), mapped(self.rest, _pinned))

    def host(self) -> Any:
        return unpacked(self.packed, self.rest)


class PackingCollate:
    """The collate function, and its batches packed. Its first batch in each process is compared."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate
        self._compared = False

    def __call__(self, samples: Any) -> PackedBatch:
        """Collate and pack. Raises TrialRefused where that is not the batch as it was."""
        batch = self._collate(samples)
        made = pack(batch)
        if not self._compared:
            slots: list[Any] = []
            mapped(made.rest, lambda x: slots.append(x) if type(x) is Slot else None)
            if len(slots) < MIN_SMALL:
                raise TrialRefused(
                    f"a batch has {len(slots)} small tensors in host memory: there is nothing to "
                    "pack"
                )
            _require_equal(made.host(), batch)
            self._compared = True
        return made


def pack(batch: Any) -> PackedBatch:
    """The batch with its small tensors in one. Raises TrialRefused."""
    found, rest, end = slots_of(batch, max_bytes=MAX_SMALL_BYTES, strided=True)
    packed = _memory(end)
    packed_into(packed, found)
    return PackedBatch(packed, rest)


def unpacked(packed: Tensor, rest: Any) -> Any:
    """The batch again: views of `packed`, in the memory where it lies, for the slots in `rest`."""
    memory = packed.untyped_storage()
    return mapped(rest, lambda x: x.view(memory) if type(x) is Slot else x)


def slots_of(
    batch: Any, *, max_bytes: int | None, strided: bool = False
) -> tuple[list[Tensor], Any, int]:
    """Dense tensors of the batch, the batch with slots in their places, and the bytes in all.

    Those above `max_bytes` stay. `strided`: slices of larger tensors count too, which are
    dense once they are copied. Raises TrialRefused.
    """
    paths = {id(tensor): path for path, tensor in tensors(batch)}
    found: list[Tensor] = []
    end = 0

    def slot(node: Any) -> Any:
        nonlocal end
        if not isinstance(node, Tensor) or not _is_plain(node):
            return node
        if not (node.is_contiguous() or (strided and torch.empty_like(node).is_contiguous())):
            return node
        if max_bytes is not None and node.nbytes > max_bytes:
            return node
        found.append(node)
        at, end = end, end - (-node.nbytes // ALIGNMENT) * ALIGNMENT
        return Slot(paths.get(id(node), ""), node.dtype, tuple(node.shape), at)

    return found, mapped(batch, slot), end


def packed_into(packed: Tensor, found: list[Tensor]) -> None:
    """Write the bytes of these tensors into `packed`, each where its slot says."""
    gaps = torch.zeros(ALIGNMENT, dtype=torch.uint8)
    parts = []
    for tensor in found:
        parts.append(tensor.reshape(-1).view(torch.uint8))
        if short := -tensor.nbytes % ALIGNMENT:
            parts.append(gaps[:short])
    if parts:
        torch.cat(parts, out=packed)


class PackedToDevice(ToDevice):
    """Moves what the loop moves: of the packed tensors all with one copy."""

    def __init__(self, to_device: ToDevice) -> None:
        self.__dict__.update(vars(to_device))

    def move(self, batch: Any) -> tuple[Any, list[Tensor]]:
        """The batch as the loop expects it, and the new tensors."""
        if not isinstance(batch, PackedBatch):
            return super().move(batch)
        whole = raw_to(batch.packed, self.device, non_blocking=self.non_blocking)
        moved: list[Tensor] = [whole]
        here, there = batch.packed.untyped_storage(), whole.untyped_storage()
        paths: dict[int, str] | None = None  # of tensors that are not packed, where there are any

        def place(node: Any) -> Any:
            nonlocal paths
            if type(node) is Slot:
                if not self.moves_like(node.path, node.dtype, node.shape):
                    return node.view(here)
                moved.append(node.view(there))
                return moved[-1]
            if isinstance(node, Tensor):
                if paths is None:
                    paths = {id(tensor): path for path, tensor in tensors(batch.rest)}
                if self.moves(paths.get(id(node), ""), node):
                    moved.append(raw_to(node, self.device, non_blocking=self.non_blocking))
                    return moved[-1]
            return node

        return mapped(batch.rest, place), moved


def _is_plain(tensor: Tensor) -> bool:
    return (
        type(tensor) is Tensor
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and not tensor.requires_grad
        and not tensor.is_quantized
        and not (tensor.is_conj() or tensor.is_neg())
    )


def _memory(n_bytes: int) -> Tensor:
    """Uninitialised bytes; in a worker shared with the training process, as torch collates."""
    if get_worker_info() is None:
        return torch.empty(n_bytes, dtype=torch.uint8)
    shared: Any = torch.UntypedStorage
    return torch.empty(0, dtype=torch.uint8).set_(shared._new_shared(n_bytes))


def _require_equal(made: Any, batch: Any) -> None:
    if digest(made) != digest(batch):
        raise TrialRefused(NOT_PLAIN)


def mapped(node: Any, leaf: Callable[[Any], Any]) -> Any:
    """A new tree of the plain containers, its leaves as `leaf` gives them; all else is a leaf."""
    kind = type(node)
    if kind is Slot:
        return leaf(node)
    if kind is list or kind is tuple:
        return kind([mapped(x, leaf) for x in node])
    if isinstance(node, tuple) and hasattr(kind, "_fields"):
        return kind(*[mapped(x, leaf) for x in node])
    if kind is dict or kind is OrderedDict:
        return kind((key, mapped(x, leaf)) for key, x in node.items())
    return leaf(node)


def _pinned(node: Any) -> Any:
    return node.pin_memory() if isinstance(node, Tensor) else node


class Ring:
    """Buffers of `n_bytes` each, `n_each` for every worker. Made in the training process.

    Raises TrialRefused where /dev/shm has no room for them.
    """

    def __init__(self, n_workers: int, n_each: int, n_bytes: int) -> None:
        needed, free = n_workers * n_each * n_bytes, shm_free_bytes()
        if free is not None and needed > MAX_SHARE_OF_SHM * free:
            raise TrialRefused(
                f"the buffers take {needed} bytes of /dev/shm, which has {free} free"
            )
        self._n_each = n_each
        self._taken: Tensor = torch.zeros(n_workers * n_each, dtype=torch.uint8)
        self._memory: Tensor = torch.empty(n_workers * n_each, n_bytes, dtype=torch.uint8)
        for tensor in (self._taken, self._memory):
            tensor.share_memory_()  # type: ignore[no-untyped-call]
        # Of them, what tensors of this process lie in, and which of its batches that is.
        self._held: dict[int, int] = {}
        self._generations = itertools.count()
        self._pid = os.getpid()
        self.id = next(_ids)
        _rings[self.id] = self

    def put(self, worker: int, batch: Any) -> Any:
        """The batch in a free buffer of that worker; the batch itself where there is none."""
        found, slots, end = slots_of(batch, max_bytes=None)
        if not found or end > self._memory.shape[1]:
            return batch
        first = worker * self._n_each
        free = next((k for k in range(first, first + self._n_each) if not self._taken[k]), None)
        if free is None:
            return batch
        self._taken[free] = 1  # by this worker alone, and cleared by the training process alone
        packed_into(self._memory[free, :end], found)
        return _Sent(self.id, free, slots)

    def received(self, k: int) -> Tensor:
        """The bytes of that buffer, given back when no tensor over them is left."""
        owner = memoryview(self._memory[k].numpy())  # type: ignore[arg-type]  # it is a buffer
        self._held[k] = generation = next(self._generations)
        weakref.finalize(owner, self._give_back, k, generation).atexit = False
        return torch.frombuffer(owner, dtype=torch.uint8)

    def new_epoch(self) -> None:
        """Buffers that were on their way when workers ended are free again."""
        for k in range(len(self._taken)):
            if k not in self._held:
                self._taken[k] = 0

    def _give_back(self, k: int, generation: int) -> None:
        # A forked child drops its copies of this process's tensors, and `_taken` is shared.
        if os.getpid() != self._pid or self._held.get(k) != generation:
            return
        del self._held[k]
        self._taken[k] = 0


class _Sent:
    """A batch on its way out of a worker; what is unpickled of it is a `RingBatch`."""

    def __init__(self, ring: int, k: int, rest: Any) -> None:
        self._parts = (ring, k, rest)

    def __reduce__(self) -> tuple[Any, tuple[int, int, Any]]:
        return RingBatch, self._parts


class RingBatch:
    """A batch that has arrived in a buffer; it is given back with the last tensor of it."""

    def __init__(self, ring: int, k: int, rest: Any) -> None:
        self._whole = _rings[ring].received(k)
        self._rest = rest

    def host(self) -> Any:
        return unpacked(self._whole, self._rest)

    def pin_memory(self) -> Any:
        """As DataLoader asks of a type of its own: copies in pinned memory, in a plain batch."""
        return mapped(self.host(), _pinned)


def arrived(batch: Any) -> Any:
    """A batch as the loop expects it, out of its buffer where it came in one."""
    return batch.host() if isinstance(batch, RingBatch) else batch


class ReusingCollate:
    """The collate function, its batches put into a ring by the worker that makes them."""

    def __init__(self, collate: Callable[[Any], Any], ring: Ring) -> None:
        self._collate, self._ring = collate, ring

    def __call__(self, samples: Any) -> Any:
        """Collate; without a worker nothing is handed over, and the batch is as it is."""
        info = get_worker_info()
        if info is None or self._collate is not default_collate:
            batch = self._collate(samples)
        else:
            # torch would collate into new shared memory, which is what is to be spared.
            there: Any = torch_worker
            there._worker_info = None
            try:
                batch = self._collate(samples)
            finally:
                there._worker_info = info
        return batch if info is None else self._ring.put(info.id, batch)


def ring_for(batch: Any, n_workers: int, ahead: int) -> Ring:
    """Buffers for batches like this, of workers that keep so many `ahead`. Raises TrialRefused."""
    found, rest, end = slots_of(batch, max_bytes=None)
    packed = torch.empty(end, dtype=torch.uint8)
    packed_into(packed, found)
    _require_equal(unpacked(packed, rest), batch)
    if not found:
        raise TrialRefused(NOT_PLAIN)
    n_bytes = -(-int(end * ROOM) // ALIGNMENT) * ALIGNMENT
    return Ring(n_workers, ahead + BEYOND_QUEUE, n_bytes)
