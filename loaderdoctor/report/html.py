"""A report -> report.html: one self-contained file, no script, no network.

User text is escaped by the template engine, everywhere.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from loaderdoctor import __version__
from loaderdoctor import format as fmt
from loaderdoctor.report import RunFolder, words, write_bytes
from loaderdoctor.report.charts.figures import HtmlExtras, Table, charts_of
from loaderdoctor.report.model import Report
from loaderdoctor.report.words import is_outside, parts_of, run, tables, whole_of
from loaderdoctor.report.words.changes import (
    IDEAS,
    IN_THE_STEP,
    changes_of,
    leader_not_advised,
    nothing_is_advised,
    vocabulary,
)
from loaderdoctor.report.words.first_screen import (
    changes_and_ideas,
    evidence_words,
    other_loader_sentences,
    share_words,
    step_notes,
    what_if,
    what_if_notes,
    what_if_title,
)
from loaderdoctor.report.words.tables import (
    RANKS_KEY,
    outliers_first,
    ran_by_kind,
    rank_columns,
    shared_sentence,
    table_key,
    trial_columns,
    trial_mark,
    trial_names,
)
from loaderdoctor.report.words.verdict import headline, trust_sentence
from loaderdoctor.report.words.whole_run import meaning
from loaderdoctor.setting_words import heading

NAME = "report.html"
_TEMPLATE = "report.html.j2"
_BYTES = "_bytes"
_QUOTED = re.compile(r"`([^`\n]+)`")


def write_html(report: Report, folder: RunFolder, extras: HtmlExtras | None = None) -> None:
    """Write report.html into a run folder. Raises RunError where it can't be written."""
    text = html(report, extras)
    write_bytes(folder.path / NAME, text.encode("utf-8", "replace"))


def html(report: Report, extras: HtmlExtras | None = None) -> str:
    more = extras or HtmlExtras()
    bound, severity = headline(report)
    changes, (_, ideas) = changes_of(report.recommendations), changes_and_ideas(report)
    rows = [row for row in what_if(report) if row.applies]
    ends = [max(r.value_ms, r.ci_ms[1] if r.ci_ms else 0.0) for r in rows if r.value_ms is not None]
    return (
        _environment()
        .get_template(_TEMPLATE)
        .render(
            report=report,
            extras=more,
            charts=charts_of(report, more),
            css=_source("style.css"),
            version=__version__,
            made_at=_date(more.made_at),
            bound=bound,
            severity=severity,
            top=parts_of(report),
            trust=trust_sentence(report),
            step_notes=step_notes(report),
            other_loaders=other_loader_sentences(report),
            what_if=rows,
            longest_ms=max(ends, default=0.0) or 1.0,
            what_if_title=what_if_title(report),
            what_if_notes=what_if_notes(report),
            outside=is_outside(report),
            ideas_title=IDEAS,
            in_the_step=IN_THE_STEP,
            changes=changes,
            ideas=ideas,
            vocabulary=vocabulary(changes),
            nothing_is_advised=nothing_is_advised(report),
            leader=leader_not_advised(report),
            meaning=meaning(report),
            trials=_trials(report),
            ranks=_ranks(report),
            ranks_key=RANKS_KEY,
            machines=_machines(report),
            hardware=tables.hardware_lines(report.cluster) if report.cluster is not None else (),
            ranges=_ranges(report),
            environment=_environment_rows(report.environment),
        )
    )


def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("loaderdoctor.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(fmt=fmt, parts=words, run_words=run)
    made.filters.update(
        evidence=evidence_words,
        share_words=share_words,
        lines=str.splitlines,
        heading=heading,
        percent_of=_percent_of,
        prose=_prose,
    )
    return made


def _prose(text: str) -> Markup:
    """A sentence; what it quotes in backticks is set as code."""
    parts = [escape(fmt.plain(part)) for part in _QUOTED.split(text)]
    code = Markup("<code>{}</code>")
    return Markup("").join(code.format(x) if i % 2 else x for i, x in enumerate(parts))


def _visible(value: Any) -> Any:
    """Control characters of the user's text as codes; what is markup already stays as it is."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return fmt.plain(value)
    return value


def _source(name: str) -> Markup:
    environment = _environment()
    assert environment.loader is not None
    return Markup(environment.loader.get_source(environment, name)[0])


def _date(at: float | None) -> str | None:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at)) if at is not None else None


def _percent_of(value: float, whole: float) -> float:
    """Of the width of a track, whose end is `whole`."""
    return 100 * min(1.0, max(0.0, value / whole))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRow:
    number: int
    label: str
    mark: str
    cells: tuple[str, ...]
    fault: str | None  # status and reason of a trial that did not run


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialTable:
    headings: tuple[str, ...]
    rows: tuple[TrialRow, ...]
    key: str | None  # of words in the cells
    shared: str | None  # what all trials have in common


def _trials(report: Report) -> TrialTable | None:
    """Every trial: those that ran, fastest first, then the others with the reason."""
    if not report.trials:
        return None
    kinds = ran_by_kind(report)
    ran = [(i, t, own_ms) for _, own_ms, kind in kinds for i, t in kind]
    of = {i: f" (hardware {name})" for name, _, kind in kinds for i, _ in kind if len(kinds) > 1}
    columns = trial_columns([t for _, t, _ in ran])
    names = trial_names(report)
    rows = [
        TrialRow(
            number=i,
            label=names.names[i] + of.get(i, ""),
            mark=trial_mark(report, i)[0],
            cells=tuple(column.read(trial, own_ms) for column in columns),
            fault=None,
        )
        for i, trial, own_ms in ran
    ]
    rows += [
        TrialRow(
            number=i,
            label=names.names[i],
            mark="",
            cells=(),
            fault=f"{trial.status}: {trial.reason or 'no reason recorded'}",
        )
        for i, trial in enumerate(report.trials)
        if trial.status != "ok"
    ]
    return TrialTable(
        headings=tuple(column.heading for column in columns),
        rows=tuple(rows),
        key=table_key(trial for trial in report.trials),
        shared=shared_sentence(names),
    )


def _ranks(report: Report) -> Table | None:
    if not report.ranks:
        return None
    columns = rank_columns(report.ranks)
    return Table(
        headings=tuple(heading for heading, _ in columns),
        rows=tuple(
            tuple(read(rank) for _, read in columns) for rank in outliers_first(report.ranks)
        ),
    )


def _machines(report: Report) -> Table | None:
    if report.cluster is None:
        return None
    return Table(headings=tables.MACHINE_HEADINGS, rows=tables.group_rows(report.cluster))


def _ranges(report: Report) -> Table | None:
    if not report.ranges:
        return None
    return Table(
        headings=words.range_headings(whole_of(report).per), rows=words.range_rows(report.ranges)
    )


def _environment_rows(environment: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(
        (fmt.words(name.removesuffix(_BYTES)).replace("_", " "), _environment_value(name, value))
        for name, value in environment.items()
        if value is not None
    )


def _environment_value(name: str, value: Any) -> str:
    if name.endswith(_BYTES):
        return fmt.n_bytes(value)
    if name.endswith("cpus"):
        return fmt.cpus(value)
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)
