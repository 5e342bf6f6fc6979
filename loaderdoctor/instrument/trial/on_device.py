"""Batches that are on the device before the loop asks: moved on a side stream, or all resident."""

from __future__ import annotations

import contextlib
import random
import time
from collections import deque
from typing import Any

import torch
from torch import Tensor

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.batches.batch_tree import rebuild, tensors
from loaderdoctor.instrument.batches.h2d import ToDevice
from loaderdoctor.instrument.batches.replay_buffer import Source
from loaderdoctor.instrument.system.memory import available_bytes, gpu_free_bytes


class SideStreamSource:
    """One batch ahead of the loop, copied on a side stream.

    The loop's stream waits for the copy, the allocator is told of both streams, and a host batch
    is let go only after its copy is complete. Raises from the wrapped source pass through.
    """

    def __init__(self, inner: Source, to_device: ToDevice) -> None:
        self._inner = inner
        self._to_device = to_device
        self._stream = torch.cuda.Stream(device=to_device.device)  # type: ignore[no-untyped-call]
        self._ahead: tuple[Any, list[torch.Tensor]] | None = None
        self._under_way: deque[tuple[torch.cuda.Event, Any]] = deque()
        self._closed = False

    @property
    def startup_ns(self) -> int | None:
        """The wrapped source's."""
        return self._inner.startup_ns

    @property
    def inner(self) -> Source:
        """What it reads from."""
        return self._inner

    def next_batch(self) -> Any:
        """A batch on the device, ready for the caller's current stream; the next is under way."""
        if self._closed:
            raise StopIteration
        if self._ahead is None:
            self._fetch()
        assert self._ahead is not None
        batch, moved = self._ahead
        self._ahead = None
        current = torch.cuda.current_stream(self._to_device.device)
        current.wait_stream(self._stream)
        for tensor in moved:
            tensor.record_stream(current)
        with contextlib.suppress(StopIteration):  # the next call finds the end itself
            self._fetch()
        return batch

    def drop(self, n: int) -> int:
        """The batch ahead counts as one."""
        if n > 0 and self._ahead is not None:
            self._ahead = None
            return 1 + self._inner.drop(n - 1)
        return self._inner.drop(n)

    def close(self) -> None:
        """Wait for copies under way, then close the wrapped source."""
        self._closed = True
        self._ahead = None
        if self._under_way:
            self._stream.synchronize()
            self._under_way.clear()
        self._inner.close()

    def _fetch(self) -> None:
        host_batch = self._inner.next_batch()
        while self._under_way and self._under_way[0][0].query():  # type: ignore[no-untyped-call]
            self._under_way.popleft()
        with torch.cuda.stream(self._stream):
            self._ahead = self._to_device.move(host_batch)
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record(self._stream)
        self._under_way.append((done, host_batch))


# The whole dataset on the device: one epoch's batches are copied there once, then reused.
#
# Random augmentation stays as it was drawn the first time: whoever advises this says so.

# Of the free device memory; the rest is the loop's own room to breathe.
MAX_SHARE_OF_FREE_MEMORY = 0.80
# Filling takes one epoch of loading; nobody waits longer than this for one trial.
FILL_LIMIT_S = 120.0
# Batches after which the time and the bytes of the rest are foretold.
N_PROBED = 8


