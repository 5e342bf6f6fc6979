"""Batches of the loader itself, made ahead of a window and handed out once: as new as its own.

A loop whose batches differ in shape must not get some of them again and again: what it compiles,
tunes or plans for a new shape would be spared it, and would look like the cost of the loader. So
the loader makes as many batches as the window has steps, while nothing is timed, and the loop gets
them in their order. The loader's real pass goes on behind them.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from loaderdoctor.instrument.batches.replay_buffer import ReplayBuffer
from loaderdoctor.instrument.batches.signature import Shapes

if TYPE_CHECKING:
    from torch import Tensor


class Ahead:
    """Batches recorded ahead, for one window and for another that hands out the same again.

    Clones within a share of the free memory, as a `ReplayBuffer` keeps them.
    """

    def __init__(self, shapes: Shapes, n_wanted: int, until_ns: int) -> None:
        self._shapes = shapes
        self._until_ns = until_ns
        self._over = False
        self._buffer = ReplayBuffer(max_batches=n_wanted, keep_each=True)
        self.n_new = 0  # of these batches, those whose like the loop was never given before

    @property
    def wanting(self) -> bool:
        """Whether more batches are to be made."""
        return not (self._over or self._buffer.full or self._buffer.reason)

    @property
    def n_batches(self) -> int:
        """Batches held."""
        return self._buffer.n_batches

    @property
    def reason(self) -> str:
        """Why there are no more of them."""
        if self._buffer.reason is not None:
            return self._buffer.reason
        if self._buffer.short_of_memory:
            return "more of them do not fit in a tenth of the free memory"
        return "the loader made no more of them in time"

    def add(self, batch: Any) -> None:
        """The loader's next batch."""
        self.n_new += self._shapes.see(batch)
        self._buffer.record(batch)
        self._over = perf_counter_ns() > self._until_ns

    def end(self) -> None:
        """No more batches come."""
        self._over = True

    def held_tensors(self) -> list[Tensor]:
        """Of all its batches, for their copies to be made ahead as well."""
        return self._buffer.held_tensors()

    def restore(self) -> None:
        """Undo what the loop changed in place. Call it between windows."""
        self._buffer.restore()

    def release(self) -> None:
        """Free every batch."""
        self._over = True
        self._buffer.release()

    def as_source(self, meanwhile: ReplayBuffer) -> AheadSource:
        """These batches once, after `begin`; until then those of `meanwhile`, endlessly."""
        return AheadSource(self._buffer, meanwhile)


class AheadSource:
    """Recorded batches while the loop gets steady, then those made ahead, each once."""

    startup_ns: int | None = None

    def __init__(self, ahead: ReplayBuffer, meanwhile: ReplayBuffer) -> None:
        self._ahead: ReplayBuffer | None = ahead
        self._meanwhile = meanwhile
        self._n_left: int | None = None  # None: not begun

    def begin(self) -> None:
        """The window is about to begin: from now on those made ahead."""
        if self._ahead is not None:
            self._ahead.rewind()
            self._n_left = self._ahead.n_batches

    def next_batch(self) -> Any:
        """The next batch. Raises StopIteration behind the last, and once closed."""
        if self._ahead is None:
            raise StopIteration
        if self._n_left is None:
            return self._meanwhile.next_batch()
        if self._n_left <= 0:
            raise StopIteration
        self._n_left -= 1
        return self._ahead.next_batch()

    def drop(self, n: int) -> int:
        """Recorded batches don't queue up: 0 have to be dropped."""
        return 0

    def close(self) -> None:
        """Let go of the batches, which are kept."""
        self._ahead = None
