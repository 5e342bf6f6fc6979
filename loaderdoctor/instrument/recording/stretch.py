"""Step boundaries of a recorded stretch -> its sums, blocks, stalls and histograms.

A `StepClock` keeps every mark of a window and waits for the device at its end; `StepMarks` are
emptied every few seconds, and never wait. Behind them: numbers in, numbers out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from loaderdoctor.instrument.wire.measured import N_BINS, PER_OCTAVE, Block, Stall, Sums

# What an interval from one boundary to the next holds besides a step; bits.
STARTS: Final = 1  # a new iterator of the step's loader: made, workers started, first batch
# No step: from the fetch that found the epoch over to the next epoch's first, or from one that got
# an error to the next.
GAP: Final = 2
BESIDES: Final = 4  # other loaders were read, or something was saved
# A step of this many times the median, and this much more of time, is a stall. Less is a matter of
# the distribution, which blocks and histograms tell.
STALL_TIMES = 2.5
STALL_NS = 5_000_000
MAX_STALLS = 64  # of one stretch, the longest: more of them are the loop's ordinary steps
N_LAST = 32


class StepMarks:
    """Boundaries in order (CLOCK_MONOTONIC ns); the interval after the last of them is open."""

    __slots__ = ("_after_gap", "at", "due_ns", "flags", "left")

    def __init__(self) -> None:
        self.at: list[int] = []
        self.flags: dict[int, int] = {}  # by index of the mark that the interval begins with
        self.left = 0  # steps that may be marked before somebody has to look at them
        self.due_ns = 0  # and not from here on
        self._after_gap = False

    def add(self, now: int) -> None:
        """A boundary that may border on an epoch's end."""
        self.at.append(now)
        if self._after_gap:
            self._after_gap = False
            self._flag(STARTS)

    def take(self) -> tuple[list[int], dict[int, int]]:
        """All that is closed; the open interval goes on, with what it holds so far."""
        at, flags = self.at, self.flags
        last = len(at) - 1
        self.at, self.left = at[-1:], 0
        self.flags = {0: flags[last]} if last in flags else {}
        return at, flags

    # ------------------------------------------------------------ of `open_window.Clock`

    @property
    def outside(self) -> bool:
        """Whether what happens now is no step."""
        return bool(self.flags.get(len(self.at) - 1, 0) & GAP)

    def exhausted(self, teardown_ns: int) -> None:
        """The entry just marked found the epoch at its end."""
        self._flag(GAP)
        self._after_gap = True

    def failed(self) -> None:
        """The entry just marked got an error for a batch."""
        self._flag(GAP)

    def _starts(self, ns: int = 0) -> None:
        self._flag(STARTS)

    replaced = created = crossed = teardown = apart = _starts

    def foreign(self) -> None:
        """Another loader was read, or something saved."""
        self._flag(BESIDES)

    def _flag(self, bit: int) -> None:
        at = len(self.at) - 1
        self.flags[at] = self.flags.get(at, 0) | bit
        self.left = 0


I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Intervals from one boundary to the next, in order. Equal lengths.

    `wait_ns` is None where the loop's batches are fetched on another thread.
    """

    end_ns: I64
    took_ns: I64
    wait_ns: I64 | None
    number: I64  # the loop's count of the step that ends there
    flags: I64

    @property
    def plain(self) -> NDArray[np.bool_]:
        """Those that hold a step and nothing else."""
        return np.equal(self.flags, 0)


def steps_of(
    at: Sequence[int],
    flags: Mapping[int, int],
    waits: Sequence[tuple[int, int]] | None,
    n_steps: int,
) -> Steps:
    """Intervals between marks `at`; `waits` are (begin, end) of fetches for the step, in order.

    `n_steps` is the loop's count at the last mark. A gap counts as no step.
    """
    marks = np.array(at, np.int64)
    of = np.zeros(max(0, marks.size - 1), np.int64)
    for index, bits in flags.items():
        if 0 <= index < of.size:
            of[index] = bits
    wait: I64 | None = None
    if waits is not None:
        wait = np.zeros(of.size, np.int64)
        if waits and of.size:
            spans = np.array(waits, np.int64)
            into = np.searchsorted(marks, spans[:, 0], side="right") - 1
            inside = (into >= 0) & (into < of.size)
            np.add.at(wait, into[inside], (spans[:, 1] - spans[:, 0])[inside])
    is_step = (of & GAP) == 0
    # The fetch that finds the epoch over is a boundary too, and no step follows it.
    number = n_steps - np.cumsum(is_step[::-1])[::-1] + is_step
    return Steps(end_ns=marks[1:], took_ns=np.diff(marks), wait_ns=wait, number=number, flags=of)


def sums_of(steps: Steps, typical_ns: float) -> Sums:
    """Where the stretch's time went; `typical_ns` is what a step takes by itself."""
    plain = steps.plain
    gaps = (steps.flags & GAP) != 0
    besides = ~gaps & ((steps.flags & BESIDES) != 0)
    starts = ~gaps & ~besides & ((steps.flags & STARTS) != 0)
    wait = steps.wait_ns
    held = np.minimum(steps.took_ns[besides], int(typical_ns))
    return Sums(
        n_steps=int(plain.sum() + besides.sum() + starts.sum()),
        steps_ns=int(steps.took_ns[plain].sum() + held.sum()),
        wait_ns=int(wait[plain].sum()) if wait is not None else None,
        n_starts=int(starts.sum()),
        starts_ns=int(steps.took_ns[starts].sum()),
        n_gaps=int(gaps.sum()),
        gaps_ns=int(steps.took_ns[gaps].sum()),
        n_besides=int(besides.sum()),
        besides_ns=int(steps.took_ns[besides].sum() - held.sum()),
    )


