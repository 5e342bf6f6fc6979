"""What a chart can be of. Needs no plotting library: the tables show the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, ValuesView
from dataclasses import dataclass
from typing import Any, Literal

from loaderdoctor.facts.pictures import SampleTimes, StepTimeline, WaitSeries
from loaderdoctor.report.html.extras import Prediction
from loaderdoctor.report.model import GpuBusy, Trial
from loaderdoctor.settings import DEFAULT_PREFETCH_FACTOR

# What stands for a prefetch factor where there are no workers to prefetch.
NO_PREFETCH = "no prefetch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A trial as a row of a chart: what it is called, its colour, and its mark (best, yours)."""

    label: str
    fill: str
    mark: str
    trial: Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialBars:
    """One figure of every trial, in this order."""

    figure: Literal["times", "shares", "gpu-memory", "host-memory"]
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """Every prediction that a trial tested."""

    pairs: tuple[Prediction, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Step time (ms) by (row, column); of trials that share a cell, the fastest."""

    workers: tuple[int, ...]
    prefetch: tuple[str, ...]
    step_ms: Mapping[tuple[int, int], float]

    def values(self) -> ValuesView[float]:
        return self.step_ms.values()


Subject = StepTimeline | WaitSeries | SampleTimes | TrialBars | Predictions | Grid | GpuBusy


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
