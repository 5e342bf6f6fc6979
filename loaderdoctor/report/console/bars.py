"""Bars and letters that also work in a pipe, without colour and without Unicode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import ControlType, Segment
from rich.text import Text

# How each share is drawn: the glyph tells it apart, the colour only repeats that.
GLYPHS: Mapping[str, tuple[str, str]] = {
    "outside": ("▙", "red"),
    "input": ("█", "yellow"),
    "copy": ("▓", "magenta"),
    "communication": ("▚", "blue"),
    "compute": ("▒", "green"),
    "host": ("░", "cyan"),
    "other": ("·", "bright_black"),
}

# Where the output can't hold a character. Translated one for one where widths matter (bars,
# tables), so that columns stay aligned.
_ASCII = str.maketrans(
    {
        "█": "#", "▓": "%", "▚": "&", "▙": "@", "▒": "=", "░": ":", "·": ".", "×": "x", "±": "~",
        "→": ">", "–": "-", "—": "-", "…": "~", "●": "*", "○": "o", "µ": "u", "≤": "<", "≥": ">",
        "─": "-", "│": "|", "━": "-", "╸": "-", "╺": "-", "\u00a0": " ",
        "‘": "'", "’": "'", "“": '"', "”": '"',
    }
)  # fmt: skip


def cells(weights: Sequence[float], width: int) -> list[int]:
    """Cells for each part of a bar: they sum to `width`; whatever is there gets at least one.

    Empty where nothing has weight. Largest remainders get the cells that rounding leaves.
    """
    total = sum(weights)
    if total <= 0 or width <= 0:
        return [0] * len(weights)
    exact = [max(0.0, weight) / total * width for weight in weights]
    # A part of less than a tenth of a cell would be shown ten times its size: leave it out.
    given = [max(1, int(size)) if size >= 0.1 else 0 for size in exact]
    while sum(given) > width:
        spare = [i for i, n in enumerate(given) if n > 1] or [i for i, n in enumerate(given) if n]
        given[max(spare, key=lambda i: given[i] - exact[i])] -= 1
    while sum(given) < width:
        given[max(range(len(given)), key=lambda i: exact[i] - given[i])] += 1
    return given


@dataclass(frozen=True, slots=True)
class Bar:
    """Parts (glyph, style, weight) side by side; `whole` is the weight of the full width."""

    parts: Sequence[tuple[str, str, float]]
    whole: float
    max_width: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(self.max_width, options.max_width)
        weights = [weight for _, _, weight in self.parts]
        filled = width if self.whole <= 0 else round(width * min(1.0, sum(weights) / self.whole))
        if sum(weights) > 0:
            filled = max(1, filled)
        yield Text("").join(
            Text(glyph * n, style=style)
            for (glyph, style, _), n in zip(self.parts, cells(weights, filled), strict=True)
        )

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(4, self.max_width), min(self.max_width, options.max_width))


@dataclass(frozen=True, slots=True)
class Capped:
    """No wider than `width`: lines of prose beyond a hundred columns are hard to follow."""

    body: RenderableType
    width: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(self.width, options.max_width)
        yield from console.render(self.body, options.update(width=width, max_width=width))


@dataclass(frozen=True, slots=True)
class Verbatim:
    """Lines (text, style) to be copied: whole at any width, neither wrapped nor cut.

    rich cuts every line to the width of what holds it; control codes alone have none. So what is
    wider goes through as one. It needs a style, or rich leaves it out of a pipe.
    """

    lines: Sequence[tuple[str, str]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for text, style in self.lines:
            wide = cell_len(text) > options.max_width or "\t" in text
            control = [(ControlType.HOME,)] if wide else None  # any: it is not sent
            yield Segment(text, console.get_style(style), control)
            yield Segment.line()


@dataclass(frozen=True, slots=True)
class Legible:
    """The body in characters that the output can hold, without spaces at the ends of lines."""

    body: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in console.render_lines(self.body, options, pad=False):
            for segment in _stripped(line):
                yield _ascii(segment) if options.ascii_only else segment
            yield Segment.line()


def _stripped(line: list[Segment]) -> list[Segment]:
    kept = list(line)
    while kept:
        last = kept.pop()
        text = last.text.rstrip(" ")
        if text:
            return [*kept, Segment(text, last.style, last.control)]
    return kept


def _ascii(segment: Segment) -> Segment:
    text = segment.text.translate(_ASCII).encode("ascii", "replace").decode("ascii")
    return Segment(text, segment.style, segment.control)
