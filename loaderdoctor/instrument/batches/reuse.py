"""`reuse_buffers`: workers write their batches into shared memory that stays mapped.

A buffer is given back when the last tensor over it is gone: the batch's tensors share a storage
over a Python object, and torch holds that object as long as any tensor, slice or NumPy view of
them lives. So none is ever written into that the loop still holds. Where none is free, or a batch
doesn't fit, it travels as it would have. For workers that are forked: they inherit the buffers.
"""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate, get_worker_info
from torch.utils.data._utils import worker as torch_worker

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.batches.batch_tree import UnsupportedBatch
from loaderdoctor.instrument.batches.digest import digest
from loaderdoctor.instrument.batches.packing import ALIGNMENT, Slot, mapped, packed_into, slots_of
from loaderdoctor.instrument.batches.replay_buffer import Source
from loaderdoctor.instrument.system.machine import shm_free_bytes

# A worker's own: batches that it has ready, one being made, one that the loop holds.
BEYOND_QUEUE = 2
# What later batches may be larger than the first, before they travel as before.
ROOM = 1.25
MAX_SHARE_OF_SHM = 0.9
_ids = itertools.count()
_rings: weakref.WeakValueDictionary[int, Ring] = weakref.WeakValueDictionary()


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
        """The batch as it was collated."""
        memory = self._whole.untyped_storage()
        return mapped(self._rest, lambda x: x.view(memory) if type(x) is Slot else x)

    def pin_memory(self) -> Any:
        """As DataLoader asks of a type of its own: copies in pinned memory, in a plain batch."""
        return mapped(self.host(), lambda x: x.pin_memory() if isinstance(x, Tensor) else x)


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


class ArrivedSource:
    """Batches of `inner`, out of their buffers as they are handed to the loop."""

    def __init__(self, inner: Source) -> None:
        self.inner = inner

    @property
    def startup_ns(self) -> int | None:
        """The inner source's."""
        return self.inner.startup_ns

    def next_batch(self) -> Any:
        """A batch as the loop expects it."""
        batch = self.inner.next_batch()
        return batch.host() if isinstance(batch, RingBatch) else batch

    def drop(self, n: int) -> int:
        """As the inner source."""
        return self.inner.drop(n)

    def close(self) -> None:
        """Close the inner source."""
        self.inner.close()


def ring_for(batch: Any, n_workers: int, ahead: int) -> Ring:
    """Buffers for batches like this, of workers that keep so many `ahead`. Raises TrialRefused."""
    found, rest, end = slots_of(batch, max_bytes=None)
    packed = torch.empty(end, dtype=torch.uint8)
    packed_into(packed, found)
    memory = packed.untyped_storage()
    again = mapped(rest, lambda x: x.view(memory) if type(x) is Slot else x)
    try:
        same = digest(again) == digest(batch)
    except UnsupportedBatch as error:
        raise TrialRefused(f"its batches can't be compared: {error}") from error
    if not found or not same:
        raise TrialRefused("its batches are no plain lists, tuples and dicts of tensors")
    n_bytes = -(-int(end * ROOM) // ALIGNMENT) * ALIGNMENT
    return Ring(n_workers, ahead + BEYOND_QUEUE, n_bytes)