def stalls_of(
    steps: Steps, typical_ns: float, collections: Sequence[tuple[int, int]]
) -> tuple[Stall, ...]:
    """Steps that took several times the typical one; `collections` are (begin, end)."""
    if not typical_ns:
        return ()
    limit = max(STALL_TIMES * typical_ns, typical_ns + STALL_NS)
    found = np.flatnonzero(steps.plain & (steps.took_ns > limit))
    if found.size > MAX_STALLS:
        longest = np.argsort(steps.took_ns[found])[-MAX_STALLS:]
        found = np.sort(found[longest])
    stalls = []
    for i in found:
        end, took = int(steps.end_ns[i]), int(steps.took_ns[i])
        inside = sum(
            max(0, min(end, until) - max(end - took, since)) for since, until in collections
        )
        stalls.append(
            Stall(
                step=int(steps.number[i]),
                at_ns=end,
                took_ns=took,
                wait_ns=int(steps.wait_ns[i]) if steps.wait_ns is not None else None,
                gc_ns=inside,
            )
        )
    return tuple(stalls)


class Blocks:
    """Cuts the plain steps into blocks of a fixed number, across stretches."""

    def __init__(self, n: int) -> None:
        self.n = n
        self._rest = np.empty((4, 0), np.int64)  # took, waited, number and end of each step

    def add(self, steps: Steps) -> tuple[Block, ...]:
        """The blocks that are full now."""
        plain, waits = steps.plain, steps.wait_ns
        wait = waits if waits is not None else np.zeros(plain.size, np.int64)
        new = np.stack([steps.took_ns, wait, steps.number, steps.end_ns])[:, plain]
        steps_so_far = np.concatenate([self._rest, new], axis=1)
        n_whole = steps_so_far.shape[1] // self.n * self.n
        self._rest = steps_so_far[:, n_whole:]
        blocks = []
        whole = steps_so_far[:, :n_whole].reshape(4, -1, self.n)
        for took, wait, number, end in whole.swapaxes(0, 1):
            blocks.append(
                Block(
                    step=int(number[-1]),
                    end_ns=int(end[-1]),
                    n=self.n,
                    total_ns=int(took.sum()),
                    median_ns=int(np.median(took)),
                    longest_ns=int(took.max()),
                    wait_ns=int(wait.sum()) if waits is not None else None,
                )
            )
        return tuple(blocks)


def step_bins(steps: Steps) -> tuple[dict[int, int], dict[int, int]]:
    """Histograms of the plain steps and of their waits."""
    plain = steps.plain
    waits = counted(steps.wait_ns[plain]) if steps.wait_ns is not None else {}
    return counted(steps.took_ns[plain]), waits


def counted(durations_ns: NDArray[np.int64]) -> dict[int, int]:
    """How many durations each bin holds; bins that hold none are left out."""
    at = np.log2(np.maximum(durations_ns, 1)) * PER_OCTAVE
    counts = np.bincount(np.minimum(at.astype(np.int64), N_BINS - 1), minlength=1)
    return {int(i): int(counts[i]) for i in np.flatnonzero(counts)}
