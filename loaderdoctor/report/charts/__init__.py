"""What a chart can be of, as plain values: making them needs no plotting library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass
from typing import Any

from loaderdoctor import format as fmt
from loaderdoctor.estimate import Interval
from loaderdoctor.facts.step import SampleTimes, StepTimeline, WaitSeries
from loaderdoctor.report.model import Report, Trial
from loaderdoctor.report.run_model import GpuBusy
from loaderdoctor.report.words import SHARE_ORDER
from loaderdoctor.report.words.tables import UNCLEAR, best_word, is_clear, trial_mark
from loaderdoctor.settings import DEFAULT_PREFETCH_FACTOR

# What stands for a prefetch factor where there are no workers to prefetch.
NO_PREFETCH = "no prefetch"
GIB = 2**30
_FILLS = {"best": "good", "advised": "good", "tied": "tied", "yours": "mark"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One row of a chart. `fill` is a colour of the page; `tick` marks a second value."""

    label: str
    value: float
    text: str  # next to the bar
    fill: str = "plain"
    interval: Interval | None = None
    tick: float | None = None
    tick_text: str = ""  # left out where there is no room

    @property
    def end(self) -> float:
        """The farthest of bar, interval and tick."""
        return max(self.value, self.tick or 0.0, self.interval[1] if self.interval else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """Rows in this order."""

    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BarsAndLine:
    """Bars, and their ticks as a line on its own axis."""

    bars: tuple[Bar, ...]
    names: tuple[str, str]  # of both axes


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouped:
    """Bars of several groups side by side, a colour of the page each; rows go by their label."""

    groups: tuple[tuple[str, tuple[Bar, ...]], ...]  # (colour, bars)
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacked:
    """Shares of each row, in percent."""

    labels: tuple[str, ...]
    parts: Mapping[str, tuple[float, ...]]  # by share, in the order of drawing


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What settings were expected to give, and what they gave (ms a step)."""

    label: str
    predicted_ms: float
    measured_ms: float
    measured_ci_ms: Interval | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """Every prediction that a trial tested."""

    pairs: tuple[Prediction, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLine:
    """A whole run: (start s, end s, ((colour, share 0…1), …)) of each stretch; when was told."""

    stretches: tuple[tuple[float, float, tuple[tuple[str, float], ...]], ...]
    alerts: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Step time (ms) by (row, column); of trials that share a cell, the fastest."""

    workers: tuple[int, ...]
    prefetch: tuple[str, ...]
    step_ms: Mapping[tuple[int, int], float]

    def values(self) -> ValuesView[float]:
        return self.step_ms.values()


Subject = (
    StepTimeline
    | WaitSeries
    | SampleTimes
    | GpuBusy
    | Bars
    | BarsAndLine
    | Grouped
    | Stacked
    | Grid
    | Predictions
    | RunLine
)
Labelled = Sequence[tuple[str, int]]  # how a row is called, and which trial it shows


def step_bars(report: Report, rows: Labelled) -> tuple[Bar, ...]:
    """Step times of trials, with their intervals and marks: for as many samples each."""
    return tuple(_step_bar(report, label, index) for label, index in rows)


def _step_bar(report: Report, label: str, index: int) -> Bar:
    trial, mark = report.trials[index], trial_mark(report, index)[0]
    compared_ms, ci = trial.compared_ms or 0.0, trial.step_ms_ci
    if trial.step_ms and ci is not None:
        ci = (ci[0] * compared_ms / trial.step_ms, ci[1] * compared_ms / trial.step_ms)
    text = fmt.ms(compared_ms, ci) if is_clear(trial) else UNCLEAR
    fill = next((f for word, f in _FILLS.items() if word in mark), "mark" if not index else "plain")
    return Bar(
        label=fmt.plain(label),
        value=compared_ms,
        text=f"{text}  {mark}" if mark else text,
        fill=fill,
        interval=ci,
    )


def time_note(report: Report) -> str:
    """What the bars of `step_bars` measure."""
    unlike = any(trial.step_ms != trial.compared_ms for trial in report.trials)
    samples = ", for as many samples as the loop's own step has" if unlike else ""
    return f"Milliseconds a step{samples}, fastest first; whiskers are 95 % intervals."


def time_legend(report: Report) -> Iterator[tuple[str, str]]:
    """(colour, words) of step times."""
    if report.best is not None:
        yield "good", best_word(report)
        if report.best.tied_with:
            yield "tied", "no different from the best beyond the noise"
    yield "mark", "the loop as it is"


def share_stacks(report: Report, rows: Labelled) -> Stacked:
    """Where the steps of traced trials go; shares that none of them has are left out."""
    shares = [report.trials[index].shares for _, index in rows]
    parts = {
        name: tuple(100 * ((getattr(one, name) if one else None) or 0.0) for one in shares)
        for name in SHARE_ORDER
    }
    return Stacked(
        labels=tuple(fmt.plain(label) for label, _ in rows),
        parts={name: values for name, values in parts.items() if any(values)},
    )


def gpu_memory_bars(report: Report, rows: Labelled) -> tuple[Bar, ...]:
    """Peaks allocated (GiB), ticked with what was reserved."""
    return tuple(
        Bar(
            label=fmt.plain(label),
            value=(trial.gpu_peak_allocated_bytes or 0) / GIB,
            text=fmt.n_bytes(trial.gpu_peak_allocated_bytes or 0),
            tick=reserved / GIB if reserved else None,
            tick_text=f", {fmt.n_bytes(reserved)} reserved" if reserved else "",
        )
        for label, index in rows
        for trial in (report.trials[index],)
        for reserved in (trial.gpu_peak_reserved_bytes,)
    )


def host_memory_bars(report: Report, rows: Labelled) -> tuple[Bar, ...]:
    """Memory of the process tree (GiB)."""
    sizes = [(label, report.trials[index].host_bytes or 0) for label, index in rows]
    return tuple(
        Bar(label=fmt.plain(label), value=size / GIB, text=fmt.n_bytes(size))
        for label, size in sizes
    )


def workers_by_prefetch(trials: Sequence[Trial], own: Mapping[str, Any]) -> Grid | None:
    """The grid, where at least two worker counts and two prefetch factors were tried.

    `own` are the loop's own settings: what a trial leaves as it is.
    """
    found: dict[tuple[int, int | None], float] = {}
    for trial in trials:
        workers = _setting("num_workers", trial, own)
        if trial.step_ms is None or workers is None:
            continue
        factor = _setting("prefetch_factor", trial, own) or DEFAULT_PREFETCH_FACTOR
        key = (int(workers), int(factor) if workers else None)
        found[key] = min(trial.step_ms, found.get(key, trial.step_ms))
    rows = sorted({workers for workers, _ in found})
    factors = sorted({factor for _, factor in found if factor is not None})
    if len([w for w in rows if w]) < 2 or len(factors) < 2:
        return None
    columns: list[int | None] = [*([None] if 0 in rows else []), *factors]
    return Grid(
        workers=tuple(rows),
        prefetch=tuple(NO_PREFETCH if c is None else str(c) for c in columns),
        step_ms={(rows.index(w), columns.index(f)): ms for (w, f), ms in found.items()},
    )


def _setting(name: str, trial: Trial, own: Mapping[str, Any]) -> Any:
    value = trial.settings.get(name)
    return own.get(name) if value is None else value
