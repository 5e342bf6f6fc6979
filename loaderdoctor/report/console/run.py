"""A whole run on the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from loaderdoctor.format import plain
from loaderdoctor.report.console.first_screen import section
from loaderdoctor.report.run_model import Run
from loaderdoctor.report.words import run as words
from loaderdoctor.report.words import tuning as tuning_words

_BRIEF_ALERTS = 4


def whole_run(run: Run | None, *, brief: bool = False) -> RenderableType | None:
    """Where its time went and what was told of it; None where no run was recorded."""
    if run is None:
        return None
    return section("The whole run", *_body(run, brief=brief))


def _body(run: Run, *, brief: bool) -> Iterator[RenderableType]:
    yield Text(words.lead(run))
    went_to = words.went_to(run.time)
    if went_to is not None:
        yield Text(went_to)
    line = words.sparkline(run)
    if line is not None:
        yield Text.assemble(("waiting over time  ", "bright_black"), line)
    if not brief:
        times = words.step_times(run)
        if times is not None:
            yield Text(times)
        if len(run.epochs) > 1:
            yield _epochs(run)
    yield from _tuning(run, brief=brief)
    alerts = [a for a in run.alerts if not (brief and a.kind == "tuned")]  # said above, as a whole
    shown = alerts[:_BRIEF_ALERTS] if brief else alerts
    for alert in shown:
        yield Text.assemble(("● ", "yellow"), plain(words.alert_line(alert)))
    if len(alerts) > len(shown):
        yield Text(f"and {len(alerts) - len(shown)} more", style="bright_black")


def _tuning(run: Run, *, brief: bool) -> Iterator[RenderableType]:
    """What was tried and what came of it; the lines to write are under what to change."""
    if run.tuning is None:
        return
    yield Text(plain(tuning_words.summary(run.tuning)))
    if run.tuning.tried and not brief:
        yield _table(tuning_words.TRIED_HEADINGS, tuning_words.tried_rows(run.tuning))


def _epochs(run: Run) -> RenderableType:
    return _table(words.EPOCH_HEADINGS, words.epoch_rows(run.epochs))


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> RenderableType:
    """Figures to the right, words to the left."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bright_black", pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("tried", "") else "right")
    for row in rows:
        table.add_row(*(plain(cell) for cell in row))
    return table
