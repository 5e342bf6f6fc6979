"""One subject -> its chart: SVG for the page in both widths, PNG for papers and slides.

SVG takes fonts and colours from the page it stands in. Text stays text there: it is set in the
page's font, searched and escaped.
"""

from __future__ import annotations

import io
import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import matplotlib as mpl
from markupsafe import Markup, escape
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from loaderdoctor.facts.pictures import SampleTimes, StepTimeline, WaitSeries
from loaderdoctor.report.charts import steps, trials
from loaderdoctor.report.charts.sheet import NARROW, WIDE, Sheet, in_css, paper
from loaderdoctor.report.charts.subjects import (
    Bars,
    BarsAndLine,
    Grid,
    Grouped,
    Predictions,
    RunLine,
    Stacked,
    Subject,
)
from loaderdoctor.report.machine_model import GpuBusy

_DPI = 144  # of a PNG: two of its pixels for one of the page
_TITLE, _LEGEND = 30, 22  # heights above the chart, in pixels of the page


def svg_pair(subject: Subject, *, name: str, description: str) -> tuple[Markup, Markup]:
    """The chart for wide pages, and for phones. `name` is unique within the page."""
    drawn = []
    for sheet in (WIDE, NARROW):
        with _settings(f"{name}-{sheet.width}"):
            drawn.append(_svg(_figure(sheet, subject), description=description))
    return drawn[0], drawn[1]


def png(subject: Subject, *, title: str, legend: Sequence[tuple[str, str]] = ()) -> bytes:
    """The chart as its own file, under its title. `legend`: (colour of the page, words)."""
    sheet = paper(_TITLE + (_LEGEND if legend else 0))
    with _settings(title):
        figure = _figure(sheet, subject)
        height = figure.get_figheight() * 72
        ink = sheet.colour("ink")
        figure.text(10 / sheet.width, 1 - 10 / height, title, color=ink, fontsize=14, va="top")
        if legend:
            figure.legend(
                handles=[Patch(color=sheet.colour(fill), label=words) for fill, words in legend],
                loc="upper left",
                bbox_to_anchor=(4 / sheet.width, 1 - _TITLE / height),
                ncols=len(legend),
                frameon=False,
                fontsize=sheet.size - 1,
                labelcolor=ink,
                handlelength=1.0,
                borderpad=0.2,
            )
        out = io.BytesIO()
        FigureCanvasAgg(figure)
        figure.savefig(out, format="png", dpi=_DPI)
    return out.getvalue()


def _figure(sheet: Sheet, subject: Subject) -> Figure:
    match subject:
        case StepTimeline():
            return steps.timeline(sheet, subject)
        case WaitSeries():
            return steps.waits(sheet, subject)
        case SampleTimes():
            return steps.sample_histogram(sheet, subject)
        case GpuBusy():
            return steps.busy(sheet, subject)
        case Bars():
            return trials.bars(sheet, subject)
        case BarsAndLine():
            return trials.bars_and_line(sheet, subject)
        case Grouped():
            return trials.grouped(sheet, subject)
        case Stacked():
            return trials.stacked(sheet, subject)
        case Grid():
            return trials.grid(sheet, subject)
        case Predictions():
            return trials.predictions(sheet, subject.pairs)
        case RunLine():
            return steps.run_line(sheet, subject)


@contextmanager
def _settings(name: str) -> Iterator[None]:
    """Matplotlib as it comes, whatever the user's own matplotlibrc says; ids made from `name`."""
    logger = logging.getLogger("matplotlib")  # notes on its font cache are no news of ours
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with mpl.rc_context(), warnings.catch_warnings():
            # "Glyph missing from font": on the page the browser sets the text, not matplotlib.
            warnings.simplefilter("ignore", UserWarning)
            mpl.rcdefaults()
            mpl.rcParams.update(
                {
                    "svg.fonttype": "none",
                    "svg.hashsalt": name,
                    "text.parse_math": False,
                    "axes.unicode_minus": True,
                    "path.simplify": False,
                }
            )
            yield
    finally:
        logger.setLevel(level)


def _svg(figure: Figure, *, description: str) -> Markup:
    """The figure as an element of the page. Text in it was escaped by matplotlib."""
    out = io.StringIO()
    FigureCanvasSVG(figure)
    figure.savefig(
        out,
        format="svg",
        transparent=True,
        metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
    )
    text = out.getvalue()
    head, body = text[text.index("<svg") :].split(">", 1)
    box = re.search(r'viewBox="([^"]+)"', head)
    assert box is not None
    width = box[1].split()[2]
    return Markup(
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="{box[1]}" width="{width}" role="img" aria-label="{escape(description)}">'
        + _lean(body)
    )


def _lean(body: str) -> str:
    """Without what the page gives, and without digits below a hundredth of a pixel.

    Only attributes and tags are touched: text between tags holds no `<` or `"` that we write.
    """
    body = re.sub(r"<style.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    return re.sub(r"<[^>]+>", _lean_tag, re.sub(r">\s+<", "><", body))


def _lean_tag(match: re.Match[str]) -> str:
    tag = match[0]
    if tag.startswith("<g "):
        tag = re.sub(r' id="[^"]*"', "", tag)
    tag = re.sub(r"font-family: [^;\"]*(; )?", "", tag)
    tag = re.sub(r' transform="rotate\(-0 [^"]*\)"', "", tag)
    tag = re.sub(r"(\.\d\d)\d+", r"\1", in_css(tag))
    return re.sub(r"\s*\n\s*", " ", tag)
