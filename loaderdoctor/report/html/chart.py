"""One chart of the page, with its figures as a table: drawn for wide and for narrow pages."""

from __future__ import annotations

from dataclasses import dataclass, replace

from markupsafe import Markup

from loaderdoctor.report.charts.subjects import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of text under headings; the first column names the row."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One chart as the page shows it: `wide` and `narrow` are the same chart; None: not drawn."""

    name: str
    title: str
    note: str
    legend: tuple[tuple[str, str], ...] = ()  # (colour of the page, words)
    wide: Markup | None = None
    narrow: Markup | None = None
    table: Table | None = None
    problem: str | None = None


def drawn(chart: Chart, subject: Subject) -> Chart:
    """The chart with its pictures for both widths; with the reason where the library failed."""
    try:
        from loaderdoctor.report.charts.draw import svg_pair

        wide, narrow = svg_pair(subject, name=chart.name, description=chart.title)
    except Exception as error:  # a broken library must not cost the report
        return replace(chart, problem=f"{type(error).__name__}: {error}")
    return replace(chart, wide=wide, narrow=narrow)
