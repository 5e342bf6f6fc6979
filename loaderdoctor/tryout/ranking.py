"""Trials -> step times with their noise, the best, what ties with it, and what to recommend.

Comparisons are paired by round where two trials share rounds (drift cancels), and decided by the
interval (see `estimate.Noise`), never by the means alone. The best of many noisy means looks
better than it is, so ties allow for the number of trials compared, and the candidate (the simplest
of those tied with the best) has its gain over the loop's own settings measured in confirmation
windows taken after it was chosen, next to the best of the rounds. Those decide whether it is
recommended, or another that is less simple.

Simpler are, in this order: the fewest differences from what the loop does now, each a line to write
and to explain; then the fewest workers, which is the least memory; then the fewest batches in
flight. A change of the loop's own code counts as two differences, since an argument of the loader
is one. Nothing of that depends on what was measured, so two sweeps of one loop agree.

Equally fast are those that are not shown to be `SIMPLER_SHARE` slower than the fastest. Which trial
happens to be the fastest of many that are alike, noise decides: where windows vary much, all that
noise can explain must count, or each sweep recommends another (`benchmarks/repeat_sweep.py`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median

from loaderdoctor.estimate import MIN_GAIN_SHARE, ByRound, Estimate, Noise
from loaderdoctor.facts import meaning
from loaderdoctor.settings import AXES_BY_NAME, Settings
from loaderdoctor.tryout import Trial
from loaderdoctor.tryout.comparing import (
    ONE_MACHINE,
    BaselineRatio,
    is_tied,
    outlook,
    widening,
)
from loaderdoctor.tryout.results import (
    Result,
    baseline_ratio_of,
    drift,
    result,
    samples_per_step,
    shared,
    size_factor,
    wall_samples,
)

# What is that much slower than the fastest, beyond what noise explains, is as good where it is
# simpler. Of 20 simulated sweeps of four loops whose windows vary by 2 %, 20 agreed with others of
# their loop; at 0.03 it was 19, and 15 where the value alone decided as soon as intervals were
# narrow: the fastest of many looks faster than it is.
SIMPLER_SHARE = 0.05
# Lines in the training loop, against one argument of a call.
IN_LOOP = 2

Complexity = tuple[int, int, int, str]
# With fewer confirmation pairs than this the paired rounds speak (see `gain`).
MIN_PAIRS = 3
# Of what the fastest gains, a simpler setting must itself have shown this part, whatever noise
# would allow it (beside the fastest: must not be shown to gain less): else what hardly differs from
# the loop as it is stands for what does, is found to gain nothing when it is confirmed, and the
# answer is "nothing". Of 10 simulated sweeps of a loop that workers make 1.25 times as fast, at a
# noise of 8 %, that was the answer of 5, now of 1.
OF_GAIN = 0.25
# Who is worth a measurement beside the fastest: a simpler setting, unless an interval this much
# wider shows it too slow in the rounds, where whoever is the fastest of many is so by luck as well.
# Only until it is measured there. Where nothing was, 15 of 16 simulated sweeps of 15 s with noise
# of 5 and 10 % named a setting that takes 13.0 ms where another takes 7.5.
SURELY = 1.5
# Measured beside it, a simpler setting is too slow where it is beyond `SIMPLER_SHARE` by this part
# of the margin when the rounds end. That is a choice, no claim: by the whole margin, as a gain is
# judged, noise of 20 % hid that another takes 17 % less in 24 of 40 simulated sweeps.
DOUBT = 0.6
# The interval of a gain there is this much wider: several candidates may be asked, each after every
# round. Of 60 simulated sweeps of a loop that no setting changes (noise of 10 %, seeds that chose
# nothing) none recommended one; 4 at 1.14, Bonferroni's correction for two questions.
OF_SEVERAL = 1.25


def needed_changes(settings: Settings, own: Settings) -> Settings:
    """What must be written to get `settings`: without what the loop has, and torch's defaults."""
    full = meaning(settings, own)
    kept = {}
    for name, value in settings.changed().items():
        without = meaning(replace(settings, **{name: None}), own)
        if without != full:
            kept[name] = value
    return Settings(**kept)  # type: ignore[arg-type]


