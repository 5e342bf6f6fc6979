"""What one trial of a sweep came to: step times with their noise, and what it took besides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

from loaderdoctor.estimate import ByRound, Estimate, Noise, Sample
from loaderdoctor.settings import Settings
from loaderdoctor.tryout import Measurement, Resources, Trial
from loaderdoctor.tryout.comparing import ONE_MACHINE, BaselineRatio


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

    @property
    def ranked_ms(self) -> float:
        """What it is ranked by; infinite where nothing was measured."""
        return self.cost_ms.value if self.cost_ms is not None else float("inf")


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


def size_factor(base_samples: float | None, per_step: float | None) -> float:
    """From time per step to time for as many samples as the baseline's step has."""
    return base_samples / per_step if base_samples and per_step else 1.0


def shared(trials: Sequence[Trial], results: Sequence[Result]) -> tuple[Result, ...]:
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
    factor = size_factor(base_samples, per_step)
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

    Without the confirmation, which must not change what it was to confirm, and without windows that
    held an end of the loop's epochs alone: nothing of the trial's loader ended there.
    """
    measurements = [
        measurement
        for measurement in trial.measurements
        if measurement.phase != "confirm"
        if measurement.window.mode != "trial"
        or measurement.window.boundary_ns is not None
        or measurement.window.crossed_steps
        or trial.settings.keeps_loaders
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
