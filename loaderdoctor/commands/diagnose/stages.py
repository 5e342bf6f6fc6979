"""What a diagnosis is doing and for how long yet: plain lines on stderr, where that is a terminal.

Lines, not a bar that is redrawn: the script prints to the same terminal meanwhile.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from rich.console import Console
from rich.text import Text

from loaderdoctor import format as fmt

# The same words again come only after this long (trials of settings say them each round).
_AGAIN_S = 5.0


class Stages:
    """Call it with what begins now and the seconds left, None where nobody knows."""

    def __init__(
        self, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console or Console(file=sys.stderr, markup=False)
        self._clock = clock
        self._told, self._at_s = "", float("-inf")

    def __call__(self, what: str, left_s: float | None = None) -> None:
        """A line; none where stderr is not a terminal."""
        now_s = self._clock()
        if not self._console.is_terminal or (what == self._told and now_s - self._at_s < _AGAIN_S):
            return
        self._told, self._at_s = what, now_s
        left = f", {fmt.time_left(left_s)}" if left_s is not None else ""
        self._console.print(Text(f"loaderdoctor: {what}{left}", style="dim"))

    def warn(self, text: str) -> None:
        """Text that everyone must see: wrapped between words in a terminal, else in one line."""
        if self._console.is_terminal:
            self._console.print(Text(text.rstrip()))
        else:
            self._console.file.write(text)
            self._console.file.flush()
