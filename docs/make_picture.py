"""Draws a run as the terminal shows it: python docs/make_picture.py RUN FILE.svg TITLE.

The picture in README.md is of the run that README.md names; draw it again when the report changes.
"""

from __future__ import annotations

import re
import sys
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

from loaderdoctor.report.console.page import render_report
from loaderdoctor.report.files import read_report

COLUMNS = 92
# As far as a reader of README.md looks; the whole of it is a command away.
MAX_LINES = 46


def picture(run: Path, title: str) -> str:
    """The first lines of the run's report, as SVG."""
    report = read_report(run)
    console = Console(
        file=StringIO(), record=True, width=COLUMNS, force_terminal=True, color_system="truecolor"
    )
    with console.capture() as captured:
        console.print(render_report(report))
    lines = captured.get().splitlines()
    shown = Console(
        file=StringIO(), record=True, width=COLUMNS, force_terminal=True, color_system="truecolor"
    )
    for line in lines[:MAX_LINES]:
        shown.print(Text.from_ansi(line), soft_wrap=True)
    if len(lines) > MAX_LINES:
        shown.print("…")
    svg = shown.export_svg(title=title, theme=DIMMED_MONOKAI)
    # The reader's own monospace font: rich would load one from the network.
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


if __name__ == "__main__":
    run, out, *title = sys.argv[1:]
    Path(out).write_text(picture(Path(run), " ".join(title)), encoding="utf-8")