@functools.lru_cache(maxsize=4096)
def complexity(settings: Settings, own: Settings) -> Complexity:
    """Smaller is simpler; equal only for settings with one label."""
    full, changes = meaning(settings, own), needed_changes(settings, own).changed()
    weight = sum(1 if AXES_BY_NAME[name].where == "DataLoader" else IN_LOOP for name in changes)
    return weight, full.num_workers or 0, full.queue_length, settings.label()


def equally_fast(best_ms: float, slower: Mapping[int, Estimate], *, wider: float) -> frozenset[int]:
    """Of trials, by index, with how much slower they are than the fastest: the equally fast ones.

    One interval, the usual one of all, `wider` for the number of comparisons: an interval of few
    rounds is itself uncertain, and which trials it ties would change from sweep to sweep.
    """
    margins = [one.margin for one in slower.values() if one.bounded]
    usual_ms = wider * median(margins) if margins else float("inf")
    limit_ms = SIMPLER_SHARE * best_ms + usual_ms
    return frozenset(index for index, one in slower.items() if one.value <= limit_ms)


def simplest(among: Sequence[Settings], own: Settings) -> int:
    """The index of the simplest of them. Raises ValueError on none."""
    return min(range(len(among)), key=lambda i: complexity(among[i], own))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The outcome of a sweep."""

    results: tuple[Result, ...]  # by trial index
    best: int | None  # None: nothing was measured
    tied_with: tuple[int, ...]  # not separable from the best, ascending
    candidate: int | None  # simplest of the equally fast; 0 where the best gains too little over 0
    gain_ms: Estimate | None  # loop's own minus candidate, per step; None where candidate is 0
    gain_share: Estimate | None  # of the loop's own step
    confirmed: bool  # the gain rests on confirmation windows
    drift: float | None  # last / first baseline step time
    noise: Noise | None = None  # what intervals rest on
    spread: float | None = None  # usual standard deviation of a window's mean, of that mean
    compared: tuple[int, ...] = ()  # trials that the best was chosen among
    n_equal: int = 0  # the candidate was chosen among so many, the best among them
    # How much slower than the best trials were in the rounds that confirm, as a part of it
    slower: Mapping[int, Estimate] = field(default_factory=dict)

    def slowness_is_open(self, index: int, rest: int) -> bool:
        """Whether `rest` more rounds may change if it is too slow beside the best."""
        slower = self.slower.get(index)
        if index == self.best:
            return False
        if slower is None:
            return True
        after, move = outlook(slower, rest)
        return abs(slower.value - SIMPLER_SHARE - DOUBT * after) < move

    def is_blind(self, index: int) -> bool:
        """Whether noise hides how much slower than the best it is, or it was not measured so."""
        slower = self.slower.get(index)
        return index != self.best and (slower is None or slower.margin > SIMPLER_SHARE)

    @property
    def seems_to_gain(self) -> bool:
        """Whether the candidate's gain would matter, if it is no noise."""
        return self.gain_share is not None and self.gain_share.value >= MIN_GAIN_SHARE

    def gain_is_open(self, rest: int) -> bool:
        """Whether `rest` more rounds may change if the candidate's gain is worth a change."""
        gain = self.gain_share
        if gain is None or not self.confirmed:
            return gain is not None
        after, move = outlook(gain, rest)
        above = gain.value - max(MIN_GAIN_SHARE, after)
        return abs(above) < move or (above > 0) != self.worth_changing

    def round_gain(self, index: int) -> Estimate | None:
        """Loop's own minus this trial by the ranking rounds alone, as wide as ties are judged.

        None where it is none of those compared.
        """
        if index not in self.compared or self.noise is None:
            return None
        own, one = self.results[0], self.results[index]
        gain = self.noise.difference(own.by_round, one.by_round)
        if gain is None or not gain.bounded:
            return gain
        margin = gain.margin * widening(len(self.compared) - 1)
        return replace(gain, low=gain.value - margin, high=gain.value + margin)

    @property
    def worth_changing(self) -> bool:
        """Whether the candidate's gain is above the noise and large enough to matter."""
        if not self.candidate or self.gain_share is None:
            return False
        if not self.confirmed and 0 in self.tied_with:
            return False
        return self.gain_share.low > 0 and self.seems_to_gain

    @property
    def recommended(self) -> int | None:
        """The trial to recommend; None where nothing is worth changing."""
        return self.candidate if self.worth_changing else None


