"""What a preset is: a published experiment as rows of settings and claims to check.

Rows are data: what was published, whether or not it can run here. `resolve` turns them into
trials; `judge` decides claims.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from loaderdoctor.instrument.wire.protocol import Observed
from loaderdoctor.sweep.presets.figures import Figures
from loaderdoctor.tryout.trials import Row

Verdict = Literal["agrees", "disagrees", "not separable from noise", "not testable here"]


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
