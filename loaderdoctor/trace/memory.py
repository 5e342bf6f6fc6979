"""How much memory a trace may take, counted while it is read.

Text comes in pieces and is thrown away, so what grows is rows, and the distinct names and threads
they refer to. The limit is on an estimate of the peak of the whole analysis, whose own arrays come
and go, because an allocation that fails can't be relied on: Linux grants memory that it hasn't got.
"""

from __future__ import annotations

from dataclasses import dataclass

# Peak resident memory of `analyze` over that of an empty trace, a row: 177 to 460 bytes over twenty
# shapes of trace (nested ops, Python frames, kernels with launches, copies on as many streams),
# of which reading takes 135 to 190. The rest of a row is its name and its thread.
BYTES_PER_ROW = 500
BYTES_PER_ROW_HELD = 190  # of it by the trace itself, once read and divided
# A name that no other row has took 320 bytes more with 10 characters; an entry of ours for one,
# with its place in a dict, a tuple and the flags by name.
BYTES_PER_NAME = 300
# Python, numpy, ourselves (43 MB before the first event), blocks of text, one batch's objects.
BYTES_AT_LEAST = 150 << 20
# Text of nothing but brackets takes 35 times its length while they are looked through; as objects
# twenty times, held as bytes and as text too.
PER_PIECE_BYTE = 64
# One event, or what surrounds the list, larger than this is no torch.profiler trace: real events
# are kilobytes, with stacks and shapes tens of kilobytes.
MAX_PIECE_BYTES = 256 << 20
MIN_PIECE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """The bytes that reading and analysing one trace may take; None: as many as there are."""

    n_bytes: int | None = None

    @property
    def piece_bytes(self) -> int:
        """The longest piece of text that is decoded at once."""
        if self.n_bytes is None:
            return MAX_PIECE_BYTES
        return max(MIN_PIECE_BYTES, min(MAX_PIECE_BYTES, self.n_bytes // PER_PIECE_BYTE))

    def holds(self, n_rows: int, other_bytes: int) -> bool:
        """Whether a trace of so many rows, and names and threads of so many bytes, is within it."""
        if self.n_bytes is None:
            return True
        return BYTES_AT_LEAST + n_rows * BYTES_PER_ROW + other_bytes <= self.n_bytes

    def share_of(self, n_parts: int) -> MemoryLimit:
        """The limit of each of several readers at a time."""
        return MemoryLimit(None if self.n_bytes is None else self.n_bytes // n_parts)

    def __str__(self) -> str:
        return "unlimited" if self.n_bytes is None else f"{self.n_bytes / 1e9:.1f} GB"


UNLIMITED = MemoryLimit()
