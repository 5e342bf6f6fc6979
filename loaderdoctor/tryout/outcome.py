"""What goes into a sweep, what it tells while it runs, and what comes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from loaderdoctor.instrument.command.launched_run import ScriptRunLike
from loaderdoctor.instrument.wire.protocol import ProfilerSchedule, WindowDone
from loaderdoctor.tryout.trials import Trial

Search = Literal["grid", "auto"]
ALLOWANCE_SHARE = 0.20
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
    trial_limit_s: float | None = None  # no visit may take longer; None: as its trial was planned
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
        """Steps of all timed visits."""
        return sum(trial.n_timed_steps for trial in self.trials)
