"""Where batches come from while we measure, and what stands between that and the loop.

Runs in the measuring process, at the DataLoader, below any wrapper of the user's own. Batches may
be asked for from any thread of the loop.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import torch

from loaderdoctor.instrument.batches.h2d import ToDevice


class Source(Protocol):
    """Something the loop can be fed from instead of the loader's own iterator."""

    @property
    def startup_ns(self) -> int | None:
        """Opening to first batch; None: not opened here, or no batch yet."""

    def next_batch(self) -> Any:
        """The next batch. Raises StopIteration at the end of the data."""

    def drop(self, n: int) -> int:
        """Throw away up to n batches as quickly as they come; returns how many came."""

    def close(self) -> None:
        """Leave no worker, thread or batch behind, in bounded time. Idempotent."""


def epochs_ended(source: Source) -> Sequence[object] | None:
    """The list of epochs that ended within a source, which grows; None where it has none."""
    seen: Any = source
    while seen is not None:
        ended = getattr(seen, "boundaries", None)
        if ended is not None:
            return cast("Sequence[object]", ended)
        seen = getattr(seen, "inner", None)
    return None


class ChangedSource:
    """Batches of `inner`, each changed as it is handed to the loop."""

    def __init__(self, inner: Source, change: Callable[[Any], Any]) -> None:
        self.inner, self._change = inner, change

    @property
    def startup_ns(self) -> int | None:
        return self.inner.startup_ns

    def next_batch(self) -> Any:
        return self._change(self.inner.next_batch())

    def drop(self, n: int) -> int:
        return self.inner.drop(n)

    def close(self) -> None:
        self.inner.close()


class SideStreamSource:
    """One batch ahead of the loop, copied on a side stream.

    The loop's stream waits for the copy, the allocator is told of both streams, and a host batch
    is let go only after its copy is complete. Raises from the wrapped source pass through.
    """

    def __init__(self, inner: Source, to_device: ToDevice) -> None:
        self.inner = inner
        self._to_device = to_device
        self._stream = torch.cuda.Stream(device=to_device.device)  # type: ignore[no-untyped-call]
        self._ahead: tuple[Any, list[torch.Tensor]] | None = None
        self._under_way: deque[tuple[torch.cuda.Event, Any]] = deque()
        self._closed = False

    @property
    def startup_ns(self) -> int | None:
        return self.inner.startup_ns

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
            return 1 + self.inner.drop(n - 1)
        return self.inner.drop(n)

    def close(self) -> None:
        """Wait for copies under way, then close the wrapped source."""
        self._closed = True
        self._ahead = None
        if self._under_way:
            self._stream.synchronize()
            self._under_way.clear()
        self.inner.close()

    def _fetch(self) -> None:
        host_batch = self.inner.next_batch()
        while self._under_way and self._under_way[0][0].query():  # type: ignore[no-untyped-call]
            self._under_way.popleft()
        with torch.cuda.stream(self._stream):
            self._ahead = self._to_device.move(host_batch)
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record(self._stream)
        self._under_way.append((done, host_batch))
