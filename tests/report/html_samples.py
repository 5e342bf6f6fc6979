"""Pages for the tests of report.html: large, hostile, and with every picture."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any, Literal

import msgspec

from loaderdoctor.attribution.pictures import MAX_BATCHES
from loaderdoctor.attribution.timeline import MAX_SPANS, MAX_WORKER_ROWS
from loaderdoctor.facts.step import (
    Doing,
    SampleTimes,
    StepTimeline,
    Strip,
    TimelineRow,
    WaitSeries,
)
from loaderdoctor.report import model
from loaderdoctor.report.charts import Prediction
from loaderdoctor.report.charts.figures import HtmlExtras, TracedSteps
from tests.report import sample_facts, samples

HOSTILE = (
    "<script>alert(1)</script>'\"><img src=x onerror=alert(2)> & $x^2$ \x1b[31m\u202e{{ 7*7 }}"
)
# Values of these keys are words of ours, from closed sets.
_OURS = {"schema", "command", "bound", "severity", "status", "predicted_from", "phase"}


def hostile(report: model.Report) -> model.Report:
    """The report with every text of the user's replaced, names within mappings too."""
    return msgspec.convert(_spoiled(msgspec.to_builtins(report)), model.Report)


def _spoiled(value: Any, *, keys: bool = False) -> Any:
    if isinstance(value, dict):
        return {
            (name + HOSTILE if keys else name): (
                item if name in _OURS else _spoiled(item, keys=name in _NAMED)
            )
            for name, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_spoiled(item) for item in value]
    return value + HOSTILE if isinstance(value, str) else value


_NAMED = {"evidence", "environment", "transforms", "by_loader_ms"}


def many_trials(n: int = 60) -> model.Report:
    """A sweep of `n` trials over workers and prefetch factors."""
    trials = [samples.trial("as is", 40.0, settings={"num_workers": 0})]
    for i in range(1, n):
        workers, prefetch = 1 + i % 12, 2 ** (1 + i // 12)
        trials.append(
            samples.trial(
                f"{workers} workers, prefetch {prefetch}, persistent, pinned, non_blocking",
                40.0 / workers + 0.1 * prefetch,
                settings={"num_workers": workers, "prefetch_factor": prefetch},
            )
        )
    fastest = min(range(n), key=lambda i: trials[i].step_ms or 0.0)
    return samples.input_bound(
        facts=sample_facts.facts(command="sweep"),
        trials=tuple(trials),
        best=model.Best(trial=fastest, tied_with=(11,)),
    )


def extras(label: str | None = None) -> HtmlExtras:
    """Every picture there can be. `label` names settings."""
    spans = tuple((i * 0.01, 0.004, 1.0 if i % 2 else 0.5) for i in range(1200))
    step = StepTimeline(
        which="typical",
        number=3,
        n_steps=20,
        wall_ms=13.0,
        rows=(
            TimelineRow(name="counted as", strips=(Strip(doing="input", spans=((0, 11, 1.0),)),)),
            TimelineRow(name="kernels", strips=(Strip(doing="compute", spans=spans),)),
            *(
                TimelineRow(
                    name=f"worker {i}", strips=(Strip(doing="fetch", spans=((i, 4.0, 1.0),)),)
                )
                for i in range(8)
            ),
        ),
        n_workers_left_out=3,
    )
    waits = tuple(9.0 if i % 4 == 0 else 0.2 for i in range(400))
    return HtmlExtras(
        made_at=1_700_000_000.0,
        traced=(TracedSteps(label=label, steps=(step, step)),),
        advised=TracedSteps(
            label=label or "num_workers=4", steps=(replace(step, wall_ms=step.wall_ms / 4),)
        ),
        waits=WaitSeries(
            source="plain windows",
            waits_ms=waits,
            windows=(200,),
            epochs=(0, 120),
            cycle=4,
            cycle_means_ms=tuple((at, 2.4) for at in range(0, 400, 4)),
            n_left_out=12,
        ),
        samples=SampleTimes(
            edges_ms=tuple(0.1 * 1.2**i for i in range(41)),
            counts=tuple(range(40)),
            n=780,
            logarithmic=True,
            median_ms=1.0,
            p95_ms=40.0,
            max_ms=100.0,
        ),
        predictions=(
            Prediction(
                label=label or "4 workers", predicted_ms=2.0, measured_ms=2.4, measured_ci_ms=(2, 3)
            ),
            Prediction(label="8 workers", predicted_ms=1.9, measured_ms=1.7, measured_ci_ms=None),
        ),
    )


def crowded() -> HtmlExtras:
    """Every picture at the limits attribution sets, of times as irregular as measured ones."""
    random = Random(0)

    def spans(n: int, wall_ms: float) -> tuple[tuple[float, float, float], ...]:
        at = sorted(random.uniform(0, wall_ms) for _ in range(n))
        return tuple((t, random.uniform(0, wall_ms / n), random.random()) for t in at)

    def step(which: Literal["typical", "slowest"], wall_ms: float) -> StepTimeline:
        counted: tuple[Doing, ...] = ("input", "compute", "copy", "host")
        device = ("training thread", "copies", "kernels")
        return StepTimeline(
            which=which,
            number=random.randrange(20),
            n_steps=20,
            wall_ms=wall_ms,
            rows=(
                TimelineRow(
                    name="counted as",
                    strips=tuple(Strip(doing=d, spans=spans(MAX_SPANS, wall_ms)) for d in counted),
                ),
                *(
                    TimelineRow(
                        name=name,
                        strips=(Strip(doing="compute", spans=spans(MAX_SPANS, wall_ms)),),
                    )
                    for name in device
                ),
                *(
                    TimelineRow(
                        name=f"worker {i}",
                        strips=(
                            Strip(doing="fetch", spans=spans(12, wall_ms)),
                            Strip(doing="collate", spans=spans(12, wall_ms)),
                        ),
                    )
                    for i in range(MAX_WORKER_ROWS)
                ),
            ),
            n_workers_left_out=7,
        )

    some = extras()
    assert some.waits is not None
    waits = tuple(random.expovariate(0.3) for _ in range(MAX_BATCHES))
    means = tuple((at, random.uniform(2, 4)) for at in range(0, MAX_BATCHES, 4))
    return replace(
        some,
        traced=(
            TracedSteps(label="as is", steps=(step("typical", 41.37), step("slowest", 223.9))),
            TracedSteps(label="8 workers, pinned", steps=(step("typical", 9.618),)),
        ),
        waits=replace(some.waits, waits_ms=waits, cycle_means_ms=means),
        predictions=tuple(
            Prediction(
                label=f"{n} workers, prefetch {2 + n % 3}, persistent, pinned, non_blocking",
                predicted_ms=random.uniform(2, 40),
                measured_ms=random.uniform(2, 40),
                measured_ci_ms=(1.71, 44.9),
            )
            for n in range(12)
        ),
    )


def long_sweep(n: int = 60) -> model.Report:
    """A sweep with a GPU's pictures too, and windows of every trial, all figures irregular."""
    random = Random(1)
    report = many_trials(n)
    trials = tuple(
        msgspec.structs.replace(
            trial,
            step_ms=(trial.step_ms or 1.0) * random.uniform(0.9, 1.1),
            window_ms=tuple(random.uniform(2, 40) for _ in range(8)),
        )
        for trial in report.trials
    )
    return msgspec.structs.replace(report, trials=trials, gpu=samples.input_bound().gpu)
