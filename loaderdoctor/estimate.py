"""Measured quantities with their noise: an estimate never travels without its interval.

And how far windows lie from what they measure: the one model behind the intervals of all times.
A window gives a mean over dozens of steps. It lies off the truth by two things:

- its steps vary, and neighbours in time alike: seen in the window itself (`Sample.error`);
- all its steps share something that other windows do not (another program's turn, where memory
  lies, a warmer core): not to be seen in one window. With few windows it has to be assumed, from
  recorded series of steps; each further window of the run says more of it.

So one window has an interval already, and twenty steps that take half as long as twenty others are
told apart at once. `benchmarks/coverage.py` prints how often the intervals hold what they should.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

# Two-sided 95 % quantiles of Student's t for 1..30 degrees of freedom (standard table); beyond
# that the normal quantile is within 2 %. Kept here so that the core needs no scipy.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
NORMAL95 = 1.960
# A gain below this part of the step is not worth a change of code or of settings, and would take
# long to prove: two means of one setting differ by about 1 % on a quiet machine.
MIN_GAIN_SHARE = 0.02

Interval = tuple[float, float]


def t95(degrees_of_freedom: float) -> float:
    """Two-sided 95 % quantile of Student's t; fractional degrees round down (wider, so safe)."""
    whole = max(1, math.floor(degrees_of_freedom))
    return _T95[whole - 1] if whole <= len(_T95) else NORMAL95


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean with its 95 % confidence interval and the number of independent samples behind it.

    `low` and `high` are -inf and +inf where one sample gives no idea of the noise.
    """

    value: float
    low: float
    high: float
    n: int

    @staticmethod
    def around(value: float, margin: float, *, n: int) -> Estimate:
        """With an interval of `margin` to either side, infinite where nothing tells the noise."""
        return Estimate(value=value, low=value - margin, high=value + margin, n=n)

    @property
    def margin(self) -> float:
        """Half the width of the interval, same unit as `value`."""
        return (self.high - self.low) / 2

    @property
    def bounded(self) -> bool:
        """Whether there were enough samples for an interval."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    def taken_from(self, whole: float) -> Estimate:
        """`whole` (a constant) less this quantity."""
        return Estimate(
            value=whole - self.value, low=whole - self.high, high=whole - self.low, n=self.n
        )

    def plus(self, constant: float) -> Estimate:
        """The sum with a constant of the same unit."""
        return Estimate(
            value=self.value + constant,
            low=self.low + constant,
            high=self.high + constant,
            n=self.n,
        )

    def scaled(self, factor: float) -> Estimate:
        """The same quantity in another unit, or as a share of a constant; `factor` > 0."""
        return Estimate(
            value=self.value * factor, low=self.low * factor, high=self.high * factor, n=self.n
        )


def interval(estimate: Estimate | None) -> Interval | None:
    """Its lower and upper end; None where nothing was measured, or too few samples for one."""
    if estimate is None or not estimate.bounded:
        return None
    return (estimate.low, estimate.high)


def mean(samples: Sequence[float]) -> Estimate:
    """Mean of independent samples with a 95 % t interval. Raises ValueError on no samples.

    A sample is a whole window (whole worker cycles), never a single step: steps within a window
    are correlated, and treating them as independent makes the interval far too narrow.
    """
    n = len(samples)
    if n == 0:
        raise ValueError("no samples")
    value = math.fsum(samples) / n
    if n == 1:
        return Estimate.around(value, math.inf, n=1)
    variance = math.fsum((x - value) ** 2 for x in samples) / (n - 1)
    margin = t95(n - 1) * math.sqrt(variance / n)
    return Estimate.around(value, margin, n=n)


def paired_difference(a: Sequence[float], b: Sequence[float]) -> Estimate:
    """A - b where a[i] and b[i] were measured in the same round: drift cancels.

    Raises ValueError where the lengths differ or nothing was measured.
    """
    if len(a) != len(b):
        raise ValueError(f"unpaired samples: {len(a)} and {len(b)}")
    return mean([x - y for x, y in zip(a, b, strict=True)])


