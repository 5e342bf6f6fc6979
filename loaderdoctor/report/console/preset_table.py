"""A preset's trials as the published table has them: its rows, its order, its columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from loaderdoctor import format as fmt
from loaderdoctor.format import plain
from loaderdoctor.report.console.tables import fits
from loaderdoctor.report.model import Report, Trial
from loaderdoctor.report.words.trials import step_cell

Cell = Callable[[Trial], str]


@dataclass(frozen=True, slots=True)
class PresetTable:
    """Group by group; rows that did not run are in their place, with the reason below."""

    report: Report

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        numbered = [(i, t) for i, t in enumerate(self.report.trials) if t.row is not None]
        for group in dict.fromkeys(trial.group for _, trial in numbered):
            rows = [(i, trial) for i, trial in numbered if trial.group == group]
            if group:
                yield Text(plain(group), style="bold")
            yield self._fitting([trial for _, trial in rows], console, options)
        yield from self._notes(numbered)

    def _fitting(
        self, rows: Sequence[Trial], console: Console, options: ConsoleOptions
    ) -> RenderableType:
        """The table, or a list where the terminal is too narrow for it."""
        table = _table(rows)
        if fits(table, console, options):
            return table
        lines: list[RenderableType] = []
        for trial in rows:
            figures = (f"{heading} {read(trial)}" for heading, read in _columns(rows))
            lines += [
                Text(plain(trial.label)),
                Padding(Text(", ".join(figures)), (0, 0, 0, 2)),
            ]
        return Group(*lines)

    def _notes(self, numbered: Sequence[tuple[int, Trial]]) -> RenderResult:
        """What the marks in the tables mean: each reason once, with the rows it is about."""
        about: dict[str, list[str]] = {}
        for _, trial in numbered:
            texts = []
            if trial.status != "ok":
                texts.append(f"{trial.status}: {trial.reason or 'no reason recorded'}")
            if trial.same_as is not None:
                texts.append(f"same as {self._name(trial.same_as)} on this machine")
            if trial.note:
                texts.append(trial.note)
            for text in texts:
                about.setdefault(text, []).append(trial.label)
        for text, labels in about.items():
            names = ", ".join(dict.fromkeys(labels))
            yield Text(f"{plain(names)}: {plain(text)}", style="bright_black")

    def _name(self, index: int) -> str:
        other = self.report.trials[index]
        return f"'{other.label}'" if other.row is not None else "the loop as it is"


def _table(rows: Sequence[Trial]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bright_black", pad_edge=False)
    table.add_column("row", min_width=6)
    columns = _columns(rows)
    for heading, read in columns:
        need = max(len(heading), *(len(read(trial)) for trial in rows))
        table.add_column(heading, justify="right", no_wrap=True, min_width=need)
    for trial in rows:
        style = "" if trial.status == "ok" else "bright_black"
        cells = [read(trial) for _, read in columns]
        table.add_row(Text(plain(trial.label)), *cells, style=style)
    return table


def _columns(rows: Sequence[Trial]) -> list[tuple[str, Cell]]:
    """Settings that differ between the rows, then every figure that one of them has."""
    found: list[tuple[str, Cell]] = []
    for name in dict.fromkeys(key for trial in rows for key in trial.settings):
        values = [trial.settings.get(name) for trial in rows]
        if name not in ("portion", "storage", "augment") and len(set(values)) > 1:
            found.append((name, _setting(name)))
    figures: tuple[tuple[str, Callable[[Trial], Any], Callable[[Any], str]], ...] = (
        ("ms a step", lambda t: t.step_ms, lambda _: ""),
        ("ratio", lambda t: t.time_ratio, lambda v: f"{v:.2f}"),
        ("epoch", lambda t: t.epoch_s, fmt.seconds),
        ("start-up", lambda t: t.startup_s, fmt.seconds),
        ("samples/s", lambda t: t.samples_per_s, fmt.number),
        ("GPU busy %", lambda t: t.gpu_busy_share, fmt.bare_share),
        ("tensor cores %", lambda t: t.tensor_core_share, fmt.bare_share),
        ("GPU memory", lambda t: t.gpu_peak_allocated_bytes, fmt.n_bytes),
        ("reserved", lambda t: t.gpu_peak_reserved_bytes, fmt.n_bytes),
        ("host memory", lambda t: t.host_bytes, fmt.n_bytes),
        ("step's tensors", lambda t: t.tensor_peak_bytes, fmt.n_bytes),
    )
    for heading, get, show in figures:
        if heading == "ms a step":
            found.append((heading, _step))
        elif any(get(trial) is not None for trial in rows):
            found.append((heading, _figure(get, show)))
    return found


def _setting(name: str) -> Cell:
    def cell(trial: Trial) -> str:
        value = trial.settings.get(name)
        if isinstance(value, bool):
            return "T" if value else "F"
        return "–" if value is None else plain(str(value))

    return cell


def _figure(get: Callable[[Trial], Any], show: Callable[[Any], str]) -> Cell:
    def cell(trial: Trial) -> str:
        value = get(trial)
        return "–" if value is None else show(value)

    return cell


def _step(trial: Trial) -> str:
    if trial.status != "ok" or trial.step_ms is None:
        return trial.status if trial.status != "ok" else "–"
    text = step_cell(trial)
    return f"{text} =" if trial.same_as is not None else text