def rank(
    trials: Sequence[Trial],
    *,
    own: Settings,
    steps_per_epoch: int | None,
    beside: bool = False,
    rest: int = 0,
    proposing: bool = False,
) -> Ranking:
    """Everything that can be said about the trials so far; also after an interruption.

    `beside`: where enough rounds hold both, what was measured beside the fastest again is judged by
    that, as long as `rest` more rounds could come: too slow is what these could hardly change.
    `proposing`: the candidate is whom to measure there next. Else, where the fastest was, only what
    was measured beside it is named, and the fastest itself where it alone is shown to gain.
    """
    baseline_ratio = baseline_ratio_of(trials[0], steps_per_epoch) if trials else ONE_MACHINE
    noise = Noise.of(
        [x for _, x in wall_samples(trial, trial.ranked, steps_per_epoch, baseline_ratio)]
        for trial in trials
        if trial.status == "ok" and not trial.apart
        if trial.index or baseline_ratio is ONE_MACHINE  # exact by definition
    )
    base = samples_per_step(trials[0]) if trials else None
    results = shared(
        trials,
        [
            result(trial, noise, steps_per_epoch, base_samples=base, baseline_ratio=baseline_ratio)
            for trial in trials
        ],
    )
    compared = [r for r in results if r.status == "ok" and r.wall_ms and is_choice(trials[r.index])]
    ranked = [r for r in compared if not r.calibrated_only]
    if not ranked:
        return Ranking(
            results=results,
            best=None,
            tied_with=(),
            candidate=None,
            gain_ms=None,
            gain_share=None,
            confirmed=False,
            drift=None,
        )
    own_wall = results[0].ranked_ms
    again = [_again(t, trials[0], steps_per_epoch, baseline_ratio) for t in trials]
    beside_own = _beside(again, 0, noise)
    lowest = min(ranked, key=lambda one: one.ranked_ms)
    others = [r for r in ranked if r.index]
    best = min(others, key=lambda one: one.ranked_ms, default=lowest)
    gains = best.ranked_ms <= own_wall * (1 - MIN_GAIN_SHARE)
    if not gains and beside:  # the rounds alone don't tell, but for one that is shown not to
        left_open = proposing and _may_gain(results[0], best, noise)
        gains = best.index in beside_own or left_open
    if not gains:
        best = lowest
    tied = tuple(
        r.index
        for r in compared
        if r is not best and is_tied(r.by_round, best.by_round, noise, len(compared))
    )
    beside_best = _beside(again, best.index, noise)
    candidate = n_equal = 0
    if gains:
        behind = {
            r.index: diff
            for r in others
            if r is not best
            if (diff := noise.difference(r.by_round, best.by_round)) is not None
        }
        usual, wider = widening(len(compared) - 1), SURELY if proposing else 1.0
        equal = equally_fast(best.ranked_ms, behind, wider=wider * usual)
        gain_of_best = own_wall - best.ranked_ms
        least_ms = math.inf if proposing else own_wall - OF_GAIN * gain_of_best
        simpler = {i for i in equal if results[i].ranked_ms <= least_ms}
        if not proposing:
            worth_ms = SIMPLER_SHARE * best.ranked_ms
            simpler -= {i for i, d in behind.items() if d.value - usual * d.margin > worth_ms}
        measured = behind.keys() & beside_best.keys() if beside else set()
        too_slow = {i for i, slower in beside_best.items() if _is_too_slow(slower, rest)}
        hardly = {i for i, x in beside_own.items() if -x.low * own_wall < OF_GAIN * gain_of_best}
        equally = (simpler | measured) - too_slow - hardly
        named = equally & measured if measured and not proposing else equally
        n_equal = 1 + len(named)
        choices = [best, *(r for r in others if r.index in named)]
        candidate = choices[simplest([r.settings for r in choices], own)].index

    def gain_of(index: int) -> tuple[Estimate | None, bool]:
        found, again = gain(trials, results, index, noise, steps_per_epoch, baseline_ratio)
        if beside and again and found is not None:
            found = Estimate.around(found.value, OF_SEVERAL * found.margin, n=found.n)
        return found, again

    gain_ms, confirmed = gain_of(candidate)
    if beside and confirmed and not _may_be_shown(gain_ms, own_wall, rest):
        of_best = gain_of(best.index)
        if of_best[1] or proposing:  # what else could gain: the fastest, if anything
            candidate, (gain_ms, confirmed) = best.index, of_best
    own_cost = results[0].cost_ms
    ranking = Ranking(
        results=results,
        best=best.index,
        tied_with=tied,
        candidate=candidate,
        gain_ms=gain_ms,
        gain_share=gain_ms.scaled(1 / own_cost.value) if gain_ms and own_cost else None,
        confirmed=confirmed,
        drift=drift(trials[0]),
        noise=noise,
        spread=math.sqrt(noise.variance) if noise.free else None,
        compared=tuple(r.index for r in compared),
        n_equal=n_equal,
        slower=beside_best,
    )
    if ranking.worth_changing:  # the confirmation tells apart what the rounds could not
        return replace(ranking, tied_with=tuple(index for index in tied if index))
    if (
        lowest is not best and not proposing
    ):  # as it is: fastest in the rounds, and nothing shown to beat it
        return replace(ranking, best=0, tied_with=tuple(sorted({best.index, *tied} - {0})))
    return ranking


