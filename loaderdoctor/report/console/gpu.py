"""The GPU and the user's own ranges on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from loaderdoctor.format import plain
from loaderdoctor.report.model import Gpu, MemoryHistory, UserRange
from loaderdoctor.report.words import gpu as words


def gpu_lines(gpu: Gpu | None, history: MemoryHistory | None) -> list[RenderableType]:
    """Figures of each device, memory, and how busy it is over time; empty where there are none."""
    return [Text(line) for line in _lines(gpu, history)]


def _lines(gpu: Gpu | None, history: MemoryHistory | None) -> Iterator[str]:
    if gpu is not None:
        for device in gpu.devices:
            which = words.heading(device, len(gpu.devices))
            yield (f"{which}: " if which else "") + _joined(words.device_figures(device))
        memory = _joined(words.memory_figures(gpu))
        if memory:
            yield memory
        if gpu.busy is not None:
            yield plain(gpu.busy.summary)
    if history is not None:
        yield f"Memory history: {words.memory_history_sentence(history)}"


def ranges_table(ranges: Sequence[UserRange]) -> RenderableType:
    """What each range took, on the host and on the GPU."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bright_black", pad_edge=False)
    name, *figures = words.RANGE_HEADINGS
    table.add_column(name, overflow="fold")
    for heading in figures:
        table.add_column(heading, justify="right")
    for row in words.range_rows(ranges):
        table.add_row(*map(Text, row))
    if not any(found.depth for found in ranges):
        return table
    return Group(table, Text(words.NESTED, style="bright_black"))


def _joined(figures: Sequence[tuple[str, str]]) -> str:
    return " · ".join(f"{name} {figure}" for name, figure in figures)
