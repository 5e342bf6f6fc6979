"""How long the accelerator has nothing to do while the loop waits for a batch, in sampled steps.

Two timing events around a fetch, on the step's stream: the first is reached when the device has
done all that was queued, the second at once after it was queued. What lies between them on the
device's own clock is the time it stood dry. They are read when they are done, never waited for.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from loaderdoctor.instrument.wire.beats import Dry
from loaderdoctor.units import NS_PER_MS

if TYPE_CHECKING:
    import torch

# One step in so many: two events, and what is done around them, cost up to 170 us a sample on an
# H200. Primes, so that no number of workers divides them and each worker's batches are seen.
SAMPLE_EVERY: Final = (13, 29, 53, 101, 199, 397)
SAMPLE_NS: Final = 50_000_000  # the first of these that lasts so long
MAX_OPEN: Final = 64


def sample_every(step_ns: float) -> int:
    """Of how many steps that long one is sampled."""
    return next((n for n in SAMPLE_EVERY if n * step_ns >= SAMPLE_NS), SAMPLE_EVERY[-1])


class DryProbe:
    """Of one device."""

    def __init__(self, device: torch.device) -> None:
        import torch

        self._device = device
        self._event: Any = torch.cuda.Event
        self._stream = torch.cuda.current_stream
        self._spare: list[tuple[Any, Any]] = []
        self._open: deque[tuple[Any, Any]] = deque()
        self._now: tuple[Any, Any] | None = None

    def before_fetch(self) -> None:
        """The loop is about to fetch, on its own stream."""
        if len(self._open) >= MAX_OPEN:
            return
        if self._spare:
            self._now = self._spare.pop()
        else:
            self._now = (self._event(enable_timing=True), self._event(enable_timing=True))
        self._now[0].record(self._stream(self._device))

    def after_fetch(self) -> None:
        """It has its batch."""
        pair, self._now = self._now, None
        if pair is not None:
            pair[1].record(self._stream(self._device))
            self._open.append(pair)

    def cancel(self) -> None:
        """It had none: the epoch was over."""
        pair, self._now = self._now, None
        if pair is not None:
            self._spare.append(pair)

    def take(self) -> Dry:
        """Those that are done since the last call."""
        n = dry_ns = 0
        while self._open and self._open[0][1].query():
            pair = self._open.popleft()
            dry_ns += round(pair[0].elapsed_time(pair[1]) * NS_PER_MS)
            n += 1
            self._spare.append(pair)
        return Dry(n_sampled=n, dry_ns=dry_ns)
