"""What a batch looks like to code that depends on it, and whether its like was there before.

Compilers, autotuners and caches of plans work once for each new shape, some for each new number
that code branches on. Runs in the measuring process, in steps that nobody times.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

from torch import Tensor

from loaderdoctor.instrument.batches.batch_tree import UnsupportedBatch, integers, tensors

# Batches by which it is judged whether shapes vary now: a change a long time ago is none.
N_RECENT = 32
# Signatures remembered; a loop with more of them makes new ones all the time.
MAX_KNOWN = 100_000
# Of a batch's whole numbers, those looked at: lengths and counts come first, longer lists are data.
MAX_INTEGERS = 64
# Looking at batches may take this part of the time, in steps that nobody times: a batch of 200,000
# objects takes 100 ms to walk.
MAX_SHARE_OF_TIME = 0.05


@dataclass(frozen=True, slots=True)
class Signature:
    """`structure`: type, paths, shapes, dtypes, devices. `numbers`: what code may branch on."""

    structure: tuple[Any, ...]
    numbers: tuple[int, ...] = ()


def structure(batch: Any, found: list[tuple[str, Tensor]]) -> tuple[Any, ...]:
    """Of a batch whose tensors are `found`: hashable, equal for batches of one shape."""
    return (
        type(batch),
        tuple((path, tuple(t.shape), t.dtype, t.device, t.layout) for path, t in found),
    )


def signature(batch: Any) -> Signature:
    """Of any batch. Raises UnsupportedBatch."""
    return Signature(structure(batch, tensors(batch)), integers(batch, MAX_INTEGERS))


class Shapes:
    """The signatures of a loader's batches, as far as they were looked at."""

    def __init__(self) -> None:
        self._known: set[Signature] = set()
        self._recent: deque[tuple[Signature, bool]] = deque(maxlen=N_RECENT)  # was it new then
        self._free_at_ns = 0

    def glance(self, batch: Any) -> None:
        """`see`, where looking at such batches has not taken too much of the time."""
        began = perf_counter_ns()
        if began < self._free_at_ns:
            return
        self.see(batch)
        now = perf_counter_ns()
        self._free_at_ns = now + int((now - began) / MAX_SHARE_OF_TIME)

    def see(self, batch: Any) -> bool:
        """The loop is given this batch: whether its like was never seen before."""
        try:
            seen = signature(batch)
        except (UnsupportedBatch, RuntimeError, TypeError):  # the user's own types
            return False
        new = seen not in self._known
        if new and len(self._known) < MAX_KNOWN:
            self._known.add(seen)
        self._recent.append((seen, new))
        return new

    @property
    def vary(self) -> bool:
        """Whether recent batches differ in what code may depend on."""
        return len({seen for seen, _ in self._recent}) > 1

    @property
    def novel(self) -> bool:
        """Whether new ones were still coming in the later half of the recent batches."""
        later = list(self._recent)[len(self._recent) // 2 :]
        return self.vary and any(new for _, new in later)

    @property
    def last(self) -> Signature | None:
        """Of the latest batch; None before the first."""
        return self._recent[-1][0] if self._recent else None
