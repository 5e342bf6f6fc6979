"""A table of figures that fits its terminal.

What all rows share is said once; where the width does not suffice, the columns that matter least
are left out by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

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
    """Rows with a name each, and their figures. `numbers`: of the rows, in front."""

    title: str  # of the column of names
    names: tuple[Text, ...]
    columns: tuple[Column, ...]
    numbers: tuple[int, ...] | None = None
    name_width: int = NAME_WIDTH  # what the names get at least, if they need it
    styles: tuple[str, ...] = ()  # of the rows; () for none
    narrow: FittedTable | None = None  # the same with fewer columns that can't be left out

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
            yield Text(f"For want of width without: {', '.join(left_out)}.", style="bright_black")

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
            table.add_row(*number, name, *(column.cells[i] for column in columns), style=style)
        return table

    def _as_list(self, columns: Sequence[Column]) -> RenderResult:
        """For where not even the figures that matter most stand side by side."""
        for i, name in enumerate(self.names):
            number = f"{self.numbers[i]} " if self.numbers is not None else ""
            yield Text.assemble(number, name)
            figures = (f"{column.heading} {column.cells[i]}" for column in columns)
            body: RenderableType = Text(", ".join(figures))
            yield Padding(body, (0, 0, 0, 2))


def stacked(heading: str) -> str:
    """A heading over several lines, cut behind `_` and between words: settings have long names."""
    return heading.replace("_", "_\n").replace(" ", "\n")


def fits(table: Table, console: Console, options: ConsoleOptions) -> bool:
    """Whether the terminal is wide enough for a table whose figures are never cut."""
    wide = options.update(max_width=1000)
    return Measurement.get(console, wide, table).minimum <= options.max_width
