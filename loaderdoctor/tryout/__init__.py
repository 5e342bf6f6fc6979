"""A trial while it is being measured: its measurements, and what became of it.

With another batch size a step is another amount of work, so trials are ranked by their time per
batch of the loop's own size; figures shown stay per step of the trial.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, Protocol

from loaderdoctor.attribution.step import WindowTimes, window_times
from loaderdoctor.instrument.command.launch_config import Target as Script
from loaderdoctor.instrument.command.launched_run import ScriptRunLike
from loaderdoctor.instrument.wire.protocol import ProfilerSchedule, WindowDone
from loaderdoctor.settings import Settings
from loaderdoctor.units import NS_PER_MS, NS_PER_S

# A value as published: those of `settings.Value`, and shares of a dataset.
Published = bool | int | float | str | None
Needs = Literal["accelerator", "two-accelerators"]
Phase = Literal["calibrate", "rank", "confirm"]
Place = Literal["loop", "process"]
PEAKS = (
    "gpu_peak_allocated_bytes",
    "gpu_peak_reserved_bytes",
    "host_bytes",
    "tensor_peak_bytes",
)
MIN_RANKED = 3  # with fewer ranked rounds the calibration counts too


@dataclass(frozen=True, kw_only=True)  # without slots: what a window gave is worked out once
class Measurement:
    """One timed window of a trial. `round` counts within its phase; trials pair by it."""

    phase: Phase
    round: int
    window: WindowDone
    wall_s: float  # the whole measurement by the command's clock: opening, warm-up, window, closing
    group: int | None = None  # on a cluster: the group of trials that one node measured together

    @functools.cached_property
    def times(self) -> WindowTimes:
        """The window's mean step, milliseconds."""
        return window_times(self.window)

    @property
    def window_s(self) -> float:
        """Time within the measured steps."""
        return sum(self.window.host_step_ns) / NS_PER_S

    @property
    def boundary_ms(self) -> float | None:
        """One epoch boundary: as the trial timed it, else as its window met it."""
        if self.window.boundary_ns is not None:
            return self.window.boundary_ns / NS_PER_MS
        times = self.times
        return times.crossed_ms if times.crossed_ms is not None else times.boundary_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of a published table.

    `args` are words for the script of the preset's recipe where the recipe, not the loader, has
    the option; such a row runs in its own process, unless `in_loop` says that its settings
    mean the same: then only with --isolate. None: the settings alone, in the loop.
    """

    name: str  # as the table names it; unique within its group
    settings: Mapping[str, Published] = field(default_factory=dict)  # by axis name
    group: str = ""  # rows of one group share a baseline
    args: tuple[str, ...] | None = None
    in_loop: bool = False  # `settings` in the running loop do what `args` do
    recipe: str | None = None  # whose `args` they are, where it isn't the preset's recipe
    needs: Needs | None = None
    searched_from: str | None = None  # plus what our own search recommends for the loop of that row
    found_before: tuple[str, ...] = ()  # the `searched_from` of rows before it, which it keeps
    host_memory: bool = True  # False: of the control group that isn't sampled
    tensor_memory: bool = False  # what a step's tensors take is asked of it, also on a CPU
    skip: str | None = None  # why it can't run at all
    note: str | None = None  # what to know, for instance that it changes numerics
    base: str | None = None  # baseline within its group, where it isn't the preset's


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What a trial took besides time, over all its windows; None where it was not recorded."""

    startup_s: float | None = None  # opening to first batch, on average
    gpu_peak_allocated_bytes: int | None = None
    gpu_peak_reserved_bytes: int | None = None
    host_bytes: int | None = None
    tensor_peak_bytes: int | None = None
    workers_bytes: int | None = None  # pages that only its workers have, of all of them

    @staticmethod
    def of(windows: Sequence[WindowDone]) -> Resources:
        """Mean start-up, and the largest of each peak."""
        startups = [w.startup_ns for w in windows if w.startup_ns is not None]
        return Resources(
            startup_s=fmean(startups) / NS_PER_S if startups else None,
            workers_bytes=_largest(
                [w.pool_memory.unique_bytes if w.pool_memory else None for w in windows]
            ),
            **{name: _largest([getattr(w, name) for w in windows]) for name in PEAKS},
        )

    def as_dict(self) -> dict[str, Any]:
        """By the names of report.json."""
        return asdict(self)


