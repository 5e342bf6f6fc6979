"""Trials that answer what a finding expects: other numbers of threads do, other numerics don't."""

from __future__ import annotations

from dataclasses import replace

from loaderdoctor.findings.model import Finding, Kind, Prediction, Severity
from loaderdoctor.report import model
from loaderdoctor.report.tested import answered, own_settings
from loaderdoctor.settings import Settings
from tests.findings.builders import healthy, machine


def trial(settings: Settings, step_ms: float) -> model.Trial:
    return model.Trial(
        settings=settings.as_dict(),
        label=settings.label(),
        status="ok",
        step_ms=step_ms,
        step_ms_ci=(0.95 * step_ms, 1.05 * step_ms),
        n_windows=4,
        changes_numerics=bool(settings.numerics),
    )


def finding() -> Finding:
    prediction = Prediction(
        sentence="With fewer threads it should be faster.", setting="num_threads"
    )
    return Finding(
        kind=Kind.THREAD_OVERSUBSCRIPTION,
        severity=Severity.UNCERTAIN,
        share=0.5,
        summary="Two threads fight.",
        predictions=(prediction,),
    )


def test_a_trial_of_threads_answers_what_was_expected_of_them() -> None:
    facts = replace(healthy(), machine=machine(n_threads=2))
    assert own_settings(facts)["num_threads"] == 2
    trials = (trial(Settings(), 30.0), trial(Settings(num_threads=1), 6.0))
    (said,) = answered((finding(),), facts, trials)
    assert "Tried in this run (1 thread): 6.00 ms a step against 30.0 ms as it is" in said.summary
    assert "should be faster" not in said.summary


def test_a_trial_that_also_changes_other_numerics_answers_nothing() -> None:
    facts = replace(healthy(), machine=machine(n_threads=2))
    trials = (trial(Settings(), 30.0), trial(Settings(num_threads=1, amp=True), 6.0))
    (said,) = answered((finding(),), facts, trials)
    assert "should be faster (predicted, not tried in this run)" in said.summary