def binomial_interval(hits: int, n: int) -> Interval:
    """Exact 95 % interval (Clopper and Pearson 1934) of the share behind `hits` of `n` looks.

    (0, 1) where nothing was looked at. Raises ValueError where `hits` is not within 0…n.
    """
    if not 0 <= hits <= n:
        raise ValueError(f"{hits} of {n}")
    low = 0.0 if hits == 0 else _share_with(hits, n, 0.025)
    high = 1.0 if hits == n else 1.0 - _share_with(n - hits, n, 0.025)
    return low, high


def _share_with(hits: int, n: int, chance: float) -> float:
    """The share at which `hits` or more of `n` come up with that chance; by bisection."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        if _at_least(hits, n, middle) < chance:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _at_least(hits: int, n: int, share: float) -> float:
    """Chance of `hits` or more of `n`."""
    if share <= 0.0 or share >= 1.0:
        return float(share >= 1.0 or hits == 0)
    yes, no, all_ = math.log(share), math.log1p(-share), math.lgamma(n + 1)
    return math.fsum(
        math.exp(all_ - math.lgamma(k + 1) - math.lgamma(n - k + 1) + k * yes + (n - k) * no)
        for k in range(hits, n + 1)
    )


# What a window's mean is off by beyond what its steps tell, as a part of it, where nothing of the
# run says so yet; and what that is worth, in windows: little, since machines differ more than
# windows of one do (heavy tails). With these two and `IN_ROUND`, intervals of one to four rounds
# hold the truth in 93 to 97 % of draws from the recorded series of `benchmarks/coverage.py`,
# pooled; on the quietest of them more often, beside other programs that come and go (half of all
# steps of a window, or none) less.
BETWEEN = 0.045
RECORDED_DF = 2
# Windows of one round are close in time and share what is slow: of what two of them vary, each by
# itself, so much is left in their difference. At 1 intervals of differences hold the truth in up
# to 98.2 % of draws, at 0.5 in as few as 93.2, here in 94 to 97.
IN_ROUND = 0.7
# Weight of what the trials of a run show of one another's spread, in windows (a moderated t
# interval: G. K. Smyth, "Linear models and empirical Bayes methods", 2004, whose data-driven values
# are mostly between 3 and 5). A trial that is noisier than the rest keeps most of its own noise.
PRIOR_DF = 4
# Correlation of neighbouring steps beyond which a short window can't tell it from a trend.
MAX_CORRELATION = 0.9
# Of fewer steps no correlation can be told.
MIN_CORRELATED = 6
# Of a cycle of workers, steps whose waits are looked at together; and the part of their variance
# that cancelling leaves at least: what a dozen steps tell of it is itself uncertain.
LONGEST_CYCLE = 8
MIN_CYCLES = 4  # whole ones that their own spread is taken from
LEAST_PART = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What one window gave: a mean, and its standard error by the window's own steps."""

    value: float
    error: float = 0.0  # 0: its steps say nothing of it
    n_cycles: int = 0  # whole ones that told it; 0: neighbours did

    @staticmethod
    def of(steps: Sequence[float], *, cycle: int = 1) -> Sample:
        """From steps in their order, whose waits repeat each `cycle`. Raises ValueError on none.

        Neighbours are alike: the variance of the mean of an autoregressive series of first order,
        its coefficient estimated without bias. Where they are unlike (waits come once a cycle of
        workers: 255, 0, 0, 0, 140, 1, 0, 0), the sum of whole cycles varies less than its steps:
        correlations of the next steps are added up (M. S. Bartlett's window, 1950), within limits.
        """
        n = len(steps)
        if n == 0:
            raise ValueError("no steps")
        value = math.fsum(steps) / n
        off = [x - value for x in steps]
        total = math.fsum(x * x for x in off)
        if n == 1 or total == 0.0:
            return Sample(value=value)
        alike, independent = _alike(off, total), math.sqrt(total / (n - 1) / n)
        if alike > 0 or n < MIN_CORRELATED:
            error = independent * math.sqrt(_more_by(alike))
        else:
            error = independent * math.sqrt(_within_cycles(off, total))
        # Where neighbours are alike, steps drift, and cycles are no more independent than they.
        by_cycle = _error_by_cycle(steps, cycle) if alike <= 0 else None
        if by_cycle is None or by_cycle >= error:
            return Sample(value=value, error=error)
        return Sample(value=value, error=by_cycle, n_cycles=n // cycle)

    def scaled(self, factor: float) -> Sample:
        """The same in another unit; `factor` > 0."""
        return replace(self, value=self.value * factor, error=self.error * factor)

    def plus(self, constant: float) -> Sample:
        """With a constant of the same unit added."""
        return replace(self, value=self.value + constant)


def _error_by_cycle(steps: Sequence[float], cycle: int) -> float | None:
    """Standard error of the mean by the sums of whole cycles; None where these are too few.

    A pool of four that falls short waits once in four steps: of 16 to 24 such steps the mean varies
    by half of what the correlations of neighbours let expect (simulated, 200 windows each). Of a
    pool whose steps drift besides (correlation 0.8 to 0.9), sums taken as independent made 6 to 9 %
    of differences of two rounds false; with their own correlation counted, 2 to 5 %.
    """
    n = len(steps) // max(1, cycle)
    if cycle < 2 or n < MIN_CYCLES or len(steps) % cycle:
        return None
    sums = [math.fsum(steps[i * cycle : (i + 1) * cycle]) for i in range(n)]
    middle = math.fsum(sums) / n
    off = [x - middle for x in sums]
    total = math.fsum(x * x for x in off)
    # Few cycles tell their own spread badly: allowed for as by a t quantile.
    variance = total / (n - 1) * (n + 1) / (n - 1) * _more_by(_alike(off, total))
    return math.sqrt(variance / n) / cycle


def _alike(off: Sequence[float], total: float) -> float:
    """Correlation of neighbours, without the bias of a short series; 0 where it can't be told."""
    n = len(off)
    if n < MIN_CORRELATED or total == 0.0:
        return 0.0
    return min((_correlation(off, 1) / total + 1 / n) / (1 - 3 / n), MAX_CORRELATION)


def _more_by(alike: float) -> float:
    """How much more the mean's variance is where neighbours are alike; 1 where they are not."""
    return (1 + alike) / (1 - alike) if alike > 0 else 1.0


def _correlation(off: Sequence[float], lag: int) -> float:
    return math.fsum(a * b for a, b in zip(off, off[lag:], strict=False))


def _within_cycles(off: Sequence[float], total: float) -> float:
    """How much less the mean of unlike neighbours varies than that of independent steps."""
    most = min(LONGEST_CYCLE, len(off) // 3)
    found = math.fsum(
        (1 - lag / (most + 1)) * _correlation(off, lag) / total for lag in range(1, most + 1)
    )
    return min(1.0, max(LEAST_PART, 1 + 2 * found))


ByRound = Sequence[tuple[int, Sample]]  # (round, what its window gave)


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """What is known of how windows of one run vary, besides what their own steps tell."""

    variance: float = 0.0  # of a window's mean / the mean, as several windows of the run showed it
    free: int = 0  # degrees of freedom it was seen with

    @staticmethod
    def of(trials: Iterable[Sequence[Sample]]) -> Noise:
        """The median trial's, of those with two windows or more: a wild one must not blind us."""
        variances: list[float] = []
        free = 0
        for samples in trials:
            if len(samples) < 2 or (middle := _mean(samples)) <= 0:
                continue
            own = len(samples) - 1
            # The median of a variance estimate lies below its mean (Wilson and Hilferty, 1931).
            median = (1 - 2 / (9 * own)) ** 3
            spread = math.fsum((x.value / middle - 1) ** 2 for x in samples)
            variances.append(spread / own / median)
            free += own
        return Noise(variance=statistics.median(variances) if variances else 0.0, free=free)

    @property
    def weight(self) -> int:
        """Windows that what was known before a trial counts for."""
        return RECORDED_DF + min(self.free, PRIOR_DF - RECORDED_DF)

    def mean(self, samples: Sequence[Sample]) -> Estimate:
        """Mean of windows with its 95 % interval. Raises ValueError on no samples."""
        if not samples:
            raise ValueError("no samples")
        return self._estimate(
            [x.value for x in samples], prior=self._prior(samples), known=self._known(samples)
        )

    def difference(self, a: ByRound, b: ByRound) -> Estimate | None:
        """A - b: paired over two or more common rounds, else independently; None if empty."""
        in_a, in_b = dict(a), dict(b)
        if not in_a or not in_b:
            return None
        common = [number for number in in_a if number in in_b]
        if len(common) >= 2:
            pairs = [(in_a[n], in_b[n]) for n in common]
            prior = self._prior([x for x, _ in pairs]) + self._prior([y for _, y in pairs])
            known = min(self._known([x for x, _ in pairs]), self._known([y for _, y in pairs]))
            return self._estimate(
                [x.value - y.value for x, y in pairs], prior=IN_ROUND * prior, known=known
            )
        of_a, of_b = list(in_a.values()), list(in_b.values())
        one, other = self.mean(of_a), self.mean(of_b)
        n = min(one.n, other.n)
        margin = math.hypot(one.margin, other.margin)
        return Estimate.around(one.value - other.value, margin, n=n)

    def change(self, a: float, b: float) -> Estimate:
        """A / b - 1 of shares of the step, each seen in one window: they vary as its step does."""
        margin = t95(self.weight) * math.sqrt(2 * self._variance(BETWEEN**2)) * a / b
        return Estimate.around(a / b - 1, margin, n=1)

    def _prior(self, samples: Sequence[Sample]) -> float:
        """Variance to expect of one more window like these."""
        middle = _mean(samples)
        if middle == 0.0:
            return 0.0
        errors = math.fsum(x.error**2 for x in samples) / len(samples) / middle**2
        # However quiet the run's other windows are, what these show by themselves stays.
        return max(self._variance(BETWEEN**2 + errors), errors) * middle**2

    def _variance(self, recorded: float) -> float:
        """Relative variance of a window: as recorded elsewhere, and as this run has shown it."""
        return (RECORDED_DF * recorded + self.free * self.variance) / (RECORDED_DF + self.free)

    def _known(self, samples: Sequence[Sample]) -> float:
        """Degrees of freedom that `_prior` is known with (F. E. Satterthwaite's, 1946).

        Whole cycles tell what a window is off by within itself, and each of them anew; what their
        neighbours tell of other steps is as uncertain as what lies between windows.
        """
        middle, n_cycles = _mean(samples), min(x.n_cycles for x in samples)
        if middle == 0.0 or n_cycles - 1 <= self.weight:
            return self.weight
        errors = math.fsum(x.error**2 for x in samples) / len(samples) / middle**2
        whole = max(self._variance(BETWEEN**2 + errors), errors)
        squares = (whole - errors) ** 2 / self.weight + errors**2 / (n_cycles - 1)
        return whole**2 / squares

    def _estimate(self, values: Sequence[float], *, prior: float, known: float) -> Estimate:
        n = len(values)
        value = math.fsum(values) / n
        free = self.weight + n - 1
        own = math.fsum((x - value) ** 2 for x in values)
        margin = t95(known + n - 1) * math.sqrt((self.weight * prior + own) / free / n)
        return Estimate.around(value, margin, n=n)


def _mean(samples: Sequence[Sample]) -> float:
    return math.fsum(x.value for x in samples) / len(samples)
