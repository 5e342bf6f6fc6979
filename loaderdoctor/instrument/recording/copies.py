"""How long copies of a batch hold up the accelerator's own work, in sampled steps.

Two timing events around each of the loop's host-to-device calls, on the step's stream: while the
device is between them it does nothing else of that stream's. A copy on a stream of its own delays
nothing here, and is not counted; nor is what other streams compute meanwhile.
"""

from __future__ import annotations

from collections import deque
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


class CopyProbe(H2DHook):
    """Of one device. Installed only while a sampled step lasts."""

    def __init__(self, device: torch.device, *, event: Any = None, stream_of: Any = None) -> None:
        """`event` makes a timing event, `stream_of` a device's present stream; torch's own."""
        super().__init__(device.type)
        self._device = device
        self._event = event or partial(_CUDA.Event, enable_timing=True)
        self._stream_of = stream_of or _CUDA.current_stream
        self._training = get_ident()
        self._stream: Any = None
        self._pairs: list[tuple[Any, Any]] | None = None
        self._open: deque[list[tuple[Any, Any]]] = deque()
        self._spare: list[tuple[Any, Any]] = []

    def begin(self) -> None:
        """The loop has its batch. Compiled code is left alone: it looks at torch's functions."""
        if len(self._open) >= MAX_OPEN or compiles():
            return
        try:
            self.install()
        except RunError:  # another hook of ours sees the copies now
            return
        self._stream, self._pairs = self._stream_of(self._device), []

    def end(self) -> None:
        """The step is over, or the recording."""
        self.remove()
        pairs, self._pairs = self._pairs, None
        if pairs is not None and len(pairs) <= MAX_CALLS:
            self._open.append(pairs)

    def on_call(self, call: H2DCall) -> Tensor:
        """Make the call as the loop wrote it."""
        pairs = self._pairs
        if pairs is None or len(pairs) > MAX_CALLS or get_ident() != self._training:
            return call.make()
        if call.device.index not in (None, self._device.index):
            return call.make()
        stream = self._stream_of(self._device)
        if stream != self._stream:
            return call.make()
        pair = self._spare.pop() if self._spare else (self._event(), self._event())
        pair[0].record(stream)
        made = call.make()
        pair[1].record(stream)
        pairs.append(pair)
        return made

    def take(self) -> tuple[int, int]:
        """(steps, ns of all their copies) of those that are done since the last call."""
        n = copy_ns = 0
        while self._open and all(last.query() for _, last in self._open[0]):
            pairs = self._open.popleft()
            copy_ns += sum(round(a.elapsed_time(b) * NS_PER_MS) for a, b in pairs)
            n += 1
            self._spare += pairs
        return n, copy_ns
