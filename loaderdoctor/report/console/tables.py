"""Tables of the console report: trials, ranks, claims. Narrow terminals get the same figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from loaderdoctor import format as fmt
from loaderdoctor.format import plain
from loaderdoctor.report.model import Cluster, Rank, Report, Shares, Trial
from loaderdoctor.report.ranks import KEY, MAX_SHOWN, outliers_first, rank_columns
from loaderdoctor.report.words.machines import group_rows, hardware_lines

# The settings wrap down to this.
_LABEL_WIDTH = 18
_NARROW_KEY = (
    "smp/s: samples a second. in/cp/ho/co: input, copy, host and compute in % of the step."
)
_NARROW_MEMORY_KEY = " GPU/RAM: GiB, peak allocated on the GPU and host memory."
_SHARES = ("input", "copy", "host", "compute")
UNCLEAR = "unclear"


def trials_table(report: Report) -> RenderableType:
    """Every trial: those that ran, fastest first, then failed and skipped ones with the reason."""
    return _Trials(report)


@dataclass(frozen=True, slots=True)
class _Trials:
    report: Report

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        trials = list(enumerate(self.report.trials))
        parts = self.report.by_hardware
        for kind, base, members in parts:
            ran = [
                (i, self.report.trials[i]) for i in members if self.report.trials[i].status == "ok"
            ]
            ran.sort(key=lambda item: by_speed(item[1]))
            if len(parts) > 1:
                own = f", own settings {fmt.ms(base)}" if base is not None else ""
                yield Text(f"Hardware {kind}{own}", style="bold")
            if ran:
                yield Group(*self._ran(ran, base, console, options))
                key = table_key(trial for _, trial in ran)
                if key is not None:
                    yield Text(key, style="bright_black")
        for i, trial in trials:
            if trial.status != "ok":
                reason = plain(trial.reason or "no reason recorded")
                yield Text(f"{i} {plain(trial.label)}: {trial.status}, {reason}")

    def _ran(
        self,
        ran: Sequence[tuple[int, Trial]],
        base: float | None,
        console: Console,
        options: ConsoleOptions,
    ) -> Iterator[RenderableType]:
        """The widest form that fits: a column for each figure, shared columns, or a list.

        `base` is the step time of the loop's own settings: what every trial is compared with.
        """
        for wide in (True, False):
            table = self._table(ran, base, wide=wide)
            if Measurement.get(console, options.update(max_width=1000), table).minimum <= (
                options.max_width
            ):
                yield table
                if not wide:
                    memory = _NARROW_MEMORY_KEY if _on_gpu(t for _, t in ran) else ""
                    yield Text(_NARROW_KEY + memory, style="bright_black")
                return
        columns = trial_columns([trial for _, trial in ran], wide=True)
        for i, trial in ran:
            mark, style = trial_mark(self.report, i)
            yield Text(f"{i} {_label(trial, mark)}", style=style)
            figures = (f"{heading} {read(trial, base)}" for heading, read in columns)
            yield Padding(Text(", ".join(figures)), (0, 0, 0, 2))

    def _table(self, ran: Sequence[tuple[int, Trial]], base: float | None, *, wide: bool) -> Table:
        columns = trial_columns([trial for _, trial in ran], wide=wide)
        table = Table(
            box=None,
            padding=(0, 2, 0, 0) if wide else (0, 1, 0, 0),
            header_style="bright_black",
            pad_edge=False,
        )
        table.add_column("#", justify="right", no_wrap=True)
        table.add_column("settings", min_width=_LABEL_WIDTH)
        cells = [[read(trial, base) for _, read in columns] for _, trial in ran]
        for (heading, _), column in zip(columns, zip(*cells, strict=True), strict=True):
            # A minimum, so that the table can be measured: figures are never cut.
            need = max(map(len, (heading, *column)))
            table.add_column(heading, justify="right", no_wrap=True, min_width=need)
        for (i, trial), row in zip(ran, cells, strict=True):
            mark, style = trial_mark(self.report, i)
            table.add_row(str(i), Text(_label(trial, mark), style=style), *row)
        return table


def by_speed(trial: Trial) -> tuple[bool, float]:
    """Key that sorts trials fastest first, those that are not known to be fast last."""
    return not is_clear(trial), trial.compared_ms or float("inf")


def trial_mark(report: Report, index: int) -> tuple[str, str]:
    """The word for a trial's row (best, tied, yours), and the style that repeats it."""
    best = report.best
    words = []
    if best is not None and index == best.trial:
        words.append("best")
    elif best is not None and index in best.tied_with:
        words.append("tied")
    if index == 0 and report.command == "sweep":
        words.append("yours")
    style = "bold green" if "best" in words else "green" if "tied" in words else ""
    return ", ".join(words), style


# A trial and the step time of the loop's own settings (ms) -> a cell.
ReadCell = Callable[[Trial, float | None], str]


def trial_columns(trials: Sequence[Trial], *, wide: bool) -> list[tuple[str, ReadCell]]:
    """Headings and how a cell is read; a column that no trial has a figure for is left out."""
    columns: list[tuple[str, ReadCell]] = [("ms a step", lambda t, _: step_cell(t))]
    columns.append(("speed", _speed))
    if any(t.samples_per_s is not None for t in trials):
        columns.append(
            (
                "samples/s" if wide else "smp/s",
                lambda t, _: _number(t.samples_per_s if is_clear(t) else None),
            )
        )
    if any(t.epoch_s is not None for t in trials) and wide:
        columns.append(("epoch", lambda t, _: fmt.seconds(t.epoch_s) if t.epoch_s else "–"))
        columns.append(("start-up", lambda t, _: fmt.seconds(t.startup_s) if t.startup_s else "–"))
    elif any(t.epoch_s is not None for t in trials):
        columns.append(("epoch s", lambda t, _: _number(t.epoch_s)))
    columns += _share_columns(trials, wide=wide)
    columns += _memory_columns(trials, wide=wide)
    return columns


