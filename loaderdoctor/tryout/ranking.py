"""Trials -> step times with their noise, the best, what ties with it, and what to recommend.

Comparisons are paired by round where two trials share rounds (drift cancels), and decided by the
interval (see `noise.Noise`), never by the means alone. The best of many noisy means looks
better than it is, so ties allow for the number of trials compared, and the candidate (the simplest
of those tied with the best) has its gain over the loop's own settings measured in confirmation
windows taken after it was chosen. Those decide whether it is recommended.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

from loaderdoctor.estimate import ByRound, Estimate, Noise, Sample
from loaderdoctor.findings.model import MIN_GAIN_SHARE
from loaderdoctor.settings import Settings
from loaderdoctor.tryout.comparing import (
    ONE_MACHINE,
    BaselineRatio,
    is_tied,
    widening,
)
from loaderdoctor.tryout.simplicity import equally_fast, simplest
from loaderdoctor.tryout.trials import Measurement, Resources, Trial

# With fewer confirmation pairs than this the paired rounds speak (see `gain`).
MIN_PAIRS = 3
# Of what the fastest gains, a simpler setting must itself have shown this part, whatever noise
# would allow it: else what hardly differs from the loop as it is stands for what does, is found to
# gain nothing when it is confirmed, and the answer is "nothing". Of 10 simulated sweeps of a loop
# that workers make 1.25 times as fast, at a noise of 8 %, that was the answer of 5, now of 1.
OF_GAIN = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one trial came to. None where it was not recorded; times per step in milliseconds."""

    index: int
    settings: Settings
    status: Literal["ok", "failed", "skipped"]
    reason: str | None
    wall_ms: Estimate | None  # within-epoch + boundary / steps_per_epoch
    within_ms: Estimate | None
    boundary_ms: float | None
    by_round: ByRound  # (round, cost in milliseconds), of the windows that count
    samples_per_s: float | None
    epoch_s: float | None
    resources: Resources
    calibrated_only: bool  # dropped after the first round: never the best, perhaps tied
    trace_path: str | None
    # wall_ms for as many samples as the loop's own step has; on a cluster by its node's ratio
    cost_ms: Estimate | None = None
    window_ms: tuple[float, ...] = ()  # on a cluster as measured, else as in `by_round`
    on_cluster: bool = False
    apart: bool = False  # on a machine unlike the others'


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
        return self.gain_share.low > 0 and self.gain_share.value >= MIN_GAIN_SHARE

    @property
    def recommended(self) -> int | None:
        """The trial to recommend; None where nothing is worth changing."""
        return self.candidate if self.worth_changing else None


def rank(trials: Sequence[Trial], *, own: Settings, steps_per_epoch: int | None) -> Ranking:
    """Everything that can be said about the trials so far; also after an interruption."""
    baseline_ratio = baseline_ratio_of(trials[0], steps_per_epoch) if trials else ONE_MACHINE
    noise = Noise.of(
        [x for _, x in wall_samples(trial, trial.ranked, steps_per_epoch, baseline_ratio)]
        for trial in trials
        if trial.status == "ok" and not trial.apart
        if trial.index or baseline_ratio is ONE_MACHINE  # exact by definition
    )
    base = samples_per_step(trials[0]) if trials else None
    results = _shared(
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
    best = min(ranked, key=_wall)
    tied = tuple(
        r.index
        for r in compared
        if r is not best and is_tied(r.by_round, best.by_round, noise, len(compared))
    )
    own_wall = _wall(results[0])
    if _wall(best) > own_wall * (1 - MIN_GAIN_SHARE):
        candidate = 0
    else:
        slower = {
            r.index: diff
            for r in ranked
            if r.index and r is not best
            if (diff := noise.difference(r.by_round, best.by_round)) is not None
        }
        equal = equally_fast(_wall(best), slower, wider=widening(len(compared) - 1))
        least_ms = own_wall - OF_GAIN * (own_wall - _wall(best))
        choices = [best, *(r for r in ranked if r.index in equal and _wall(r) <= least_ms)]
        candidate = choices[simplest([r.settings for r in choices], own)].index
    gain_ms, confirmed = gain(trials, results, candidate, noise, steps_per_epoch, baseline_ratio)
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
    )
    if ranking.worth_changing:  # the confirmation tells apart what the rounds could not
        ranking = replace(ranking, tied_with=tuple(index for index in tied if index))
    return ranking


def is_choice(trial: Trial) -> bool:
    """Whether one could train with it instead of the loop as it is.

    Not what only answers a question (a part of the data), nor another loop.
    """
    return trial.index == 0 or not (
        trial.same_as is not None or trial.settings.probes or trial.other_loop or trial.apart
    )


def baseline_ratio_of(own: Trial, steps_per_epoch: int | None) -> BaselineRatio:
    """Of a sweep on a cluster; ONE_MACHINE where trial 0 was measured in no group."""
    if all(measurement.group is None for measurement in own.measurements):
        return ONE_MACHINE
    timed, counted = (
        [
            (measurement, x.value)
            for measurement, (_, x) in zip(
                measurements, wall_samples(own, measurements, steps_per_epoch), strict=True
            )
        ]
        for measurements in (own.measurements, own.ranked)
    )
    return BaselineRatio.of(timed, counted)


def samples_per_step(trial: Trial) -> float | None:
    """Samples in one of its steps; None where not known."""
    if trial.samples_per_step is not None:
        return trial.samples_per_step
    n_steps = sum(measurement.window.n_steps for measurement in trial.measurements)
    n_samples = sum(measurement.window.n_samples for measurement in trial.measurements)
    return n_samples / n_steps if n_steps and n_samples else None


