"""What report.html shows beyond report.json, taken from attribution: one function per command."""

from __future__ import annotations

import time
from collections.abc import Iterator

from loaderdoctor.attribution.pictures import sample_times, waits_of_trace, waits_of_windows
from loaderdoctor.attribution.step import usable
from loaderdoctor.attribution.timeline import step_timelines, timelines_of_window
from loaderdoctor.attribution.trace_facts import Attributed
from loaderdoctor.diagnosis.advised import Advised
from loaderdoctor.diagnosis.analysis import Analysis
from loaderdoctor.facts.pictures import SampleTimes, StepTimeline
from loaderdoctor.instrument.wire.protocol import Observed, WindowDone
from loaderdoctor.instrument.wire.worker_log import WorkerLog
from loaderdoctor.report.charts.subjects import Prediction
from loaderdoctor.report.html.figures import HtmlExtras
from loaderdoctor.report.html.timelines import TracedSteps
from loaderdoctor.report.model import Report
from loaderdoctor.report.words.changes import changes_of
from loaderdoctor.sweep.evidence import SweepEvidence
from loaderdoctor.tryout.ablating import LoopEvidence


def extras_of_trace(attributed: Attributed) -> HtmlExtras:
    """Of `analyze`: what the trace alone shows."""
    return HtmlExtras(
        made_at=time.time(),
        traced=_traced(step_timelines(attributed)),
        waits=waits_of_trace(attributed),
    )


def extras_of_diagnosis(
    report: Report,
    evidence: LoopEvidence | None,
    analysis: Analysis | None,
    advised: Advised | None = None,
) -> HtmlExtras:
    """Of `diagnose`: the profiled window with the workers in it, plain waits, predictions.

    And a step of the window with what is advised, where that was traced.
    """
    if evidence is None or analysis is None:
        return HtmlExtras(made_at=time.time())
    plain = evidence.steady
    steps: tuple[StepTimeline, ...] = ()
    if analysis.attributed is not None and evidence.profiled is not None:
        steps = timelines_of_window(analysis.attributed, evidence.profiled, analysis.log)
    return HtmlExtras(
        made_at=time.time(),
        traced=_traced(steps),
        advised=_advised(report, advised, analysis.log),
        waits=waits_of_windows(evidence.observed, plain),
        samples=_samples(analysis.log, plain, evidence.observed),
        predictions=tuple(_predictions(report, analysis)),
    )


def extras_of_sweep(report: Report, evidence: SweepEvidence) -> HtmlExtras:
    """Of `sweep`: steps of the loop as it is and of the best trial, and the loop's own waits."""
    outcome = evidence.sweep.outcome if evidence.sweep is not None else None
    plain = [w for w in outcome.plain if usable(w)] if outcome is not None else []
    best = report.best.trial if report.best is not None else 0
    own, other = (
        TracedSteps(label=report.trials[i].label, steps=evidence.traces[i].steps[:1])
        if i in evidence.traces and evidence.traces[i].steps
        else None
        for i in (0, best)
    )
    return HtmlExtras(
        made_at=time.time(),
        traced=(own,) if own is not None else (),
        advised=other if best else None,
        waits=waits_of_windows(evidence.observed, plain),
        samples=_samples(evidence.log, plain, evidence.observed),
    )


def _advised(report: Report, advised: Advised | None, log: WorkerLog | None) -> TracedSteps | None:
    """The winner's step, where it is the change that the report speaks of."""
    first = next(iter(changes_of(report.recommendations)), None)
    if advised is None or first is None or first.measured_ms is None:
        return None
    changed = advised.settings.changed()
    if any(changed.get(row.setting) != row.to for row in first.rows):
        return None
    steps = advised.steps(log)[:1]
    return TracedSteps(label=first.words(), steps=steps) if steps else None


def _traced(steps: tuple[StepTimeline, ...]) -> tuple[TracedSteps, ...]:
    return (TracedSteps(label=None, steps=steps),) if steps else ()


def _samples(
    log: WorkerLog | None, plain: list[WindowDone], observed: Observed
) -> SampleTimes | None:
    if log is None or not plain:
        return None
    window = max(plain, key=lambda w: w.end_ns - w.start_ns)
    return sample_times(
        log,
        window.start_ns,
        window.end_ns,
        fetches=window.fetches,
        loaders=observed.loaders,
    )


def _predictions(report: Report, analysis: Analysis) -> Iterator[Prediction]:
    """Candidates that a trial measured, in the order tried."""
    predicted = {
        c.settings.label(): c.predicted_step_ms
        for c in analysis.prescription.candidates
        if c.predicted_step_ms is not None
    }
    for trial in report.trials:
        expected = predicted.get(trial.label)
        if expected is not None and trial.step_ms is not None and trial.settings != {}:
            yield Prediction(
                label=trial.label,
                predicted_ms=expected,
                measured_ms=trial.step_ms,
                measured_ci_ms=trial.step_ms_ci,
            )
