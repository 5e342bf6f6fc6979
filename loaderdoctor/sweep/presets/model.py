"""What a preset is: a published experiment as rows of settings and claims to check.

Rows are data: what was published, whether or not it can run here. `resolve` turns them into
trials; `judge` decides claims.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from loaderdoctor.instrument.wire.protocol import Observed

if TYPE_CHECKING:
    from loaderdoctor.sweep.presets.figures import Figures

# A value as published: those of `settings.Value`, and shares of a dataset.
Published = bool | int | float | str | None
Verdict = Literal["agrees", "disagrees", "not separable from noise", "not testable here"]
Needs = Literal["accelerator", "two-accelerators"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of a published table.

    `args` are words for the script of the preset's recipe where the recipe, not the loader, has
    the option; such a row runs in a process of its own, unless `in_loop` says that its settings
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
class Judged:
    """What became of a claim here. `ours` is None where nothing was measured."""

    verdict: Verdict
    ours: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A published statement, its figure, and the rule that decides it from our figures."""

    text: str
    published: str
    rule: Callable[[Figures], Judged]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """One published experiment as a command."""

    name: str
    summary: str
    recipe: str  # run where the user names no loop
    baseline: str  # the row that `time_ratio` compares with, in each group
    rows: Callable[[Observed], tuple[Row, ...]]
    claims: tuple[Claim, ...] = ()
    budget_s: float  # of measuring, on two cores; the command as a whole within 10 minutes
    n_rounds: int = 3
    one_loop: bool = True  # rows are the loop with other settings: one may be recommended
    shortened: str | None = None  # what is smaller than in the published experiment


def rows_of(*rows: Row) -> Callable[[Observed], tuple[Row, ...]]:
    """A preset's rows that are the same for every loop."""
    return lambda observed: rows