def _share_columns(trials: Sequence[Trial], *, wide: bool) -> list[tuple[str, ReadCell]]:
    if all(t.shares is None for t in trials):
        return []
    if wide:
        return [(f"{name} %", _share_reader(name)) for name in _SHARES]
    return [
        (
            "in/cp/ho/co",
            lambda t, _: "/".join(fmt.bare_share(_share(t.shares, name)) for name in _SHARES),
        )
    ]


def _share_reader(name: str) -> ReadCell:
    return lambda trial, _: fmt.bare_share(_share(trial.shares, name))


def _memory_columns(trials: Sequence[Trial], *, wide: bool) -> list[tuple[str, ReadCell]]:
    gpu = _on_gpu(trials)
    host = any(t.host_bytes is not None for t in trials)
    if wide:
        columns: list[tuple[str, ReadCell]] = []
        if gpu:
            columns.append(("GPU memory", lambda t, _: _bytes(t.gpu_peak_allocated_bytes)))
            columns.append(("reserved", lambda t, _: _bytes(t.gpu_peak_reserved_bytes)))
        if host:
            columns.append(("host memory", lambda t, _: _bytes(t.host_bytes)))
        return columns
    if gpu:
        return [
            (
                "GPU/RAM",
                lambda t, _: f"{_gib(t.gpu_peak_allocated_bytes)}/{_gib(t.host_bytes)}",
            )
        ]
    return [("host GiB", lambda t, _: _gib(t.host_bytes))] if host else []


def _on_gpu(trials: Iterable[Trial]) -> bool:
    return any(t.gpu_peak_allocated_bytes is not None for t in trials)


def ranks_table(ranks: Sequence[Rank]) -> RenderableType:
    """Each rank's step in milliseconds, part by part, those that stand out first."""
    return _Ranks(ranks)


@dataclass(frozen=True, slots=True)
class _Ranks:
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
        if Measurement.get(console, options.update(max_width=1000), table).minimum <= (
            options.max_width
        ):
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


def claims_table(claims: Sequence[Mapping[str, Any]]) -> Table:
    """Published claims beside our own figures, and whether they agree."""
    table = Table(box=None, padding=(0, 1), header_style="bright_black", pad_edge=False)
    for _, heading in _CLAIM_KEYS:
        table.add_column(heading, overflow="fold")
    for claim in claims:
        cells = [_claim_cell(claim.get(key)) for key, _ in _CLAIM_KEYS]
        cells[-1].stylize(_CLAIM_STYLES.get(cells[-1].plain, ""))
        if claim.get("reason"):
            cells[-1].append(f" ({plain(str(claim['reason']))})", style="bright_black")
        table.add_row(*cells)
    return table


_CLAIM_STYLES = {"agrees": "green", "disagrees": "yellow"}


def _claim_cell(value: Any) -> Text:
    if value is None:
        return Text("–")
    return Text(fmt.number(value) if isinstance(value, float) else plain(str(value)))


def _label(trial: Trial, mark: str) -> str:
    return plain(trial.label) + (f" ({mark})" if mark else "")


def step_cell(trial: Trial) -> str:
    """`25 ± 8` in milliseconds, `217 once` of one window, or that it is not known well."""
    if not is_clear(trial):
        return UNCLEAR
    once = " once" if trial.n_windows == 1 and trial.step_ms_ci is None else ""
    return fmt.ms(trial.step_ms, trial.step_ms_ci).removesuffix(" ms") + once


def is_clear(trial: Trial) -> bool:
    """Whether its windows agree well enough to be a figure at all."""
    return fmt.is_measured_well(trial.step_ms, trial.step_ms_ci)


def table_key(trials: Iterable[Trial]) -> str | None:
    """What `unclear`, `once` and `speed` mean, where a row has them."""
    seen = [t for t in trials if t.status == "ok"]
    words = []
    unclear = [t for t in seen if not is_clear(t)]
    if unclear:
        windows = [ms for t in unclear for ms in t.window_ms]
        spread = f" ({fmt.number(min(windows))} to {fmt.ms(max(windows))})" if windows else ""
        words.append(f"{UNCLEAR}: its windows are too few, or too unlike, for a figure")
        words[-1] += spread
    if any(step_cell(t).endswith(" once") for t in seen):
        words.append("once: one window, so no ±")
    if any(_paired(t) for t in seen):
        words.append("speed: beside the loop as it is in the same rounds")
    return "; ".join(words) + "." if words else None


def _speed(trial: Trial, base: float | None) -> str:
    if base is None or not trial.compared_ms or not is_clear(trial):
        return ""
    if _paired(trial) and trial.gain_ms is not None:
        base = trial.compared_ms + trial.gain_ms
    return fmt.ratio(base / trial.compared_ms)


def _paired(trial: Trial) -> bool:
    """Whether its gain is known round by round, as of `diagnose`: what the advice says too.

    A machine that slows down meanwhile slows the trial and the loop beside it, not the loop's mean
    over the whole run. A sweep's trials are all visited throughout.
    """
    return trial.gain_ms is not None and trial.gain_confirmed is None


def _share(shares: Shares | None, name: str) -> float | None:
    return getattr(shares, name) if shares is not None else None


def _number(value: float | None) -> str:
    return "–" if value is None else fmt.number(value)


def _bytes(value: int | None) -> str:
    return "–" if value is None else fmt.n_bytes(value)


def _gib(value: int | None) -> str:
    return "–" if value is None else fmt.number(value / 2**30, digits=2)
