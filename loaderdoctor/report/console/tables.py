"""Tables of the console report: changes, trials, ranks, claims, and a whole run.

Narrow terminals get the same figures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len
from rich.console import (
    Console,
    ConsoleOptions,
    Group,
    JustifyMethod,
    RenderableType,
    RenderResult,
)
from rich.table import Table
from rich.text import Text

from loaderdoctor import format as fmt
from loaderdoctor.format import plain
from loaderdoctor.report.console.columns import Column, FittedTable, fits
from loaderdoctor.report.console.first_screen import section
from loaderdoctor.report.model import Cluster, Rank, Report, Trial
from loaderdoctor.report.ranks import KEY, MAX_SHOWN, outliers_first, rank_columns
from loaderdoctor.report.run_model import Run
from loaderdoctor.report.words import run as words
from loaderdoctor.report.words import tuning as tuning_words
from loaderdoctor.report.words.trials import (
    by_speed,
    group_rows,
    hardware_lines,
    shared_sentence,
    table_key,
    trial_columns,
    trial_mark,
    trial_names,
)

_BRIEF_ALERTS = 4


@dataclass(frozen=True, slots=True)
class TrialsTable:
    """Every trial: those that ran, fastest first, then failed and skipped ones with the reason.

    With `most`, the fastest alone and the loop as it is.
    """

    report: Report
    most: int | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        trials = list(enumerate(self.report.trials))
        names = trial_names(self.report)
        if (shared := shared_sentence(names)) is not None:
            yield Text(plain(shared), style="bright_black")
        parts = self.report.by_hardware
        for kind, base, members in parts:
            ran = [
                (i, self.report.trials[i]) for i in members if self.report.trials[i].status == "ok"
            ]
            ran.sort(key=lambda item: by_speed(item[1]))
            if len(parts) > 1:
                own = f", own settings {fmt.ms(base)}" if base is not None else ""
                yield Text(f"Hardware {kind}{own}", style="bold")
            shown = [x for n, x in enumerate(ran) if self.most is None or n < self.most or not x[0]]
            if shown:
                yield self._table(shown, base, names.names)
                if len(ran) > len(shown):
                    yield Text(f"and {len(ran) - len(shown)} slower", style="bright_black")
                key = table_key(trial for _, trial in shown)
                if key is not None:
                    yield Text(key, style="bright_black")
        for i, trial in trials:
            if trial.status != "ok":
                reason = plain(trial.reason or "no reason recorded")
                yield Text(f"{i} {plain(names.names[i])}: {trial.status}, {reason}")

    def _table(
        self, ran: Sequence[tuple[int, Trial]], base: float | None, names: Sequence[str]
    ) -> FittedTable:
        """`base` is the step time of the loop's own settings: what every trial is compared with."""
        marks = [(names[i], *trial_mark(self.report, i)) for i, _ in ran]
        return FittedTable(
            title="settings",
            numbers=tuple(i for i, _ in ran),
            names=tuple(Text(_label(name, mark), style=style) for name, mark, style in marks),
            columns=tuple(
                Column(
                    heading=column.heading,
                    cells=tuple(column.read(trial, base) for _, trial in ran),
                    rank=column.rank,
                )
                for column in trial_columns([trial for _, trial in ran])
            ),
        )


@dataclass(frozen=True, slots=True)
class RanksTable:
    """Each rank's step in milliseconds, part by part, those that stand out first."""

    ranks: Sequence[Rank]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = outliers_first(self.ranks)[:MAX_SHOWN]
        columns = rank_columns(self.ranks)
        table = Table(box=None, padding=(0, 1), header_style="bright_black", pad_edge=False)
        cells = [[read(rank) for _, read in columns] for rank in shown]
        for (heading, _), column in zip(columns, zip(*cells, strict=True), strict=True):
            need = max(map(cell_len, (heading, *column)))
            side: JustifyMethod = "left" if heading == "machine" else "right"
            table.add_column(heading, justify=side, no_wrap=True, min_width=need)
        for row in cells:
            table.add_row(*map(Text, row))
        if fits(table, console, options):
            yield table
        else:
            for row in cells:
                named = zip(columns, row, strict=True)
                yield Text(", ".join(f"{heading} {cell}" for (heading, _), cell in named))
        yield Text(KEY, style="bright_black")
        if len(self.ranks) > len(shown):
            left = len(self.ranks) - len(shown)
            yield Text(f"and {left} more, closer to the median: see report.json")


def machines_table(cluster: Cluster) -> RenderableType:
    """Each group of a cluster's sweep: where it was measured, and its own baseline."""
    lines = [
        Text(plain(f"{row[0]}: {', '.join(filter(None, row[1:]))}")) for row in group_rows(cluster)
    ]
    kinds = [Text(plain(line), style="bright_black") for line in hardware_lines(cluster)]
    return Group(*lines, *kinds)


# Keys of one claim, in order, with the heading each gets.
_CLAIM_KEYS = (("claim", "claim"), ("published", "published"), ("ours", "here"), ("verdict", ""))


def claims_table(claims: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Published claims next to our own figures, and whether they agree.

    A reason that several have is said once, below.
    """
    reasons = Counter(str(claim["reason"]) for claim in claims if claim.get("reason"))
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bright_black", pad_edge=False)
    for _, heading in _CLAIM_KEYS:
        table.add_column(heading, overflow="fold")
    for claim in claims:
        cells = [_claim_cell(claim.get(key)) for key, _ in _CLAIM_KEYS]
        cells[-1].stylize(_CLAIM_STYLES.get(cells[-1].plain, ""))
        if reasons[reason := str(claim.get("reason") or "")] == 1:
            cells[-1].append(f" ({plain(reason)})", style="bright_black")
        table.add_row(*cells)
    shared = {
        f"{claim['verdict']}: {claim['reason']}": None
        for claim in claims
        if reasons[str(claim.get("reason") or "")] > 1
    }
    return Group(table, *(Text(plain(text), style="bright_black") for text in shared))


_CLAIM_STYLES = {"agrees": "green", "disagrees": "yellow"}


def _claim_cell(value: Any) -> Text:
    if value is None:
        return Text("–")
    return Text(fmt.number(value) if isinstance(value, float) else plain(str(value)))


def _label(name: str, mark: str) -> str:
    return plain(name) + (f" ({mark})" if mark else "")


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
