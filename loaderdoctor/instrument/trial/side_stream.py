"""Batches that are on the device before the loop asks: moved on a side stream."""

from __future__ import annotations

import contextlib
from collections import deque
from typing import Any

import torch

from loaderdoctor.instrument.batches.h2d import ToDevice
from loaderdoctor.instrument.batches.replay_buffer import Source


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
