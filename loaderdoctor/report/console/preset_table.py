"""A preset's trials as the published table has them: its rows, its order, its columns."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from loaderdoctor import format as fmt
from loaderdoctor.format import plain
from loaderdoctor.report.console.columns import Column, FittedTable
from loaderdoctor.report.model import Report, Trial
from loaderdoctor.report.words.trials import step_cell
from loaderdoctor.setting_words import heading as heading_of
from loaderdoctor.setting_words import label

Cell = Callable[[Trial], str]

# Two settings a line.
_NAMES_WITH_SETTINGS = 36


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
            yield _table([trial for _, trial in rows])
        yield from self._notes(numbered)

    def _notes(self, numbered: Sequence[tuple[int, Trial]]) -> RenderResult:
        """What the marks in the tables mean: each reason once, with the rows it is about."""
        if any(trial.same_as is not None for _, trial in numbered):
            yield Text("=: as another row on this machine, run once.", style="bright_black")
        about: dict[str, list[str]] = {}
        for _, trial in numbered:
            texts = []
            if trial.status != "ok":
                texts.append(f"{trial.status}, {trial.reason or 'no reason recorded'}")
            if trial.note:
                texts += trial.note.split("; ")
            for text in texts:
                about.setdefault(text, []).append(trial.label)
        for text, labels in about.items():
            names = "; ".join(dict.fromkeys(labels))
            yield Text(f"{plain(names)}: {plain(text)}", style="bright_black")


def _table(rows: Sequence[Trial]) -> FittedTable:
    """With a column for each setting; where those need too much width, in the rows' names."""
    styles = tuple("" if trial.status == "ok" else "bright_black" for trial in rows)
    figures = _columns(_figures(rows), rows)
    settings = _settings(rows)
    named = [(heading_of(name), _setting(name), 0) for name in settings]
    if not settings:
        return FittedTable(title="row", names=_names(rows, ()), columns=figures, styles=styles)
    return FittedTable(
        title="row",
        names=_names(rows, ()),
        columns=(
            *(replace(column, is_setting=True) for column in _columns(named, rows)),
            *figures,
        ),
        styles=styles,
        narrow=FittedTable(
            title="row",
            names=_names(rows, settings),
            name_width=_NAMES_WITH_SETTINGS,
            columns=figures,
            styles=styles,
        ),
    )


def _names(rows: Sequence[Trial], settings: Sequence[str]) -> tuple[Text, ...]:
    """The rows' names, with those of these settings that are on."""
    names = []
    for trial in rows:
        on = [(n, trial.settings.get(n)) for n in settings]
        said = ", ".join(filter(None, (label(n, v) for n, v in on if v not in (None, False))))
        names.append(Text(plain(f"{trial.label}: {said}" if said else trial.label)))
    return tuple(names)


def _columns(read: Sequence[tuple[str, Cell, int]], rows: Sequence[Trial]) -> tuple[Column, ...]:
    return tuple(
        Column(heading=heading, cells=tuple(cell(trial) for trial in rows), rank=rank)
        for heading, cell, rank in read
    )


def _settings(rows: Sequence[Trial]) -> list[str]:
    """Those that differ between the rows.

    Where each row keeps what the rows before it set, its name says what is new.
    """
    found = []
    for name in dict.fromkeys(key for trial in rows for key in trial.settings):
        named = name in ("portion", "storage", "augment") or (
            name != "batch_size" and _is_ladder(rows)
        )
        if not named and len({trial.settings.get(name) for trial in rows}) > 1:
            found.append(name)
    return found


def _figures(rows: Sequence[Trial]) -> list[tuple[str, Cell, int]]:
    """Every figure that one of the rows has.

    With a rank each: 0 for what the published table has, else the highest is left out first.
    """
    found: list[tuple[str, Cell, int]] = []
    on_gpu = any(trial.gpu_peak_allocated_bytes is not None for trial in rows)
    figures: tuple[tuple[str, Callable[[Trial], Any], Callable[[Any], str], int], ...] = (
        ("GPU memory", lambda t: t.gpu_peak_allocated_bytes, fmt.n_bytes, 0),
        ("host memory", lambda t: t.host_bytes, fmt.n_bytes, 4 if on_gpu else 1),
        ("ms a step", lambda t: t.step_ms, lambda _: "", 0),
        ("samples/s", lambda t: t.samples_per_s, fmt.number, 0),
        ("× baseline", lambda t: t.time_ratio, lambda v: fmt.ratio(1.0 / v) if v else "–", 0),
        ("epoch", lambda t: t.epoch_s, fmt.seconds, 2),
        ("start-up", lambda t: t.startup_s, fmt.seconds, 5),
        ("GPU busy %", lambda t: t.gpu_busy_share, fmt.bare_share, 3),
        ("tensor cores %", lambda t: t.tensor_core_share, fmt.bare_share, 6),
        ("reserved", lambda t: t.gpu_peak_reserved_bytes, fmt.n_bytes, 7),
        ("step's tensors", lambda t: t.tensor_peak_bytes, fmt.n_bytes, 8),
    )
    for heading, get, show, rank in figures:
        if heading == "ms a step":
            found.append((heading, _step, 0))
        else:
            found.append((heading, _figure(get, show), rank))
    return found


def _is_ladder(rows: Sequence[Trial]) -> bool:
    """Whether each row keeps all that the row before it set."""
    known = [{k for k, v in trial.settings.items() if v is not None} for trial in rows]
    grows = all(before <= after for before, after in itertools.pairwise(known))
    return grows and len(rows) > 2 and len(known[-1]) > len(known[0]) + 1


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
