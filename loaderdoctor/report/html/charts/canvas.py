"""A matplotlib figure -> SVG that takes fonts and colours from the page it stands in.

Colours are drawn as stand-ins and replaced by the page's CSS variables, so that one chart serves
light, dark and print. Text stays text: it is set in the page's font, searched and escaped.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import matplotlib as mpl
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator

COLOURS = (
    "ink", "muted", "line", "track", "mark", "plain", "good", "tied",
    "compute", "communication", "copy", "input", "host", "other",
    "sync", "fetch", "collate", "send", "pin",
)  # fmt: skip
_STAND_INS = {name: f"#f0a5{i:02x}" for i, name in enumerate(COLOURS)}
_STAND_IN = re.compile(r"#f0a5([0-9a-f]{2})")

# Widest average of a character in common interface fonts, relative to the size (measured: 0.53).
_CHARACTER = 0.54
Rectangle = tuple[float, float, float, float]  # left, bottom, width, height, in data units
Line = tuple[tuple[float, float], tuple[float, float]]


def colour(name: str) -> str:
    """A colour of the page, as matplotlib takes it. Raises KeyError for one the page lacks."""
    return _STAND_INS[name]


@dataclass(frozen=True, slots=True)
class Sheet:
    """What a chart is drawn on: its width in CSS pixels. Every chart is drawn for both widths."""

    width: int

    @property
    def narrow(self) -> bool:
        return self.width < 500

    @property
    def size(self) -> int:
        """Of text, in CSS pixels."""
        return 11 if self.narrow else 12

    def axes(
        self, height: int, *, left: int, right: int = 12, top: int = 6, bottom: int = 30
    ) -> tuple[Figure, Axes]:
        """A figure of this height with one pair of axes; margins in CSS pixels."""
        figure = Figure(figsize=(self.width / 72, height / 72), dpi=72)
        box = (
            left / self.width,
            bottom / height,
            (self.width - left - right) / self.width,
            (height - top - bottom) / height,
        )
        axes = figure.add_axes(box)
        for side in ("top", "left", "right"):
            axes.spines[side].set_visible(False)
        axes.spines["bottom"].set_color(colour("line"))
        axes.tick_params(length=0, pad=5, labelsize=self.size - 1, labelcolor=colour("muted"))
        axes.set_axisbelow(True)
        axes.xaxis.set_major_locator(MaxNLocator(4 if self.narrow else 7))
        return figure, axes

    def clipped(self, text: str, width: float) -> str:
        """The text, cut with an ellipsis where it is surely wider than `width` pixels."""
        room = max(4, round(width / (self.size * _CHARACTER)))
        return text if len(text) <= room else text[: room - 1] + "…"

    def text_width(self, text: str) -> float:
        """About the width of a text, in CSS pixels."""
        return len(text) * self.size * _CHARACTER


WIDE, NARROW = Sheet(820), Sheet(358)


@dataclass(frozen=True, slots=True)
class Rows:
    """Axes with one labelled row for each entry, the first on top; y counts rows downwards."""

    figure: Figure
    axes: Axes
    bar: float  # height of a bar, in rows

    def at(self, row: int) -> float:
        """The middle of a row's bar."""
        return row + 0.5

    def box(self, row: int, start: float, length: float) -> Rectangle:
        """A piece of a row's bar."""
        return (start, self.at(row) - self.bar / 2, length, self.bar)


def labelled_rows(sheet: Sheet, labels: Sequence[str], *, right: int, axis: bool = True) -> Rows:
    """Labels stand left of the bars, and above them where the sheet is narrow."""
    bottom = 30 if axis else 6
    if sheet.narrow:
        row, left = 38, 2
    else:
        row = 26
        left = int(min(420.0, max(sheet.text_width(label) for label in labels) + 14))
    height = row * len(labels) + bottom + 6
    figure, axes = sheet.axes(height, left=left, right=right, bottom=bottom)
    axes.set_ylim(len(labels), 0)
    axes.yaxis.set_visible(False)
    if not axis:
        axes.xaxis.set_visible(False)
        axes.spines["bottom"].set_visible(False)
    for i, label in enumerate(labels):
        if sheet.narrow:
            text, x, y, align = sheet.clipped(label, sheet.width - 10), 0.0, i + 0.04, "left"
        else:
            text, x, y, align = sheet.clipped(label, left - 14), -10.0, i + 0.5, "right"
        axes.annotate(
            text,
            (0, y),
            xycoords=("axes fraction", "data"),
            xytext=(x, 0),
            textcoords="offset points",
            ha=align,
            va="top" if sheet.narrow else "center",
            fontsize=sheet.size,
            color=colour("ink"),
            annotation_clip=False,
        )
    if sheet.narrow:
        return _LowRows(figure, axes, 0.42)
    return Rows(figure, axes, 0.62)


class _LowRows(Rows):
    """Bars below their labels."""

    def at(self, row: int) -> float:
        return row + 0.72


def rectangles(axes: Axes, boxes: Sequence[Rectangle], *, fill: str, opacity: float = 1.0) -> None:
    """Many rectangles as one path: the file stays small."""
    if not boxes:
        return
    corners: list[tuple[float, float]] = []
    for x, y, width, height in boxes:
        corners += [(x, y), (x + width, y), (x + width, y + height), (x, y + height), (x, y)]
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]
    path = Path(corners, codes * len(boxes))
    # Not `add_patch`, which works out limits from every corner: ours are set.
    axes.add_artist(PathPatch(path, facecolor=colour(fill), linewidth=0, alpha=opacity))


def strokes(axes: Axes, lines: Sequence[Line], *, ink: str, width: float) -> None:
    """Many straight lines as one path."""
    if not lines:
        return
    ends = [end for start, stop in lines for end in (start, stop)]
    path = Path(ends, [Path.MOVETO, Path.LINETO] * len(lines))
    axes.add_artist(PathPatch(path, fill=False, edgecolor=colour(ink), linewidth=width, zorder=2))


@contextmanager
def settings(name: str) -> Iterator[None]:
    """Matplotlib as it comes, whatever the user's own matplotlibrc says; ids made from `name`."""
    with mpl.rc_context(), warnings.catch_warnings():
        # "Glyph missing from font": the browser sets the text, not matplotlib.
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


def svg(figure: Figure, *, description: str) -> Markup:
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
    tag = _STAND_IN.sub(lambda found: f"var(--{COLOURS[int(found[1], 16)]})", tag)
    tag = re.sub(r"(\.\d\d)\d+", r"\1", tag)
    return re.sub(r"\s*\n\s*", " ", tag)
