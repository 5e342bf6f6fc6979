"""Draws every kind of answer as its readers get it, to be looked at: terminal, desk and phone.

    python docs/make_screens.py FOLDER [RUN …]
    python docs/make_screens.py --pair RUN FILE.png    the picture of README: a desk, a dark phone

Without runs of the small reports that the golden files show. Each becomes NAME-80.png and
NAME-140.png (a terminal of so many columns), and NAME-desk.png, NAME-desk-dark.png, NAME-phone.png
and NAME-phone-dark.png (report.html as far as two screens show it). Read each for fifteen seconds
and say in one sentence what is wrong and what to do; what you can't say is what to mend. Needs
Chromium.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))  # the tests are part of no package
from docs.make_picture import picture
from loaderdoctor.report import read_report
from loaderdoctor.report.html import html
from loaderdoctor.report.model import Report
from tests.report.browser import Page, browser
from tests.report.console.test_page import REPORTS

TERMINALS = (80, 140)  # columns
SCREENS = {  # width and height in pixels, and whether the reader's system is dark
    "desk": (1280, 1600, False),
    "desk-dark": (1280, 1600, True),
    "phone": (390, 1688, False),
    "phone-dark": (390, 1688, True),
}


def named_reports(runs: list[Path]) -> Iterator[tuple[str, Report, str]]:
    """(name, report, its page): of run folders, or of the golden files' reports."""
    for run in runs:
        written = run / "report.html"
        report = read_report(run)
        page = written.read_text(encoding="utf-8") if written.exists() else html(report)
        yield run.name, report, page
    if not runs:
        for name, make in REPORTS.items():
            yield name, make(), html(make())


def draw(page: Page, name: str, report: Report, written: str, folder: Path) -> None:
    """All pictures of one report."""
    for columns in TERMINALS:
        drawn = folder / f"{name}-{columns}.svg"
        drawn.write_text(picture(report, f"loaderdoctor, {columns} columns", columns=columns))
        page.open(drawn, width=12 * columns + 40)
        page.picture(drawn.with_suffix(".png"))
    source = folder / f"{name}.html"
    source.write_text(written, encoding="utf-8")
    for screen, (width, height, dark) in SCREENS.items():
        page.open(source, width=width, height=height, dark=dark)
        page.picture(folder / f"{name}-{screen}.png", whole=False)


def pair(page: Page, report: Report, target: Path) -> None:
    """Its page on a desk, and next to that on a phone in the dark."""
    halves = []
    written = target.resolve().with_suffix(".html")
    written.write_text(html(report), encoding="utf-8")
    for width, dark in ((900, False), (390, True)):
        page.open(written, width=width, height=1080, dark=dark)
        page.picture(target, whole=False)
        with Image.open(target) as half:
            halves.append(half.convert("RGB"))
    written.unlink()
    both = Image.new("RGB", (sum(half.width for half in halves), 1080))
    for half, left in zip(halves, (0, halves[0].width), strict=True):
        both.paste(half, (left, 0))
    both.quantize(256, dither=Image.Dither.NONE).save(target, "PNG", optimize=True)


if __name__ == "__main__":
    if sys.argv[1] == "--pair":
        with browser() as opened:
            pair(opened, read_report(Path(sys.argv[2])), Path(sys.argv[3]))
        sys.exit()
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    with browser() as opened:
        for name, report, written in named_reports([Path(run) for run in sys.argv[2:]]):
            draw(opened, name, report, written, target)
