"""What a preset is: a published experiment as rows of settings and claims to check.

Rows are data: what was published, whether or not it can run here. `published` turns them into
trials. Claims are decided against our figures: agrees, disagrees, not separable from noise, not
testable. A direction agrees where the whole interval lies on its side, and disagrees where it lies
on the other. A published size is asked for too: at least half of it, or the interval reaching it;
figures of other machines differ by more than our noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from loaderdoctor.instrument.wire.protocol import Observed
from loaderdoctor.sweep.presets.figures import Change, Figures, mean_of
from loaderdoctor.tryout import Row

Verdict = Literal["agrees", "disagrees", "not separable from noise", "not testable here"]
# A change below this is none, as in the ranking of trials.
EQUAL = 0.01
# "No difference" holds where the whole interval is within this: what people mean by it.
SAME = 0.05
# An effect of at least this part of the published one agrees with it.
PART = 0.5

# Why a claim is not judged: the rows have no interval.
ONE_WINDOW = "one window only"


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


def not_testable(reason: str) -> Judged:
    return Judged(verdict="not testable here", reason=reason)


def faster(change: Change, *, published: float | None = None) -> Judged:
    """The change is a decrease; with `published`, of about its size (both relative, negative)."""
    estimate = change.estimate
    if estimate is None:
        return not_testable(change.reason or "not measured")
    ours = words(change)
    if not estimate.bounded:
        return Judged(verdict="not separable from noise", ours=ours, reason=ONE_WINDOW)
    if estimate.low > -EQUAL:
        return Judged(verdict="disagrees", ours=ours)
    if estimate.high >= 0 or estimate.value > -EQUAL:
        return Judged(verdict="not separable from noise", ours=ours)
    if published is not None and estimate.low > published and estimate.value > PART * published:
        return Judged(verdict="disagrees", ours=ours, reason="the same direction, but far less")
    return Judged(verdict="agrees", ours=ours)


def slower(change: Change, *, published: float | None = None) -> Judged:
    """The change is an increase; with `published`, of about its size (both relative, positive)."""
    if (estimate := change.estimate) is None:
        return not_testable(change.reason or "not measured")
    wanted = -published if published is not None else None
    judged = faster(Change(estimate=estimate.taken_from(0.0)), published=wanted)
    return Judged(verdict=judged.verdict, ours=words(change), reason=judged.reason)


def not_faster(change: Change) -> Judged:
    """There is no decrease that matters; an increase agrees too."""
    estimate = change.estimate
    if estimate is None:
        return not_testable(change.reason or "not measured")
    ours = words(change)
    if estimate.low >= -SAME:
        return Judged(verdict="agrees", ours=ours)
    if estimate.high < -EQUAL:
        return Judged(verdict="disagrees", ours=ours)
    return Judged(verdict="not separable from noise", ours=ours)


def unchanged(change: Change) -> Judged:
    """There is no change that matters."""
    estimate = change.estimate
    if estimate is None:
        return not_testable(change.reason or "not measured")
    ours = words(change)
    if estimate.low >= -SAME and estimate.high <= SAME:
        return Judged(verdict="agrees", ours=ours)
    if estimate.low > EQUAL or estimate.high < -EQUAL:
        return Judged(verdict="disagrees", ours=ours)
    return Judged(verdict="not separable from noise", ours=ours)


def is_lower(
    value: float | None,
    base: float | None,
    *,
    published: float | None = None,
    exact: bool = True,
) -> Judged:
    """One amount of memory is lower than another; if not `exact`, by more than SAME."""
    if value is None or not base:
        return not_testable("not recorded")
    change = value / base - 1
    ours = f"{change:+.0%}"
    if not exact and abs(change) < SAME:
        return Judged(verdict="not separable from noise", ours=ours)
    if published is not None and change < -EQUAL and change > PART * published:
        return Judged(verdict="disagrees", ours=ours, reason="the same direction, but far less")
    return Judged(verdict="agrees" if change < -EQUAL else "disagrees", ours=ours)


def grows(figures: Figures, name: str, groups: Sequence[str]) -> Judged:
    """A row's epoch takes longer from each group to the next."""
    pairs = pairwise(groups)
    return all_hold([slower(figures.epoch_change(name, after, before)) for before, after in pairs])


def mean_change(figures: Figures, name: str, bases: Sequence[str], groups: Sequence[str]) -> Change:
    """Time of a row against others of its group: the mean over bases and groups."""
    return mean_of(figures.change(name, base, group) for base in bases for group in groups)


_WORST: tuple[Verdict, ...] = ("disagrees", "not testable here", "not separable from noise")


def all_hold(parts: Sequence[Judged]) -> Judged:
    """A claim of several parts: it agrees where all do; one that disagrees decides."""
    verdict: Verdict = next((v for v in _WORST if any(p.verdict == v for p in parts)), "agrees")
    ours = ", ".join(part.ours for part in parts if part.ours) or None
    reasons = dict.fromkeys(part.reason for part in parts if part.reason)
    return Judged(verdict=verdict, ours=ours, reason="; ".join(r for r in reasons if r) or None)


def worst(changes: Sequence[Change]) -> Judged:
    """Not testable, for the reasons of changes that could not be had."""
    return not_testable(mean_of(changes).reason or "not measured")


def words(change: Change) -> str:
    """`-14 % ± 2`, in percent."""
    estimate = change.estimate
    assert estimate is not None
    text = f"{100 * estimate.value:+.0f}"
    if estimate.bounded and estimate.margin > 0:
        margin = 100 * estimate.margin
        text += f" ± {margin:.0f}" if margin >= 0.95 else f" ± {margin:.1f}"
    return f"{text} %"
