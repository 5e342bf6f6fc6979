"""What charts are drawn on: sheets of a size, in colours of the page, with rows and bars.

Colours are those of the page, by its names. On the page's own sheets they are stand-ins that
become CSS variables, so that one chart serves light, dark and print.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Outline
from matplotlib.ticker import MaxNLocator

COLOURS = (
    "ink", "muted", "line", "track", "mark", "plain", "good", "tied",
    "compute", "communication", "copy", "input", "host", "other",
    "sync", "fetch", "collate", "send", "pin",
)  # fmt: skip
_STAND_INS = {name: f"#f0a5{i:02x}" for i, name in enumerate(COLOURS)}
_STAND_IN = re.compile(r"#f0a5([0-9a-f]{2})")
_CSS = Path(__file__).parents[1] / "templates" / "style.css"

Rectangle = tuple[float, float, float, float]  # left, bottom, width, height, in data units
Line = tuple[tuple[float, float], tuple[float, float]]


@cache
def _light() -> Mapping[str, str]:
    """The colours of the page in light, of which paper is."""
    theme = _CSS.read_text(encoding="utf-8").partition("}")[0]
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", theme))


def in_css(text: str) -> str:
    """The text with the page's CSS variables in place of stand-ins."""
    return _STAND_IN.sub(lambda found: f"var(--{COLOURS[int(found[1], 16)]})", text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """What a chart is drawn on; sizes in CSS pixels. `head` is kept free above the chart."""

    width: int
    head: int = 0
    printed: bool = False  # on paper, where no page sets the text and gives the colours

    def colour(self, name: str) -> str:
        """A colour of the page, as matplotlib takes it. Raises KeyError for one it lacks."""
        return (_light() if self.printed else _STAND_INS)[name]

    @property
    def narrow(self) -> bool:
        return self.width < 500

    @property
    def size(self) -> int:
        return 11 if self.narrow else 12

    @property
    def character(self) -> float:
        """Widest average of a character, relative to the size of text."""
        # Of matplotlib's own font; of common interface fonts (measured: 0.53).
        return 0.64 if self.printed else 0.54

    def axes(
        self, height: int, *, left: int, right: int = 12, top: int = 6, bottom: int = 30
    ) -> tuple[Figure, Axes]:
        """A figure of this height, and the head, with one pair of axes within margins."""
        height, top = height + self.head, top + self.head
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
        axes.spines["bottom"].set_color(self.colour("line"))
        self.quiet_ticks(axes)
        axes.set_axisbelow(True)
        axes.xaxis.set_major_locator(MaxNLocator(4 if self.narrow else 7))
        return figure, axes

    def quiet_ticks(self, axes: Axes) -> None:
        axes.tick_params(length=0, pad=5, labelsize=self.size - 1, labelcolor=self.colour("muted"))

    def name_x(self, axes: Axes, text: str) -> None:
        axes.set_xlabel(
            text, loc="right", fontsize=self.size - 1, color=self.colour("muted"), labelpad=1
        )

    def name_y(self, axes: Axes, text: str) -> None:
        """What the y axis counts, above it."""
        axes.set_title(text, loc="left", fontsize=self.size - 1, color=self.colour("muted"), pad=3)

    def clipped(self, text: str, width: float) -> str:
        """The text, cut with an ellipsis where it is surely wider than `width` pixels."""
        room = max(4, round(width / (self.size * self.character)))
        return text if len(text) <= room else text[: room - 1] + "…"

    def text_width(self, text: str) -> float:
        """About the width of a text, in CSS pixels."""
        return len(text) * self.size * self.character

    def rectangles(
        self, axes: Axes, boxes: Sequence[Rectangle], *, fill: str, opacity: float = 1.0
    ) -> None:
        """Many rectangles as one path: the file stays small."""
        if not boxes:
            return
        corners: list[tuple[float, float]] = []
        for x, y, width, height in boxes:
            corners += [(x, y), (x + width, y), (x + width, y + height), (x, y + height), (x, y)]
        step = [Outline.MOVETO, Outline.LINETO, Outline.LINETO, Outline.LINETO, Outline.CLOSEPOLY]
        path = Outline(corners, step * len(boxes))
        # Not `add_patch`, which works out limits from every corner: ours are set.
        colour = self.colour(fill)
        axes.add_artist(PathPatch(path, facecolor=colour, linewidth=0, alpha=opacity))

    def strokes(self, axes: Axes, lines: Sequence[Line], *, ink: str, width: float) -> None:
        if not lines:
            return
        ends = [end for start, stop in lines for end in (start, stop)]
        path = Outline(ends, [Outline.MOVETO, Outline.LINETO] * len(lines))
        colour = self.colour(ink)
        axes.add_artist(PathPatch(path, fill=False, edgecolor=colour, linewidth=width, zorder=2))


# Every chart of the page is drawn for both widths.
WIDE, NARROW = Sheet(width=820), Sheet(width=358)


def paper(head: int) -> Sheet:
    """What a file of one chart is drawn on."""
    return Sheet(width=1000, head=head, printed=True)


@dataclass(frozen=True, slots=True)
class Rows:
    """Axes with one labelled row for each entry, the first on top; y counts rows downwards."""

    figure: Figure
    axes: Axes
    bar: float  # height of a bar, in rows
    middle: float  # of the bar, from the top of its row

    def at(self, row: int) -> float:
        """The middle of a row's bar."""
        return row + self.middle

    def box(self, row: int, start: float, length: float) -> Rectangle:
        """A piece of a row's bar."""
        return (start, self.at(row) - self.bar / 2, length, self.bar)


def labelled_rows(
    sheet: Sheet,
    labels: Sequence[str],
    *,
    right: int = 12,
    top: int = 6,
    axis: bool = True,
    height: int = 26,
) -> Rows:
    """Labels stand left of the bars, and above them where the sheet is narrow."""
    bottom = 30 if axis else 6
    if sheet.narrow:
        height, left = height + 12, 2
    else:
        widest = max(sheet.text_width(label) for label in labels) + 14
        left = int(min(sheet.width * 0.51, widest))
    figure, axes = sheet.axes(
        height * len(labels) + bottom + top, left=left, right=right, top=top, bottom=bottom
    )
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
            color=sheet.colour("ink"),
            annotation_clip=False,
        )
    return Rows(figure, axes, 0.42, 0.72) if sheet.narrow else Rows(figure, axes, 0.62, 0.5)
