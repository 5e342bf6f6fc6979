"""The step boundaries of a recorded stretch, and what lay between two of them.

A `StepClock` keeps every mark of a window and waits for the device at its end; this is emptied
every few seconds, and never waits.
"""

from __future__ import annotations

from typing import Final

# What an interval from one boundary to the next holds besides a step; bits.
STARTS: Final = 1  # a new iterator of the step's loader: made, workers started, first batch
GAP: Final = 2  # no step: from the fetch that found the epoch over to the next epoch's first
BESIDES: Final = 4  # other loaders were read, or something was saved


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

    def replaced(self, now: int) -> None:
        """The loop asks for a new iterator although the old one had not run out."""
        self._flag(STARTS)

    def created(self, create_ns: int) -> None:
        """A new iterator of the step's loader."""
        self._flag(STARTS)

    def crossed(self) -> None:
        """The open step's batch came from the next epoch of another loader's."""
        self._flag(STARTS)

    def teardown(self, ns: int) -> None:
        """Workers were shut down."""
        self._flag(STARTS)

    def foreign(self) -> None:
        """Another loader was read, or something saved."""
        self._flag(BESIDES)

    def _flag(self, bit: int) -> None:
        at = len(self.at) - 1
        self.flags[at] = self.flags.get(at, 0) | bit
        self.left = 0
