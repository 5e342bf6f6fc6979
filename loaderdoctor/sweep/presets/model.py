"""What a preset is: a published experiment as rows of settings and claims to check.

Rows are data: what was published, whether or not it can run here. `published` turns them into
trials. Claims are decided against our figures: agrees, disagrees, not separable from noise, not
testable. A direction agrees where the whole interval lies on its side, and disagrees where it lies
on the other. A published size is asked for too: at least half of it, or the interval reaching it;
figures of other machines differ by more than our noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from loaderdoctor.estimate import ByRound, Estimate
from loaderdoctor.facts.loop import AblationFacts
from loaderdoctor.instrument.wire.protocol import Observed
from loaderdoctor.tryout import Row, Trial
from loaderdoctor.tryout.ranking import Ranking
from loaderdoctor.tryout.results import Result

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


def is_lower(value: float | None, base: float | None, *, published: float | None = None) -> Judged:
    """One amount of memory is lower than another."""
    if value is None or not base:
        return not_testable("not recorded")
    change = value / base - 1
    ours = f"{change:+.0%}"
    if published is not None and change < -EQUAL and change > PART * published:
        return Judged(verdict="disagrees", ours=ours, reason="the same direction, but far less")
    return Judged(verdict="agrees" if change < -EQUAL else "disagrees", ours=ours)


def grows(figures: Figures, name: str, groups: Sequence[str]) -> Judged:
    """A row's epoch takes longer from each group to the next."""
    pairs = pairwise(groups)
    return all_hold([slower(figures.epoch_change(name, after, before)) for before, after in pairs])


def mean_change(figures: Figures, name: str, base: str, groups: Sequence[str]) -> Change:
    """Time of a row against another of its group: the mean over groups."""
    return mean_of(figures.change(name, base, group) for group in groups)


_WORST: tuple[Verdict, ...] = ("disagrees", "not testable here", "not separable from noise")


def all_hold(parts: Sequence[Judged]) -> Judged:
    """A claim of several parts: it agrees where all do; one that disagrees decides."""
    verdict: Verdict = next((v for v in _WORST if any(p.verdict == v for p in parts)), "agrees")
    ours = ", ".join(part.ours for part in parts if part.ours) or None
    reasons = dict.fromkeys(part.reason for part in parts if part.reason)
    return Judged(verdict=verdict, ours=ours, reason="; ".join(r for r in reasons if r) or None)


def words(change: Change) -> str:
    """`-14 % ± 2`, in percent."""
    estimate = change.estimate
    assert estimate is not None
    text = f"{100 * estimate.value:+.0f}"
    if estimate.bounded and estimate.margin > 0:
        margin = 100 * estimate.margin
        text += f" ± {margin:.0f}" if margin >= 0.95 else f" ± {margin:.1f}"
    return f"{text} %"


