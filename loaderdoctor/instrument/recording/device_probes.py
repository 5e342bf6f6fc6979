"""What keeps the accelerator from its work, in sampled steps: no batch, and copies of batches.

Two timing events around a fetch, or around each of the loop's host-to-device calls, on the step's
stream. Of a fetch the first is reached when the device has done all that was queued, the second at
once after it was queued: what lies between them on the device's own clock is the time it stood dry.
While it is between those of a copy it does nothing else of that stream's; a copy on a stream of its
own delays nothing here, and is not counted, nor is what other streams compute meanwhile. Events are
read when they are done, never waited for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from threading import get_ident
from typing import Any, Final

import torch
from torch import Tensor

from loaderdoctor.errors import RunError
from loaderdoctor.instrument.batches.h2d import H2DCall, H2DHook
from loaderdoctor.instrument.session.compute_watch import compiles
from loaderdoctor.units import NS_PER_MS

MAX_OPEN: Final = 64
MAX_CALLS: Final = 32  # of a step; one with more is not counted
_CUDA: Any = torch.cuda  # its events are untyped

Pair = tuple[Any, Any]


class _EventPairs:
    """Pairs of timing events, those of a sampled step together."""

    def __init__(self, event: Callable[[], Any] | None = None) -> None:
        self._event = event or partial(_CUDA.Event, enable_timing=True)
        self._spare: list[Pair] = []
        self._open: deque[list[Pair]] = deque()

    @property
    def full(self) -> bool:
        """Whether so many steps are not done that no other is sampled."""
        return len(self._open) >= MAX_OPEN

    def new(self) -> Pair:
        return self._spare.pop() if self._spare else (self._event(), self._event())

    def unused(self, pair: Pair) -> None:
        self._spare.append(pair)

    def sampled(self, pairs: list[Pair]) -> None:
        """All of one step, in order."""
        self._open.append(pairs)

    def take(self) -> tuple[int, int]:
        """(steps, ns between their pairs) of those that are done since the last call."""
        n = total_ns = 0
        while self._open and all(last.query() for _, last in self._open[0]):
            pairs = self._open.popleft()
            total_ns += sum(round(a.elapsed_time(b) * NS_PER_MS) for a, b in pairs)
            n += 1
            self._spare += pairs
        return n, total_ns


class DryProbe:
    """How long one device has nothing to do while the loop waits for a batch."""

    def __init__(self, device: torch.device, *, event: Any = None, stream_of: Any = None) -> None:
        """`event` makes a timing event, `stream_of` a device's present stream; torch's own."""
        self._device = device
        self._stream = stream_of or _CUDA.current_stream
        self._pairs = _EventPairs(event)
        self._now: Pair | None = None

    def before_fetch(self) -> None:
        """The loop is about to fetch, on its own stream."""
        if self._pairs.full:
            return
        self._now = self._pairs.new()
        self._now[0].record(self._stream(self._device))

    def after_fetch(self) -> None:
        """It has its batch."""
        pair, self._now = self._now, None
        if pair is not None:
            pair[1].record(self._stream(self._device))
            self._pairs.sampled([pair])

    def cancel(self) -> None:
        """It had none: the epoch was over."""
        pair, self._now = self._now, None
        if pair is not None:
            self._pairs.unused(pair)

    def take(self) -> tuple[int, int]:
        """(steps, ns that the device stood dry) of those that are done since the last call."""
        return self._pairs.take()


class CopyProbe(H2DHook):
    """How long copies hold up one device's own work. Installed while a sampled step lasts."""

    def __init__(self, device: torch.device, *, event: Any = None, stream_of: Any = None) -> None:
        """`event` makes a timing event, `stream_of` a device's present stream; torch's own."""
        super().__init__(device.type)
        self._device = device
        self._stream_of = stream_of or _CUDA.current_stream
        self._training = get_ident()
        self._stream: Any = None
        self._pairs = _EventPairs(event)
        self._now: list[Pair] | None = None

    def begin(self) -> None:
        """The loop has its batch. Compiled code is left alone: it looks at torch's functions."""
        if self._pairs.full or compiles():
            return
        try:
            self.install()
        except RunError:  # another hook of ours sees the copies now
            return
        self._stream, self._now = self._stream_of(self._device), []

    def end(self) -> None:
        """The step is over, or the recording."""
        self.remove()
        pairs, self._now = self._now, None
        if pairs is not None and len(pairs) <= MAX_CALLS:
            self._pairs.sampled(pairs)

    def on_call(self, call: H2DCall) -> Tensor:
        """Make the call as the loop wrote it."""
        pairs = self._now
        if pairs is None or len(pairs) > MAX_CALLS or get_ident() != self._training:
            return call.make()
        if call.device.index not in (None, self._device.index):
            return call.make()
        stream = self._stream_of(self._device)
        if stream != self._stream:
            return call.make()
        pair = self._pairs.new()
        pair[0].record(stream)
        made = call.make()
        pair[1].record(stream)
        pairs.append(pair)
        return made

    def take(self) -> tuple[int, int]:
        """(steps, ns of all their copies) of those that are done since the last call."""
        return self._pairs.take()
