"""How far the reading or writing of one large trace has come, on stderr where that is a terminal.

Drawn by the work itself, not by a thread: next to threads a trace is not read in parts.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from loaderdoctor import format as fmt

# Nothing is drawn for what is over by then; after it, a few times a second.
_SILENT_S = 1.0
_EVERY_S = 0.2
_BAR_WIDTH = 30

Told = Callable[[float], None]


@contextmanager
def progress(
    what: str, *, console: Console | None = None, clock: Callable[[], float] = time.monotonic
) -> Iterator[Told | None]:
    """Gives what is to be told the share done so far (0…1); None where nobody looks."""
    shown = console or Console(file=sys.stderr, markup=False)
    if not shown.is_terminal:
        yield None
        return
    live = Live(console=shown, transient=True, auto_refresh=False)
    began_s = drawn_s = clock()

    def told(share: float) -> None:
        nonlocal drawn_s
        now_s = clock()
        if now_s - began_s < _SILENT_S or now_s - drawn_s < _EVERY_S:
            return
        drawn_s = now_s
        live.start()
        row = Table.grid(padding=(0, 2))
        row.add_column(no_wrap=True, overflow="ellipsis")
        row.add_column()
        row.add_column(no_wrap=True)
        left_s = (now_s - began_s) * (1.0 - share) / share if share > 0 else None
        left = fmt.time_left(left_s) if left_s is not None else ""
        bar = ProgressBar(total=1.0, completed=share, width=_BAR_WIDTH)
        row.add_row(fmt.plain(what), bar, Text(left, style="dim"))
        live.update(row, refresh=True)

    try:
        yield told
    finally:
        live.stop()
