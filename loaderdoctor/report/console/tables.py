"""Tables of the console report: trials, presets, ranks, claims, and a whole run.

Narrow terminals get the same figures.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.cells import cell_len
from rich.console import Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from loaderdoctor import format as fmt
from loaderdoctor.format import plain
from loaderdoctor.report.console.renderables import Column, Fitted, FittedTable
from loaderdoctor.report.console.sections import section
from loaderdoctor.report.model import Cluster, Rank, Report, Trial
from loaderdoctor.report.run_model import Run
from loaderdoctor.report.words import run as words
from loaderdoctor.report.words.tables import (
    MAX_SHOWN,
    RANKS_KEY,
    group_rows,
    hardware_lines,
    outliers_first,
    ran_by_kind,
    rank_columns,
    shared_sentence,
    step_cell,
    table_key,
    trial_columns,
    trial_mark,
    trial_names,
)
from loaderdoctor.setting_words import heading as heading_of
from loaderdoctor.setting_words import label

_BRIEF_ALERTS = 4


def trials_table(report: Report, *, most: int | None = None) -> RenderableType:
    """Every trial: those that ran, fastest first, then failed and skipped ones with the reason.

    With `most`, the fastest alone and the loop as it is.
    """
    return Group(*_trials(report, most))


def _trials(report: Report, most: int | None) -> Iterator[RenderableType]:
    names = trial_names(report)
    if (shared := shared_sentence(names)) is not None:
        yield Text(plain(shared), style="bright_black")
    parts = ran_by_kind(report)
    for kind, base, ran in parts:
        if len(parts) > 1:
            own = f", own settings {fmt.ms(base)}" if base is not None else ""
            yield Text(f"Hardware {plain(str(kind))}{own}", style="bold")
        shown = [x for n, x in enumerate(ran) if most is None or n < most or not x[0]]
        if shown:
            yield _trial_rows(report, shown, base, names.names)
            if len(ran) > len(shown):
                yield Text(f"and {len(ran) - len(shown)} slower", style="bright_black")
            key = table_key(trial for _, trial in shown)
            if key is not None:
                yield Text(key, style="bright_black")
    for i, trial in enumerate(report.trials):
        if trial.status != "ok":
            reason = plain(trial.reason or "no reason recorded")
            yield Text(f"{i} {plain(names.names[i])}: {trial.status}, {reason}")


def _trial_rows(
    report: Report, ran: Sequence[tuple[int, Trial]], base: float | None, names: Sequence[str]
) -> FittedTable:
    """`base` is the step time of the loop's own settings: what every trial is compared with."""
    marks = [(names[i], *trial_mark(report, i)) for i, _ in ran]
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


def ranks_table(ranks: Sequence[Rank]) -> RenderableType:
    """Each rank's step in milliseconds, part by part, those that stand out first."""
    shown, columns = outliers_first(ranks)[:MAX_SHOWN], rank_columns(ranks)
    table = Table(box=None, padding=(0, 1), header_style="bright_black", pad_edge=False)
    cells = [[read(rank) for _, read in columns] for rank in shown]
    for (heading, _), column in zip(columns, zip(*cells, strict=True), strict=True):
        need = max(map(cell_len, (heading, *column)))
        side: JustifyMethod = "left" if heading == "machine" else "right"
        table.add_column(heading, justify=side, no_wrap=True, min_width=need)
    for row in cells:
        table.add_row(*map(Text, row))
    lines = [
        Text(
            ", ".join(f"{heading} {cell}" for (heading, _), cell in zip(columns, row, strict=True))
        )
        for row in cells
    ]
    left = len(ranks) - len(shown)
    more = [Text(f"and {left} more, closer to the median: see report.json")] if left else []
    key = Text(RANKS_KEY, style="bright_black")
    return Group(Fitted(table, Group(*lines)), key, *more)


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


def whole_run(report: Report, *, brief: bool = False) -> RenderableType | None:
    """Where its time went and what was told of it; None where no run was recorded."""
    if report.run is None:
        return None
    return section("The whole run", *_body(report, report.run, brief=brief))