NOT_A_ROW = "no such row in this run"
UNLIKE = "measured on machines of different kinds"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One quantity against another, relative; without an estimate it says why."""

    estimate: Estimate | None = None
    reason: str | None = None

    @property
    def value(self) -> float:
        """The relative change. Raises ValueError where there is none."""
        if self.estimate is None:
            raise ValueError(self.reason)
        return self.estimate.value


def mean_of(changes: Iterable[Change]) -> Change:
    """The mean of independent changes; those not to be had are left out while one remains."""
    listed = list(changes)
    known = [change.estimate for change in listed if change.estimate is not None]
    if not known:
        reasons = dict.fromkeys(change.reason for change in listed if change.reason)
        return Change(reason="; ".join(r for r in reasons if r) or NOT_A_ROW)
    value = math.fsum(e.value for e in known) / len(known)
    margin = math.sqrt(math.fsum(e.margin**2 for e in known)) / len(known)
    n = min(e.n for e in known)
    return Change(estimate=Estimate.around(value, margin, n=n))


def change_of_peaks(peaks: Sequence[int], base: Sequence[int]) -> Change:
    """Largest peak against largest, with all that peaks of single measurements leave possible.

    They don't repeat exactly: on an H200, measurements of one setting of `mnist` peaked at 82, 86,
    95 or 98 MiB, as if by the algorithm that a convolution happened to be given.
    """
    if not peaks or not base or not min(base):
        return Change(reason="GPU memory needs an accelerator")
    low, high = min(peaks) / max(base) - 1, max(peaks) / min(base) - 1
    value, n = max(peaks) / max(base) - 1, min(len(peaks), len(base))
    return Change(estimate=Estimate(value=value, low=low, high=high, n=n))


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The rows of one run of a preset by (group, name)."""

    trials: Sequence[Trial]
    ranking: Ranking
    ablation: AblationFacts | None = None
    busy: Mapping[int, float] | None = None  # trial index -> accelerator's busy share
    # On a cluster: trial index -> kind of hardware. Times of unlike machines are not compared.
    kinds: Mapping[int, str] = field(default_factory=dict)

    def index(self, name: str, group: str | None = None) -> int | None:
        """A row's trial; `group` None: the only group that has it."""
        for trial in self.trials:
            row = trial.row
            if row is not None and row.name == name and group in (None, row.group):
                return trial.index
        return None

    def reason(self, name: str, group: str | None = None) -> str | None:
        """Why a row has no figures; None where it has."""
        index = self.index(name, group)
        if index is None:
            return NOT_A_ROW
        result = self.ranking.results[index]
        if result.status != "ok" or result.wall_ms is None:
            return f"'{name}': {result.reason or 'not measured'}"
        return None

    def measured(self, name: str, group: str | None = None) -> bool:
        return self.reason(name, group) is None

    # ------------------------------------------------------------ time

    def change(self, name: str, base: str, group: str | None = None) -> Change:
        """Time of the same work under one row against another of its group."""
        for one in (name, base):
            if (why := self.reason(one, group)) is not None:
                return Change(reason=why)
        a, b = self._result(name, group), self._result(base, group)
        if self._source(a.index) == self._source(b.index):
            return Change(reason=f"'{name}' and '{base}' are the same on this machine")
        if self._unlike(a.index, b.index):
            return Change(reason=UNLIKE)
        return self._relative(a.by_round, b.by_round)

    def epoch_change(self, name: str, group: str, base_group: str) -> Change:
        """Time of an epoch of one row in one group against another group."""
        for one in (group, base_group):
            if (why := self.reason(name, one)) is not None:
                return Change(reason=why)
        a, b = self._result(name, group), self._result(name, base_group)
        if self._unlike(a.index, b.index):
            return Change(reason=UNLIKE)
        if not a.epoch_s or not b.epoch_s or a.wall_ms is None or b.wall_ms is None:
            return Change(reason="the length of an epoch is not known")
        scale_a = a.epoch_s / a.wall_ms.value
        scale_b = b.epoch_s / b.wall_ms.value
        return self._relative(
            [(n, x.scaled(scale_a)) for n, x in a.by_round],
            [(n, x.scaled(scale_b)) for n, x in b.by_round],
        )

    def _relative(self, a: ByRound, b: ByRound) -> Change:
        noise = self.ranking.noise
        diff = noise.difference(a, b) if noise is not None else None
        mean = math.fsum(x.value for _, x in b) / len(b) if b else 0.0
        if diff is None or mean <= 0:
            return Change(reason="not measured")
        return Change(estimate=diff.scaled(1 / mean))

    # ------------------------------------------------------------ memory and other figures

    @property
    def memory_is_exact(self) -> bool:
        """Whether there are peaks of an accelerator's allocator."""
        return any(r.resources.gpu_peak_allocated_bytes for r in self.ranking.results)

    def memory(self, name: str, group: str | None = None) -> float | None:
        """Peak GPU memory in use, without an accelerator what one step's tensors take; bytes."""
        index = self.index(name, group)
        if index is None:
            return None
        took = self.ranking.results[index].resources
        return took.gpu_peak_allocated_bytes if self.memory_is_exact else took.tensor_peak_bytes

    def gpu_peaks(self, name: str, group: str) -> list[int]:
        """Peak GPU memory in use of each measurement of a row; bytes."""
        index = self.index(name, group)
        measurements = self.trials[self._source(index)].measurements if index is not None else []
        peaks = (measurement.window.gpu_peak_allocated_bytes for measurement in measurements)
        return [peak for peak in peaks if peak is not None]

    def memory_change(self, name: str, group: str, last: str) -> Change:
        """GPU memory of a row in `last` against `group`."""
        return change_of_peaks(self.gpu_peaks(name, last), self.gpu_peaks(name, group))

    def memory_between(self, name: str, base: str, groups: Sequence[str]) -> Change:
        """GPU memory of a row against another, mean over groups."""
        return mean_of(
            change_of_peaks(self.gpu_peaks(name, g), self.gpu_peaks(base, g)) for g in groups
        )

    def gpu_busy(self, name: str) -> float | None:
        """Share of the step in which the accelerator computes; None without a trace of it."""
        index = self.index(name)
        return self.busy.get(index) if self.busy is not None and index is not None else None

    def busy_change(self, name: str, base: str) -> Change:
        """The accelerator's busy share of one row against another's; each has one traced window."""
        share, before, noise = self.gpu_busy(name), self.gpu_busy(base), self.ranking.noise
        if share is None or not before or noise is None:
            return Change(reason="not recorded")
        return Change(estimate=noise.change(share, before))

    def load_and_rest_ms(self) -> tuple[Estimate, Estimate] | None:
        """(what loading costs the loop as it is, what remains without it), per step."""
        facts = self.ablation
        if facts is None or facts.input_ms is None or facts.no_input_ms is None:
            return None
        return facts.input_ms, facts.no_input_ms

    def _result(self, name: str, group: str | None) -> Result:
        index = self.index(name, group)
        assert index is not None
        return self.ranking.results[index]

    def _unlike(self, a: int, b: int) -> bool:
        """Whether two trials were measured on machines of different kinds."""
        kinds = {self.kinds.get(self._source(index)) for index in (a, b)} - {None}
        return len(kinds) > 1

    def _source(self, index: int) -> int:
        same = self.trials[index].same_as
        return index if same is None else same
