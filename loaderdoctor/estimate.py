"""Measured quantities with their noise: an estimate never travels without its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

# Two-sided 95 % quantiles of Student's t for 1..30 degrees of freedom (standard table); beyond
# that the normal quantile is within 2 %. Kept here so that the core needs no scipy.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_NORMAL95 = 1.960

Interval = tuple[float, float]


def t95(degrees_of_freedom: float) -> float:
    """Two-sided 95 % quantile of Student's t; fractional degrees round down (wider, so safe)."""
    whole = max(1, math.floor(degrees_of_freedom))
    return _T95[whole - 1] if whole <= len(_T95) else _NORMAL95


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