def _body(report: Report, run: Run, *, brief: bool) -> Iterator[RenderableType]:
    yield Text(words.lead(run))
    for said in (words.went_to(run.time), words.unlike_window(report)):
        if said is not None:
            yield Text(said)
    line = words.sparkline(run)
    if line is not None:
        yield Text.assemble(("waiting over time  ", "bright_black"), line)
    if not brief:
        times = words.step_times(run)
        if times is not None:
            yield Text(times)
        if len(run.epochs) > 1:
            yield FittedTable.of(words.EPOCH_HEADINGS, words.epoch_rows(run.epochs))
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
    yield Text(plain(words.tuning_summary(run.tuning)))
    if run.tuning.tried and not brief:
        yield _tried(words.tried_rows(run.tuning))


def _tried(rows: Sequence[tuple[str, str, str, str, str]]) -> Fitted:
    """Figures to the right, words to the left."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bright_black", pad_edge=False)
    for heading, cells in zip(words.TRIED_HEADINGS, zip(*rows, strict=True), strict=True):
        if heading in ("tried", ""):
            table.add_column(heading)
        else:
            need = max(map(cell_len, (heading, *cells)))
            table.add_column(heading, justify="right", min_width=need)
    for row in rows:
        table.add_row(*(Text(plain(cell)) for cell in row))
    lines = [
        Text(plain(f"{what}: {step} a step, {before} before, at step {at}: {came}"))
        for what, step, before, at, came in rows
    ]
    return Fitted(table, Group(*lines))


Cell = Callable[[Trial], str]

# Two settings a line.
_NAMES_WITH_SETTINGS = 36


def preset_tables(report: Report) -> RenderableType:
    """Group by group; rows that did not run are in their place, with the reason below."""
    rows = [trial for trial in report.trials if trial.row is not None]
    return Group(*_preset_groups(rows), *_preset_notes(rows))


def _preset_groups(trials: Sequence[Trial]) -> Iterator[RenderableType]:
    for group in dict.fromkeys(trial.group for trial in trials):
        if group:
            yield Text(plain(group), style="bold")
        yield _preset_table([trial for trial in trials if trial.group == group])


def _preset_notes(trials: Sequence[Trial]) -> Iterator[Text]:
    """What the marks in the tables mean: each reason once, with the rows it is about."""
    if any(trial.same_as is not None for trial in trials):
        yield Text("=: as another row on this machine, run once.", style="bright_black")
    about: dict[str, list[str]] = {}
    for trial in trials:
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


def _preset_table(rows: Sequence[Trial]) -> FittedTable:
    """With a column for each setting; where those need too much width, in the rows' names."""
    styles = tuple("" if trial.status == "ok" else "bright_black" for trial in rows)
    figures, settings = _columns(_figures(rows), rows), _settings(rows)
    named = _columns([(heading_of(name), _setting(name), 0) for name in settings], rows)
    table = FittedTable(
        title="row",
        names=_names(rows, settings),
        name_width=_NAMES_WITH_SETTINGS,
        columns=figures,
        styles=styles,
    )
    return FittedTable(
        title="row",
        names=_names(rows, ()),
        columns=(*(replace(column, is_setting=True) for column in named), *figures),
        styles=styles,
        narrow=table if settings else None,
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
    on_gpu = any(trial.gpu_peak_allocated_bytes is not None for trial in rows)
    return [
        ("GPU memory", _figure("gpu_peak_allocated_bytes", fmt.n_bytes), 0),
        ("host memory", _figure("host_bytes", fmt.n_bytes), 4 if on_gpu else 1),
        ("ms a step", _step, 0),
        ("samples/s", _figure("samples_per_s", fmt.number), 0),
        ("× baseline", _figure("time_ratio", lambda v: fmt.ratio(1.0 / v) if v else "–"), 0),
        ("epoch", _figure("epoch_s", fmt.seconds), 2),
        ("start-up", _figure("startup_s", fmt.seconds), 5),
        ("GPU busy %", _figure("gpu_busy_share", fmt.bare_share), 3),
        ("tensor cores %", _figure("tensor_core_share", fmt.bare_share), 6),
        ("reserved", _figure("gpu_peak_reserved_bytes", fmt.n_bytes), 7),
        ("step's tensors", _figure("tensor_peak_bytes", fmt.n_bytes), 8),
    ]


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


def _figure(name: str, show: Callable[[Any], str]) -> Cell:
    def cell(trial: Trial) -> str:
        value = getattr(trial, name)
        return "–" if value is None else show(value)

    return cell


def _step(trial: Trial) -> str:
    if trial.status != "ok" or trial.step_ms is None:
        return trial.status if trial.status != "ok" else "–"
    text = step_cell(trial)
    return f"{text} =" if trial.same_as is not None else text
