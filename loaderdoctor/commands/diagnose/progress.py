"""What a diagnosis is doing and for how long yet, on stderr where that is a terminal.

One line that is updated in place, at the foot of the screen. The script writes to the same terminal
meanwhile, so the rows above are made a scroll region of their own (as apt does while packages
print): what the script writes scrolls there as ever, and never meets our line. Where a terminal
can't do that, each stage is a plain line.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Callable

from rich.cells import set_cell_size
from rich.console import Console
from rich.text import Text

from loaderdoctor import format as fmt

# The same words again come only after this long (trials of settings say them each round).
_AGAIN_S = 5.0
# Fewer rows leave the script too little to scroll in.
_MIN_ROWS = 8
_SAVE, _RESTORE = "\x1b7", "\x1b8"


class Stages:
    """Call it with what begins now and the seconds left, None where nobody knows.

    `size` gives (columns, rows) of the terminal; (0, 0) where that is not known.
    """

    def __init__(
        self,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        size: Callable[[], tuple[int, int]] | None = None,
    ) -> None:
        self._console = console or Console(file=sys.stderr, markup=False)
        self._clock = clock
        self._size = size or _terminal_size
        self._told, self._at_s = "", float("-inf")
        self._rows: int | None = None  # while the foot of the screen is ours: its rows

    def __call__(self, what: str, left_s: float | None = None) -> None:
        """Show it; nothing where stderr is not a terminal."""
        now_s = self._clock()
        if not self._console.is_terminal or (what == self._told and now_s - self._at_s < _AGAIN_S):
            return
        self._told, self._at_s = what, now_s
        left = f", {fmt.time_left(left_s)}" if left_s is not None else ""
        said = f"loaderdoctor: {what}{left}"
        columns, rows = self._size()
        if rows < _MIN_ROWS or columns < 1 or self._console.is_dumb_terminal:
            self.close()
            self._console.print(Text(said, style="dim"))
            return
        codes = ""
        if rows != self._rows:
            codes = self._reserve(rows)
        line = set_cell_size(fmt.plain(said), min(len(said), columns - 1)).rstrip()
        self._write(f"{codes}{_SAVE}\x1b[{rows};1H\x1b[2K\x1b[2m{line}\x1b[0m{_RESTORE}")

    def warn(self, text: str) -> None:
        """Text that everyone must see: wrapped between words in a terminal, else in one line."""
        if self._console.is_terminal:
            self._console.print(Text(text.rstrip()))
        else:
            self._console.file.write(text)
            self._console.file.flush()

    def close(self) -> None:
        """Give the foot of the screen back; what was written above it stays, and goes on there."""
        rows, self._rows = self._rows, None
        if rows is None:
            return
        atexit.unregister(self.close)
        # Setting the region moves the cursor, so it is saved before.
        self._write(f"{_SAVE}\x1b[{rows};1H\x1b[2K\x1b[r{_RESTORE}")

    def _reserve(self, rows: int) -> str:
        """Codes that make all rows but the last one scroll by themselves.

        The line feed makes room where the cursor is in the last row; then it goes up again.
        """
        if self._rows is None:
            atexit.register(self.close)  # a terminal left so would scroll oddly for ever
        self._rows = rows
        return f"\n{_SAVE}\x1b[1;{rows - 1}r{_RESTORE}\x1b[1A"

    def _write(self, codes: str) -> None:
        """In one piece: the script writes to the same terminal."""
        self._console.file.write(codes)
        self._console.file.flush()


def _terminal_size() -> tuple[int, int]:
    try:
        size = os.get_terminal_size(sys.stderr.fileno())
    except (OSError, ValueError):  # stderr is none, or was replaced
        return 0, 0
    return size.columns, size.lines
