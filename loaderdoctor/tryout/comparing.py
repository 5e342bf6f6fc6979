"""A trial next to the loop as it is: its gain, and whether that is beyond the noise.

Only rounds that hold both are compared, so that drift cancels. `Noise` gives few samples an
interval, and `BaselineRatio` makes windows of unlike machines comparable.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean
from types import MappingProxyType

from loaderdoctor.attribution.step import window_times
from loaderdoctor.estimate import Estimate, t95
from loaderdoctor.facts.own_settings import meaning
from loaderdoctor.instrument.wire.protocol import WindowDone
from loaderdoctor.settings import AXES_BY_NAME, Settings
from loaderdoctor.tryout.trials import Measurement, Phase, Trial
from loaderdoctor.tryout.windows import MIN_ROUNDS
from loaderdoctor.units import NS_PER_MS

# Two means of the same setting differ by about 1 % on a quiet machine (window spread of 2 %,
# four windows or more): a smaller difference is none, however narrow the interval.
EQUAL_SHARE = 0.01
# A simpler setting is recommended over the best if it costs at most this much more.
SIMPLER_SHARE = 0.03
# One window may have met cold caches, however alike those of other trials were.
MIN_SEEN = 2
# Below this part of a step a gain is not worth the time to decide it.
WORTH_DECIDING = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundaries:
    """What is known of the loop's epoch boundaries, milliseconds; None where it is not."""

    steps_per_epoch: int | None
    loop_ms: float | None  # one boundary of the loop as it is
    own_work_ms: float | None  # of it the loop's own work, which no setting of a loader changes

    def plain_ms(self, window: WindowDone) -> float:
        """A step of the loop as it is, its boundary spread over the epoch."""
        return window_times(window).wall_ms(self.steps_per_epoch, self.loop_ms)

    def trial_ms(self, window: WindowDone, *, keeps_loader: bool = False) -> float:
        """A trial's step with its own boundary spread over the real epoch.

        A trial that `keeps_loader` has the loop's boundary. Others had theirs timed next to the
        window: the loop's own work between epochs comes on top.
        """
        boundary_ms = self.loop_ms if keeps_loader else None
        if window.boundary_ns is not None:
            boundary_ms = window.boundary_ns / NS_PER_MS + (self.own_work_ms or 0.0)
        return window_times(window).wall_ms(self.steps_per_epoch, boundary_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A trial next to the loop as it is, milliseconds a step by round."""

    trial: Trial
    own: ByRound = ()  # the loop as it is, in the same rounds
    steps: ByRound = ()
    noise: Noise

    @property
    def settings(self) -> Settings:
        """What it changes."""
        return self.trial.settings

    @property
    def in_code(self) -> bool:
        """Whether it is written into the dataset's code."""
        return self.trial.in_code

    @property
    def refused(self) -> bool:
        """Whether it was not run: its reason says what would have been lost."""
        return self.trial.status == "skipped"

    @property
    def n_rounds(self) -> int:
        """Rounds that hold both."""
        return len(self.steps)

    @property
    def step(self) -> Estimate | None:
        """With these settings; None where every measurement failed."""
        return self.noise.mean([ms for _, ms in self.steps]) if self.steps else None

    @property
    def own_ms(self) -> float | None:
        """The loop as it is in the same rounds."""
        return fmean(ms for _, ms in self.own) if self.own else None

    @property
    def part(self) -> float:
        """The step with it as a part of the plain one in the same rounds; inf where it failed."""
        if self.step is None or not self.own_ms:
            return float("inf")
        return self.step.value / self.own_ms

    @property
    def gain(self) -> Estimate | None:
        """The loop as it is minus this, paired by round."""
        return self.noise.difference(self.own, self.steps)

    @property
    def helps(self) -> bool:
        """Whether the gain is beyond the noise, and was seen more than once."""
        gain = self.gain
        return gain is not None and gain.low > 0.0 and self.n_rounds >= MIN_SEEN

    @property
    def decided(self) -> bool:
        """Whether enough was seen to say that it helps, or that it was not shown to."""
        return self.trial.status != "ok" or self.helps or self.n_rounds >= MIN_ROUNDS

    @property
    def promising(self) -> bool:
        """Whether it looks better by an amount that matters, and is not shown to be."""
        gain, own_ms = self.gain, self.own_ms
        if gain is None or own_ms is None or self.helps:
            return False
        return gain.value >= WORTH_DECIDING * own_ms


def compared(trials: Sequence[Trial], boundaries: Boundaries) -> list[Compared]:
    """Each trial next to the first, the loop as it is, in their order; without that one."""
    own = {m.round: boundaries.plain_ms(m.window) for m in trials[0].measurements}
    timed = []
    for trial in trials[1:]:
        keeps = trial.settings.only_threads
        steps = [
            (m.round, boundaries.trial_ms(m.window, keeps_loader=keeps))
            for m in trial.measurements
            if m.round in own
        ]
        timed.append((trial, tuple(steps)))
    noise = Noise.of([list(own.values()), *([ms for _, ms in steps] for _, steps in timed)])
    return [
        Compared(
            trial=trial,
            own=tuple((number, own[number]) for number, _ in steps),
            steps=steps,
            noise=noise,
        )
        for trial, steps in timed
    ]


def by_speed(tried: Sequence[Compared]) -> list[Compared]:
    """Fastest first, each by its part of the loop as it is in its own rounds."""
    return sorted(tried, key=lambda one: one.part)


def is_tied(one: ByRound, best: ByRound, noise: Noise, n_compared: int) -> bool:
    """Whether `one` cannot be told from `best`, the smallest of `n_compared` means.

    The interval of the difference holds 0, widened for the number of comparisons (Bonferroni's
    correction by normal quantiles); or the difference is too small to matter.
    """
    diff = noise.difference(one, best)
    if diff is None:
        return False
    if abs(diff.value) < EQUAL_SHARE * fmean(ms for _, ms in best) or not diff.bounded:
        return True
    return abs(diff.value) <= diff.margin * widening(n_compared - 1)


def widening(n_comparisons: int) -> float:
    """How much wider a 95 % interval must be to hold for all of n comparisons together."""
    normal = NormalDist()
    return normal.inv_cdf(1 - 0.025 / max(1, n_comparisons)) / normal.inv_cdf(0.975)


def simplest(tied: Sequence[tuple[float, Settings]], own: Settings) -> int:
    """Of those tied, as (step, settings): the simplest that costs hardly more than the fastest."""
    limit = min(step for step, _ in tied) * (1 + SIMPLER_SHARE)
    near = [i for i, (step, _) in enumerate(tied) if step <= limit]
    return min(near, key=lambda i: _complexity(tied[i][1], own))


def _complexity(settings: Settings, own: Settings) -> tuple[int, int, int, int]:
    """What a setting asks for: workers, then memory, then changes of the loop's code, then all."""
    full = meaning(settings, own)
    in_loop = sum(
        AXES_BY_NAME[name].where != "DataLoader" and value not in (False, "off")
        for name, value in settings.changed().items()
    )
    # Changes of the loop's code weigh more than an argument of the loader.
    return full.num_workers or 0, full.queue_length, in_loop, len(settings.changed())


# Intervals for few samples: each trial's own spread, steadied by the spread of all trials.
#
# A trial is measured three to eight times; a spread from three samples is itself so uncertain
# that its interval (4.3 standard errors) hides a doubling. All trials run in the same loop on the
# same machine, so their relative spread is much the same: the usual variance enters each trial's
# own as if it were PRIOR_DF samples more (a moderated t interval: G. K. Smyth, "Linear models and
# empirical Bayes methods", 2004). A trial that really is noisier keeps most of its own noise.

# Weight of the pooled spread, in samples. Smyth's data-driven values are mostly between 3 and 5.
PRIOR_DF = 4

ByRound = Sequence[tuple[int, float]]  # (round, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """The usual relative variance of one window among the trials of a sweep."""

    variance: float  # of value / mean
    weight: int  # degrees of freedom it enters with; 0 where no trial was measured twice

    @staticmethod
    def of(trials: Iterable[Sequence[float]]) -> Noise:
        """The median trial's, of those with two samples or more: a wild one must not blind us."""
        variances: list[float] = []
        free = 0
        for samples in trials:
            if len(samples) < 2 or (middle := math.fsum(samples) / len(samples)) <= 0:
                continue
            own = len(samples) - 1
            # The median of a variance estimate lies below its mean (Wilson and Hilferty, 1931).
            median = (1 - 2 / (9 * own)) ** 3
            variances.append(math.fsum((x / middle - 1) ** 2 for x in samples) / own / median)
            free += own
        return Noise(
            variance=statistics.median(variances) if variances else 0.0,
            weight=min(PRIOR_DF, free),
        )

    def mean(self, samples: Sequence[float]) -> Estimate:
        """Mean with its steadied 95 % interval. Raises ValueError on no samples."""
        if not samples:
            raise ValueError("no samples")
        middle = math.fsum(samples) / len(samples)
        return self._estimate(samples, prior=self.variance * middle**2)

    def difference(self, a: ByRound, b: ByRound) -> Estimate | None:
        """A - b: paired over two or more common rounds, else independently; None if empty."""
        in_a, in_b = dict(a), dict(b)
        if not in_a or not in_b:
            return None
        mean_a, mean_b = self.mean(list(in_a.values())), self.mean(list(in_b.values()))
        common = [number for number in in_a if number in in_b]
        if len(common) >= 2:
            prior = self.variance * (mean_a.value**2 + mean_b.value**2)
            return self._estimate([in_a[n] - in_b[n] for n in common], prior=prior)
        return self._independent(mean_a, mean_b)

    def change(self, a: float, b: float) -> Estimate:
        """A / b - 1 of shares of the step, each seen in one window: they vary as its step does."""
        value = a / b - 1
        if self.weight == 0:
            return Estimate.around(value, math.inf, n=1)
        margin = t95(self.weight) * math.sqrt(2 * self.variance) * a / b
        return Estimate.around(value, margin, n=1)

    def _estimate(self, samples: Sequence[float], *, prior: float) -> Estimate:
        n = len(samples)
        value = math.fsum(samples) / n
        free = self.weight + n - 1
        if free == 0:
            return Estimate.around(value, math.inf, n=n)
        own = math.fsum((x - value) ** 2 for x in samples)
        variance = (self.weight * prior + own) / free
        margin = t95(free) * math.sqrt(variance / n)
        return Estimate.around(value, margin, n=n)

    def _independent(self, a: Estimate, b: Estimate) -> Estimate:
        value, n = a.value - b.value, min(a.n, b.n)
        if not (a.bounded and b.bounded):
            return Estimate.around(value, math.inf, n=n)
        free = self.weight + n - 1
        errors = [one.margin / t95(self.weight + one.n - 1) for one in (a, b)]
        margin = t95(free) * math.hypot(*errors)
        return Estimate.around(value, margin, n=n)


# The loop's own settings as the measure of each node.
#
# On a cluster a trial runs on one node and its rivals on others. Machines of one type still differ
# by some percent, so each node measures the loop's own settings next to its trials, in the same
# rounds, and a trial counts as its ratio to those. Ratios become times again by the mean of the
# loop's own settings over all nodes. The loop's own settings are then exact by definition: what is
# not known about them is in the ratios.


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineRatio:
    """Wall time per step of the loop's own settings, milliseconds: overall, and where and when."""

    mean_ms: float
    by_round: Mapping[tuple[int, Phase, int], float]  # (group, phase, round)
    by_group: Mapping[int, float]

    @staticmethod
    def of(
        own: Sequence[tuple[Measurement, float]], counted: Sequence[tuple[Measurement, float]]
    ) -> BaselineRatio:
        """From measurements of trial 0 with their wall times; `counted` are those that rank it."""
        by_round: dict[tuple[int, Phase, int], float] = {}
        groups: dict[int, list[float]] = {}
        for measurement, ms in own:
            if measurement.group is not None:
                by_round[measurement.group, measurement.phase, measurement.round] = ms
                groups.setdefault(measurement.group, []).append(ms)
        return BaselineRatio(
            mean_ms=fmean(ms for _, ms in counted) if counted else 0.0,
            by_round=by_round,
            by_group={group: fmean(ms) for group, ms in groups.items()},
        )

    def factor(self, measurement: Measurement) -> float:
        """What this window's time is to be multiplied by; 1 where all was on one machine."""
        if measurement.group is None:
            return 1.0
        own = self.by_round.get((measurement.group, measurement.phase, measurement.round))
        own = own or self.by_group.get(measurement.group)
        return self.mean_ms / own if own else 1.0


ONE_MACHINE = BaselineRatio(
    mean_ms=0.0, by_round=MappingProxyType({}), by_group=MappingProxyType({})
)