class ResidentSource:
    """Batches that live on the device, in a new order each epoch where the loader shuffles.

    Fills itself from `inner`, one epoch of `n_batches`, which it closes. Raises TrialRefused where
    they don't fit or filling takes too long.
    """

    def __init__(
        self, inner: Source, to_device: ToDevice, n_batches: int, *, shuffle: bool
    ) -> None:
        self._to_device = to_device
        self._shuffle = shuffle
        self._random = random.Random(0)
        self._clone = False
        self._batches: list[_Kept] = []
        self._last: _Kept | None = None
        began = time.perf_counter_ns()
        try:
            self._fill(inner, n_batches)
        except BaseException:
            self._batches.clear()
            raise
        finally:
            inner.close()
        self._order: list[int] = []
        self.startup_ns: int | None = time.perf_counter_ns() - began

    def next_batch(self) -> Any:
        """A batch that is on the device already. StopIteration once closed."""
        if not self._batches:
            raise StopIteration
        self._look_for_changes()
        if not self._order:
            self._order = list(range(len(self._batches)))
            if self._shuffle:
                self._random.shuffle(self._order)
            self._order.reverse()
        self._last = self._batches[self._order.pop()]
        return self._last.hand_out(clone=self._clone)

    def drop(self, n: int) -> int:
        """Nothing queues up: 0 have to be dropped."""
        return 0

    def close(self) -> None:
        """Free the device memory."""
        self._batches.clear()
        self._last = None

    def boundary_ns(self) -> int:
        """A new order is all an epoch boundary takes."""
        began = time.perf_counter_ns()
        self._random.shuffle(list(range(len(self._batches))))
        return time.perf_counter_ns() - began

    def _fill(self, inner: Source, n_batches: int) -> None:
        room = gpu_free_bytes(self._to_device.device)
        if room is None:
            room = available_bytes() or 0
        room = int(room * MAX_SHARE_OF_FREE_MEMORY)
        host_room = int((available_bytes() or 0) * MAX_SHARE_OF_FREE_MEMORY)
        taken = host_taken = 0
        began = time.monotonic()
        for i in range(n_batches):
            try:
                batch = inner.next_batch()
            except StopIteration:
                break
            kept, moved = self._to_device.move(batch)
            on_device = {id(tensor) for tensor in moved}
            taken += sum(tensor.numel() * tensor.element_size() for tensor in moved)
            host_taken += sum(
                tensor.numel() * tensor.element_size()
                for _, tensor in tensors(kept)
                if id(tensor) not in on_device
            )
            del batch
            self._batches.append(_Kept(_own(kept, on_device)))
            share = (i + 1) / n_batches
            passed = time.monotonic() - began
            if (
                taken > room
                or host_taken > host_room
                or (
                    i + 1 >= min(N_PROBED, n_batches)
                    and (taken > room * share or host_taken > host_room * share)
                )
            ):
                raise TrialRefused(
                    f"the dataset takes about {int(taken / share)} bytes on the device and "
                    f"{room} may be used"
                )
            if (i + 1 >= N_PROBED and passed > FILL_LIMIT_S * share) or passed > FILL_LIMIT_S:
                raise TrialRefused(
                    f"loading the whole dataset would take about {passed / share:.0f} s, "
                    f"more than {FILL_LIMIT_S:.0f} s"
                )
        if self._to_device.device.type == "cuda":
            torch.cuda.synchronize(self._to_device.device)

    def _look_for_changes(self) -> None:
        """A loop that changes its batch in place would change the dataset: it gets clones."""
        if self._last is None or self._clone or not self._last.changed():
            return
        self._clone = True
        whole = [kept for kept in self._batches if not kept.changed()]
        if whole:  # else what is left of the content has to do
            self._batches = whole
            self._order = []


def _own(batch: Any, on_device: set[int]) -> Any:
    """The batch with clones of what stays in host memory: a worker's shared memory goes back."""
    return rebuild(batch, lambda _, t: t if id(t) in on_device else t.detach().clone())


class _Kept:
    """A batch that stays, with the versions its tensors had."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch
        self._versions = [(tensor, tensor._version) for _, tensor in tensors(batch)]

    def changed(self) -> bool:
        return any(tensor._version != version for tensor, version in self._versions)

    def hand_out(self, *, clone: bool) -> Any:
        def fresh(_: str, tensor: Tensor) -> Tensor:
            return tensor.detach().clone() if clone else tensor.detach()

        return rebuild(self._batch, fresh)
