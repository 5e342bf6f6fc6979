"""Draws what a terminal shows of a run: python docs/make_picture.py RUN FILE.svg TITLE.

The picture in README.md is of the tutorial's script; draw it again when the report changes.
"""

from __future__ import annotations

import re
import sys
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

from loaderdoctor.report import read_report
from loaderdoctor.report.console import render_report
from loaderdoctor.report.model import Report

COLUMNS = 92
# As `diagnose` names its folders; where the run lay when it was drawn is nobody's concern.
FOLDER = Path("loaderdoctor-runs/20260102-030405-train")


def picture(report: Report, title: str, *, columns: int = COLUMNS) -> str:
    """The first screen of the report, as SVG."""
    console = _terminal(columns)
    with console.capture() as captured:
        console.print(render_report(report, folder=FOLDER, brief=True))
    # Lines of code are wider than the terminal where they must: they are drawn as it breaks them.
    drawn = _terminal(columns)
    for line in captured.get().splitlines():
        drawn.print(Text.from_ansi(line, overflow="fold"))
    svg = drawn.export_svg(title=title, theme=DIMMED_MONOKAI)
    # The reader's own monospace font: rich would load one from the network.
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


def _terminal(columns: int) -> Console:
    return Console(
        file=StringIO(),
        record=True,
        width=columns,
        force_terminal=True,
        color_system="truecolor",
        markup=False,
        highlight=False,
    )


if __name__ == "__main__":
    run, out, *title = sys.argv[1:]
    Path(out).write_text(picture(read_report(Path(run)), " ".join(title)), encoding="utf-8")