def is_choice(trial: Trial) -> bool:
    """Whether one could train with it instead of the loop as it is.

    Not what only answers a question (a part of the data), nor another loop.
    """
    return trial.index == 0 or not (
        trial.same_as is not None or trial.settings.probes or trial.other_loop or trial.apart
    )


def gain(
    trials: Sequence[Trial],
    results: Sequence[Result],
    candidate: int,
    noise: Noise,
    steps_per_epoch: int | None,
    baseline_ratio: BaselineRatio = ONE_MACHINE,
) -> tuple[Estimate | None, bool]:
    """(loop's own minus candidate, whether confirmation windows say so), per step.

    Of the `confirm` rounds those that hold both: others were of another candidate.
    """
    if candidate == 0:
        return None, False
    own, other = (
        _again(trials[i], trials[0], steps_per_epoch, baseline_ratio) for i in (0, candidate)
    )
    if len(_common(own, other)) >= MIN_PAIRS:
        return noise.difference(own, other), True
    return noise.difference(results[0].by_round, results[candidate].by_round), False


def _beside(again: Sequence[ByRound], index: int, noise: Noise) -> dict[int, Estimate]:
    """How much slower than one trial others were in the rounds that confirm, as a part of it.

    By their index; of the rounds that hold both, so that what slows all of them cancels.
    """
    found, one = {}, again[index]
    for i, other in enumerate(again):
        common = _common(other, one)
        if i == index or len(common) < MIN_PAIRS:
            continue
        slower, one_ms = noise.difference(other, one), fmean(x.value for n, x in one if n in common)
        if slower is not None and one_ms > 0:
            found[i] = slower.scaled(1 / one_ms)
    return found


def _is_too_slow(slower: Estimate, rest: int) -> bool:
    """By more than simplicity is worth, and `rest` more rounds would hardly show it otherwise."""
    after, move = outlook(slower, rest)
    return slower.value - move > SIMPLER_SHARE + DOUBT * after


def _may_gain(own: Result, other: Result, noise: Noise) -> bool:
    """Whether the rounds leave open that it gains what matters."""
    gain = noise.difference(own.by_round, other.by_round)
    return gain is not None and gain.high >= MIN_GAIN_SHARE * own.ranked_ms


def _may_be_shown(gain: Estimate | None, own_ms: float, rest: int) -> bool:
    """Whether a gain that matters is beyond the noise, or may be after `rest` more rounds."""
    if gain is None:
        return False
    after, move = outlook(gain, rest)
    return gain.value + move >= max(MIN_GAIN_SHARE * own_ms, after)


def _again(
    trial: Trial, own: Trial, steps_per_epoch: int | None, baseline_ratio: BaselineRatio
) -> ByRound:
    """(round, cost) of a trial in the rounds that confirm, for as many samples as the own step."""
    factor = size_factor(samples_per_step(own), samples_per_step(trial))
    timed = wall_samples(trial, trial.of("confirm"), steps_per_epoch, baseline_ratio)
    return [(number, x.scaled(factor)) for number, x in timed]


def _common(a: ByRound, b: ByRound) -> set[int]:
    return {n for n, _ in a} & {n for n, _ in b}
