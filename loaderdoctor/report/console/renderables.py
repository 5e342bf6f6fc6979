"""What rich lacks: bars, lines and tables that also work in a pipe, without colour or Unicode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.segment import ControlType, Segment
from rich.table import Table
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
        "→": ">", "–": "-", "—": "-", "−": "-", "…": "~", "●": "*", "○": "o", "µ": "u",
        "≤": "<", "≥": ">", "─": "-", "│": "|", "━": "-", "╸": "-", "╺": "-", "\u00a0": " ",
        "‘": "'", "’": "'", "“": '"', "”": '"',
        "▁": "_", "▂": ".", "▃": ":", "▄": "-", "▅": "=", "▆": "+", "▇": "*",
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


NOTHING = "–"
# Names wrap, but no word of theirs is cut that is shorter than this.
NAME_WIDTH = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """Its cells, top down. `rank` 0: never left out; else the highest rank goes first."""

    heading: str
    cells: tuple[str, ...]
    rank: int = 0
    is_setting: bool = False  # a long name over short values

    @property
    def is_empty(self) -> bool:
        """Whether no row has a figure."""
        return all(cell in ("", NOTHING) for cell in self.cells)

    @property
    def shared(self) -> str | None:
        """What all rows have; None where they differ, or where its figures are the point."""
        several = len(self.cells) > 1 and self.rank > 0
        return self.cells[0] if several and len(set(self.cells)) == 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedTable:
    """Rows with a name each, and their figures, fitted to the terminal.

    What all rows share is said once; where the width does not suffice, the columns that matter
    least are left out by name. `numbers`: of the rows, in front.
    """

    title: str  # of the column of names
    names: tuple[Text, ...]
    columns: tuple[Column, ...]
    numbers: tuple[int, ...] | None = None
    name_width: int = NAME_WIDTH  # what the names get at least, if they need it
    styles: tuple[str, ...] = ()  # of the rows; () for none
    narrow: FittedTable | None = None  # the same with fewer columns that can't be left out

    @staticmethod
    def of(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> FittedTable:
        """Rows of text that all have to be there; the first of each is its name."""
        names, *columns = zip(*rows, strict=True)
        return FittedTable(
            title=headings[0],
            names=tuple(map(Text, names)),
            columns=tuple(map(_column, headings[1:], columns)),
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        known = [column for column in self.columns if not column.is_empty]
        shared = [(c.heading, c.shared) for c in known if c.shared is not None]
        if shared:
            said = ", ".join(f"{heading} {value}" for heading, value in shared)
            yield Text(f"The same in all: {said}.", style="bright_black")
        shown = [column for column in known if column.shared is None]
        left_out: list[str] = []
        while not fits(table := self._table(shown), console, options):
            if not any(column.rank for column in shown):
                if self.narrow is not None:
                    yield from self.narrow.__rich_console__(console, options)
                else:
                    yield from self._as_list(shown)
                return
            least = max(shown, key=lambda column: column.rank)
            shown.remove(least)
            left_out.insert(0, least.heading)
        yield table
        if left_out:
            yield Text(f"Too narrow for: {', '.join(left_out)}.", style="bright_black")

    def _table(self, columns: Sequence[Column]) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bright_black", pad_edge=False)
        if self.numbers is not None:
            table.add_column("#", justify="right", no_wrap=True)
        words = [name.plain for name in self.names]
        if self.name_width <= NAME_WIDTH:
            words = [word for text in words for word in text.split()]
        longest = max(map(cell_len, (self.title, *words)), default=0)
        table.add_column(self.title, min_width=min(longest, self.name_width), overflow="fold")
        several = sum(column.is_setting for column in columns) > 2
        for column in columns:
            # A minimum, so that the table can be measured: figures are never cut.
            heading = stacked(column.heading) if column.is_setting and several else column.heading
            need = max(map(cell_len, (*heading.split("\n"), *column.cells)))
            table.add_column(heading, justify="right", no_wrap=True, min_width=need)
        for i, name in enumerate(self.names):
            number = [str(self.numbers[i])] if self.numbers is not None else []
            style = self.styles[i] if self.styles else ""
            figures = (Text(column.cells[i]) for column in columns)
            table.add_row(*number, name, *figures, style=style)
        return table

    def _as_list(self, columns: Sequence[Column]) -> RenderResult:
        """For where not even the figures that matter most stand side by side."""
        for i, name in enumerate(self.names):
            number = f"{self.numbers[i]} " if self.numbers is not None else ""
            yield Text.assemble(number, name)
            figures = (f"{column.heading} {column.cells[i]}" for column in columns)
            body: RenderableType = Text(", ".join(figures))
            yield Padding(body, (0, 0, 0, 2))


def _column(heading: str, cells: tuple[str, ...]) -> Column:
    return Column(heading=heading, cells=cells)


@dataclass(frozen=True, slots=True)
class Fitted:
    """A table where the terminal is wide enough for it; else what it says, in lines."""

    table: Table
    lines: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.table if fits(self.table, console, options) else self.lines


def stacked(heading: str) -> str:
    """A heading over several lines, cut behind `_` and between words: settings have long names."""
    return heading.replace("_", "_\n").replace(" ", "\n")


def fits(table: Table, console: Console, options: ConsoleOptions) -> bool:
    """Whether the terminal is wide enough for a table whose figures are never cut."""
    wide = options.update(max_width=1000)
    return Measurement.get(console, wide, table).minimum <= options.max_width
