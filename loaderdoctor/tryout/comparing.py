"""A trial next to the loop as it is: its gain, and whether that is beyond the noise.

Only rounds that hold both are compared, so that drift cancels. `estimate.Noise` gives few windows
an interval, and `BaselineRatio` makes windows of unlike machines comparable.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean
from types import MappingProxyType

from loaderdoctor.attribution.step import window_times
from loaderdoctor.estimate import NORMAL95, ByRound, Estimate, Noise, Sample
from loaderdoctor.instrument.wire.protocol import WindowDone
from loaderdoctor.settings import Settings
from loaderdoctor.tryout import Measurement, Phase, Trial
from loaderdoctor.tryout.windows import MIN_ROUNDS
from loaderdoctor.units import NS_PER_MS

# Two means of the same setting differ by about 1 % on a quiet machine (window spread of 2 %,
# four windows or more): a smaller difference is none, however narrow the interval.
EQUAL_SHARE = 0.01
# Below this part of a step a gain is not worth the time to decide it.
WORTH_DECIDING = 0.05
# Whether more rounds could change an answer: with the part p of the rounds done, the value moves by
# no more than this times margin * sqrt(1 - p), but for one time in 200 to that side (2.6 standard
# deviations of the predictive distribution; stochastic curtailment: K. K. G. Lan, R. Simon and M.
# Halperin, "Stochastically curtailed tests in long-term clinical trials", 1982).
SURE = 1.33
# What a new process of one script differs by from another, as a standard deviation of the logarithm
# of how many times as fast its changed form is, beyond the noise of windows: memory lies elsewhere,
# cores and pages are others. Of 30 proofs (16 scripts, H200 hosts, 2 to 6 CPUs each, three turns of
# new processes) what was got lies this far from what was promised, the proofs' own noise taken out.
# With these two, 25 of the ratios got lie within the promise's interval; with 0.10, taken from the
# first 18, ten of the twelve that came after. Workers tried on two CPUs gained less in a new
# process, by a fifth: ends of short epochs counted half then (docs/accuracy.md), and in a heap that
# has run for long a step takes a tenth of the page faults (`cold_ms` below).
BETWEEN_PROCESSES = 0.12
# Part of the squared distance (of logarithms) between the loop as it is in a trial's rounds and in
# its first windows: 0.18 in the root mean square of these 30, and new processes lay in the middle.
OF_DRIFT = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundaries:
    """What is known of the loop's epoch boundaries, milliseconds; None where it is not."""

    steps_per_epoch: int | None
    loop_ms: float | None  # one boundary of the loop as it is
    own_work_ms: float | None  # of it the loop's own work, which no setting of a loader changes
    own_workers: int = 0

    def plain(self, window: WindowDone) -> Sample:
        """A step of the loop as it is, its boundary spread over the epoch."""
        times = window_times(window, cycle=self.own_workers)
        return times.wall(self.steps_per_epoch, self.loop_ms)

    def trial(
        self, window: WindowDone, *, keeps_loader: bool = False, workers: int | None = None
    ) -> Sample:
        """A trial's step with its own boundary spread over the real epoch.

        A trial that `keeps_loader` has the loop's boundary. Others have theirs, met in the window
        or timed next to it: the loop's own work between epochs comes on top. `workers` None: as
        many as it has.
        """
        times = window_times(window, cycle=self.own_workers if workers is None else workers)
        if keeps_loader and window.boundary_ns is None:
            return times.wall(self.steps_per_epoch, self.loop_ms)
        loader_ms = window.boundary_ns / NS_PER_MS if window.boundary_ns is not None else None
        return times.wall_of_trial(self.steps_per_epoch, loader_ms, self.own_work_ms or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A trial next to the loop as it is, milliseconds a step by round."""

    trial: Trial
    own: ByRound = ()  # the loop as it is, in the same rounds
    steps: ByRound = ()
    noise: Noise
    one_of: int = 1  # so many were looked at, and the best is what is told

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
        return self.noise.mean([x for _, x in self.steps]) if self.steps else None

    @property
    def own_ms(self) -> float | None:
        """The loop as it is in the same rounds."""
        return fmean(x.value for _, x in self.own) if self.own else None

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
        """Whether the gain is beyond the noise: one round may show it (see `estimate.Noise`).

        Of many settings that change nothing one looks good by chance: the interval is widened for
        all that are tried (`benchmarks/false_gains.py`).
        """
        gain = self.gain
        return gain is not None and gain.value > gain.margin * _widening_of_gains(self.one_of)

    @property
    def hopeless(self) -> bool:
        """Whether it is shown to gain nothing of note."""
        gain, own_ms = self.gain, self.own_ms
        if gain is None or own_ms is None:
            return self.trial.status != "ok"
        return gain.high < WORTH_DECIDING * own_ms

    @property
    def decided(self) -> bool:
        """Whether enough was seen to say that it helps, or that it was not shown to."""
        seen = self.helps or self.hopeless or self.n_rounds >= MIN_ROUNDS
        return self.trial.status != "ok" or seen

    def may_beat(self, other: Compared) -> bool:
        """Whether it may still be faster than `other`, by an amount that matters."""
        diff, own_ms = self.noise.difference(other.steps, self.steps), self.own_ms
        return diff is not None and own_ms is not None and diff.high >= WORTH_DECIDING * own_ms

    @property
    def promising(self) -> bool:
        """Whether it looks better by an amount that matters, and is not shown to be."""
        gain, own_ms = self.gain, self.own_ms
        if gain is None or own_ms is None or self.helps:
            return False
        return gain.value >= WORTH_DECIDING * own_ms


def compared(trials: Sequence[Trial], boundaries: Boundaries) -> list[Compared]:
    """Each trial next to the first, the loop as it is, in their order; without that one."""
    own = {m.round: boundaries.plain(m.window) for m in trials[0].measurements}
    timed = []
    for trial in trials[1:]:
        keeps, workers = trial.settings.keeps_loaders, trial.settings.num_workers
        steps = [
            (m.round, boundaries.trial(m.window, keeps_loader=keeps, workers=workers))
            for m in trial.measurements
            if m.round in own
        ]
        timed.append((trial, tuple(steps)))
    n_seen = sum(1 for _, steps in timed if steps)  # what was not looked at can't look good
    noise = Noise.of([list(own.values()), *([x for _, x in steps] for _, steps in timed)])
    return [
        Compared(
            trial=trial,
            own=tuple((number, own[number]) for number, _ in steps),
            steps=steps,
            noise=noise,
            one_of=n_seen,
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
    if abs(diff.value) < EQUAL_SHARE * fmean(x.value for _, x in best) or not diff.bounded:
        return True
    return abs(diff.value) <= diff.margin * widening(n_compared - 1)


def outlook(one: Estimate, rest: int) -> tuple[float, float]:
    """(its margin after `rest` more rounds, how far its value may move until then)."""
    part = one.n / (one.n + rest)
    return one.margin * math.sqrt(part), SURE * one.margin * math.sqrt(1 - part)


def widening(n_comparisons: int) -> float:
    """How much wider a 95 % interval must be to hold for all of n comparisons together."""
    normal = NormalDist()
    return normal.inv_cdf(1 - 0.025 / max(1, n_comparisons)) / normal.inv_cdf(0.975)


def _widening_of_gains(n_comparisons: int) -> float:
    """Likewise where only one end is looked at: no loss is claimed of any of them."""
    normal = NormalDist()
    return max(1.0, normal.inv_cdf(1 - 0.05 / max(1, n_comparisons)) / normal.inv_cdf(0.975))


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


def in_new_processes(
    own: float | None, changed: Estimate | None, *, first: Estimate | None, cold_ms: float = 0.0
) -> Estimate | None:
    """How many times as fast a change makes new processes of the script; None: nothing tells it.

    `own` and `changed`: means in the rounds of a trial; `first`: of the loop as it is, before. The
    interval is one of log ratios: noise of both sides, what the loop's pace changed meanwhile, and
    what processes of one script differ by. `cold_ms`: what page faults took of a step at first and
    no longer in these rounds. A new process takes them in both forms, for as long as nothing large
    is freed in it: the interval holds the gain with them and without.
    """
    if own is None or changed is None or first is None:
        return None
    if min(own, changed.value, first.value) <= 0.0 or not (changed.bounded and first.bounded):
        return None
    between = BETWEEN_PROCESSES**2 + OF_DRIFT * math.log(own / first.value) ** 2
    margin = math.sqrt(
        (changed.margin / changed.value) ** 2
        + (first.margin / first.value) ** 2
        + NORMAL95**2 * between
    )
    times, factor = own / changed.value, math.exp(margin)
    cold = (own + cold_ms) / (changed.value + cold_ms)
    low, high = min(times, cold) / factor, max(times, cold) * factor
    return Estimate(value=times, low=low, high=high, n=changed.n)
