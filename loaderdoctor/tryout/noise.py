"""Intervals for few samples: each trial's own spread, steadied by the spread of all trials.

A sweep visits each trial three to eight times; a spread from three samples is itself so uncertain
that its interval (4.3 standard errors) hides a doubling. All trials run in the same loop on the
same machine, so their relative spread is much the same: the usual variance enters each trial's own
as if it were PRIOR_DF samples more (a moderated t interval: G. K. Smyth, "Linear models and
empirical Bayes methods", 2004). A trial that really is noisier keeps most of its own noise.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from loaderdoctor.estimate import Estimate, t95

# Weight of the pooled spread, in samples. Smyth's data-driven values are mostly between 3 and 5.
PRIOR_DF = 4

ByRound = Sequence[tuple[int, float]]  # (round, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """The usual relative variance of one window among the trials of a sweep."""

    variance: float  # of value / mean
    weight: int  # degrees of freedom it enters with; 0 where no trial was visited twice

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