def _factor(base_samples: float | None, per_step: float | None) -> float:
    """From time per step to time for as many samples as the baseline's step has."""
    return base_samples / per_step if base_samples and per_step else 1.0


def _shared(trials: Sequence[Trial], results: Sequence[Result]) -> tuple[Result, ...]:
    """Trials that are identical here get the figures of the one that was run."""
    return tuple(
        one
        if trial.same_as is None
        else replace(results[trial.same_as], index=one.index, settings=one.settings)
        for trial, one in zip(trials, results, strict=True)
    )


def result(
    trial: Trial,
    noise: Noise,
    steps_per_epoch: int | None,
    *,
    base_samples: float | None = None,
    baseline_ratio: BaselineRatio = ONE_MACHINE,
) -> Result:
    """One trial's figures; `base_samples` are those of the step it is compared with."""
    counted = trial.ranked
    walls = wall_samples(trial, counted, steps_per_epoch)
    compared = wall_samples(trial, counted, steps_per_epoch, baseline_ratio)
    cost = noise.mean([x for _, x in compared]) if compared else None
    wall = noise.mean([x for _, x in walls]) if walls else None
    per_step = samples_per_step(trial)
    factor = _factor(base_samples, per_step)
    n_epoch = trial.steps_per_epoch or steps_per_epoch
    traced = next((w.trace_path for w in trial.profiles if w.trace_path), None)
    return Result(
        index=trial.index,
        settings=trial.settings,
        status=trial.status,
        reason=trial.reason,
        wall_ms=wall,
        within_ms=noise.mean([v.times.within for v in counted]) if counted else None,
        boundary_ms=boundary_ms(trial),
        by_round=tuple((number, x.scaled(factor)) for number, x in compared),
        samples_per_s=per_step / wall.value * 1000 if per_step and wall else None,
        epoch_s=wall.value * n_epoch / 1000 if wall and n_epoch else None,
        resources=trial.resources,
        calibrated_only=trial.dropped,
        trace_path=traced,
        cost_ms=cost.scaled(factor) if cost else None,
        window_ms=tuple(x.value for _, x in walls)
        if baseline_ratio is not ONE_MACHINE
        else tuple(x.value * factor for _, x in compared),
        on_cluster=baseline_ratio is not ONE_MACHINE,
        apart=trial.apart,
    )


def boundary_ms(trial: Trial) -> float | None:
    """One epoch boundary, mean over the measurements that timed one; never below 0.

    Without the confirmation, which must not change what it was to confirm.
    """
    measurements = [
        measurement for measurement in trial.measurements if measurement.phase != "confirm"
    ]
    seen = [ms for measurement in measurements if (ms := measurement.boundary_ms) is not None]
    return max(0.0, fmean(seen)) if seen else None


def wall_samples(
    trial: Trial,
    measurements: Sequence[Measurement],
    steps_per_epoch: int | None,
    baseline_ratio: BaselineRatio = ONE_MACHINE,
) -> list[tuple[int, Sample]]:
    """(round, wall per step) of these windows of a trial, one boundary spread over an epoch.

    A boundary is timed once or few times and is the same cost each epoch, so every window
    carries the trial's mean boundary. With a baseline ratio, windows of other nodes count as
    their own loop's do.
    """
    boundary = boundary_ms(trial)
    n_epoch = trial.steps_per_epoch or steps_per_epoch
    spread = boundary / n_epoch if boundary is not None and n_epoch else 0.0
    return [
        (
            measurement.round,
            measurement.times.within.plus(spread).scaled(baseline_ratio.factor(measurement)),
        )
        for measurement in measurements
    ]


def gain(
    trials: Sequence[Trial],
    results: Sequence[Result],
    candidate: int,
    noise: Noise,
    steps_per_epoch: int | None,
    baseline_ratio: BaselineRatio = ONE_MACHINE,
) -> tuple[Estimate | None, bool]:
    """(loop's own minus candidate, whether confirmation windows say so), per step.

    Both trials' `confirm` measurements belong to this candidate: only it was confirmed.
    """
    if candidate == 0:
        return None, False
    own = wall_samples(trials[0], trials[0].of("confirm"), steps_per_epoch, baseline_ratio)
    chosen = trials[candidate]
    factor = _factor(samples_per_step(trials[0]), samples_per_step(chosen))
    other = [
        (number, x.scaled(factor))
        for number, x in wall_samples(chosen, chosen.of("confirm"), steps_per_epoch, baseline_ratio)
    ]
    if len({n for n, _ in own} & {n for n, _ in other}) >= MIN_PAIRS:
        return noise.difference(own, other), True
    return noise.difference(results[0].by_round, results[candidate].by_round), False


def drift(baseline: Trial) -> float | None:
    """How the loop's own step time changed from the first ranked window to the last.

    On a cluster that of the group where it changed most.
    """
    groups: dict[int | None, list[Measurement]] = {}
    for measurement in (*baseline.of("rank"), *baseline.of("confirm")):
        groups.setdefault(measurement.group, []).append(measurement)
    changes = [
        timed[-1].times.within_ms / timed[0].times.within_ms
        for timed in groups.values()
        if len(timed) > 1
    ]
    return max(changes, key=lambda change: abs(change - 1), default=None)


def _wall(one: Result) -> float:
    return one.cost_ms.value if one.cost_ms is not None else float("inf")