@dataclass(slots=True, kw_only=True)
class Trial:
    """One combination of settings in a sweep; grows as it is measured."""

    index: int  # 0 is the loop as it is
    settings: Settings
    status: Literal["ok", "failed", "skipped"] = "ok"
    reason: str | None = None
    measurements: list[Measurement] = field(default_factory=list)
    profiles: list[WindowDone] = field(default_factory=list)  # windows with a trace, never timed
    dropped: bool = False  # no longer measured: far behind, and the budget is short
    # "process": each measurement in its own process, running `script` where it is given.
    place: Place = "loop"
    script: Script | None = None  # in its own process: what to run; None: as the loop's
    steps_per_epoch: int | None = None  # where it isn't that of the loop as it is
    samples_per_step: float | None = None  # likewise
    row: Row | None = None  # of a preset
    other_loop: bool = False  # its script trains something else: nothing to choose here
    same_as: int | None = None  # identical here: not measured, its figures are that trial's
    in_code: bool = False  # written into the dataset's code: never added to other settings
    apart: bool = False  # measured on a machine unlike that of the others: not compared

    @property
    def switched(self) -> Settings:
        """What the measuring process is to switch: its settings less what its script does."""
        if self.script is None:
            return self.settings
        return replace(self.settings, ddp=None, dali=None)

    @property
    def alive(self) -> bool:
        """Whether it is still worth a measurement."""
        return self.status == "ok" and not self.dropped and self.same_as is None

    def of(self, phase: Phase) -> list[Measurement]:
        """Its measurements of one phase, in order."""
        return [measurement for measurement in self.measurements if measurement.phase == phase]

    @property
    def n_timed_steps(self) -> int:
        """Steps of all its timed windows."""
        return sum(measurement.times.n_steps for measurement in self.measurements)

    @property
    def resources(self) -> Resources:
        """What it took besides time."""
        return Resources.of([measurement.window for measurement in self.measurements])

    @property
    def ranked(self) -> list[Measurement]:
        """Those that rank it: of the ranked rounds, with the calibration where they are too few.

        Calibration windows are short, and the first of them meet cold caches.
        """
        rounds = self.of("rank")
        return rounds if len(rounds) >= MIN_RANKED else [*self.of("calibrate"), *rounds]

    def fit(self, own: Settings, steps_per_epoch: int | None) -> None:
        """Note where its settings change how long an epoch or a batch is."""
        self.steps_per_epoch = epoch_steps(self.settings, own, steps_per_epoch)
        if self.settings.batch_size is not None:
            self.samples_per_step = float(self.settings.batch_size)

    def fail(self, status: Literal["failed", "skipped"], reason: str) -> None:
        """No further measurements. What it measured before stays, but is not ranked."""
        self.status = status
        self.reason = reason


def batch_scale(settings: Settings, own: Settings) -> float:
    """Batches of the trial in the time of one of the loop's own: own size / the trial's size.

    1.0 where the size is not changed or not known.
    """
    if not settings.batch_size or not own.batch_size:
        return 1.0
    return own.batch_size / settings.batch_size


def epoch_steps(settings: Settings, own: Settings, steps_per_epoch: int | None) -> int | None:
    """Steps of an epoch under these settings; None where the loop's own number is not known."""
    if steps_per_epoch is None:
        return None
    steps = steps_per_epoch * batch_scale(settings, own) * (settings.portion or 1.0)
    return max(1, math.ceil(steps - 1e-9))


def _largest(values: Sequence[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


# What goes into a sweep, what it tells while it runs, and what comes out.

Search = Literal["grid", "auto"]
ALLOWANCE_SHARE = 0.10
# Of a cluster's sweep: "rank" on each node, then "confirm" trial 1 against trial 0 on one of them.
Part = Literal["whole", "rank", "confirm"]
PhaseName = Literal["plain", "calibrate", "rank", "race", "ablate", "confirm", "trace", "nodes"]


class Ablate(Protocol):
    """What measures the loop as it is against ready batches, for at most `left_s` seconds."""

    def __call__(self, script_run: ScriptRunLike, left_s: float, *, fewest: bool) -> None:
        """`fewest`: no more rounds than an interval needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How settings are to be tried."""

    budget_s: float
    seed: int = 0
    n_rounds: int | None = None  # None: as the budget allows
    trial_limit_s: float | None = None  # of each measurement; None: as its trial was planned
    trace_dir: Path | None = None  # None: no traces
    profiler: ProfilerSchedule = field(default_factory=ProfilerSchedule)
    search: Search = "grid"
    # Of a search: its steps, of those that the whole grid would take; None: as time allows.
    allowance_share: float | None = ALLOWANCE_SHARE
    keep_all: bool = False  # drop no trial while its windows can be shorter instead
    part: Part = "whole"
    as_it_runs: bool = False  # the loop's own settings are measured as it runs, not opened again
    cache_limit_s: float | None = None  # for filling a cache; None: until all samples are made
    loader_only: bool = False  # rows of the preset measure the loader, without the loop's work

    @property
    def beside_fastest(self) -> bool:
        """Whether what may be recommended runs beside the fastest.

        Not where steps are counted, nor of a part: a search, a cluster's node.
        """
        return self.search == "grid" and self.part == "whole"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One step of the sweep, for the live display."""

    phase: PhaseName
    round: int  # from 1, within the phase
    n_rounds: int
    trial: int | None  # just measured
    done_share: float  # of the whole sweep, by time
    left_s: float
    trials: Sequence[Trial]


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What a sweep measured."""

    trials: list[Trial]
    plain: list[WindowDone] = field(default_factory=list)  # loop untouched: before and after
    plain_group: int | None = None  # on a cluster: the group whose loop that was
    ended: Literal["done", "interrupted", "script-over"] = "done"
    ended_reason: str | None = None
    interrupt: KeyboardInterrupt | None = None  # what ended it, where the user did
    notes: list[tuple[str, str]] = field(default_factory=list)  # (kind, text) of warnings
    n_ranked_rounds: int = 0
    elimination: str | None = None  # how a search ended: separated, nothing-better or spent
    grid_steps: int | None = None  # steps that the whole grid would have taken

    @property
    def n_timed_steps(self) -> int:
        """Steps of all timed windows."""
        return sum(trial.n_timed_steps for trial in self.trials)
