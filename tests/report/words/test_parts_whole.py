"""Times and shares are of a step, of a batch where nothing trains, or of a window without steps."""

from __future__ import annotations

from dataclasses import replace

from loaderdoctor.attribution.combine import facts_of_trace
from loaderdoctor.attribution.verdict import judge_trace
from loaderdoctor.facts import Facts
from loaderdoctor.findings.rules import find
from loaderdoctor.report import model
from loaderdoctor.report.build import step_of
from loaderdoctor.report.console import console_text
from loaderdoctor.report.html import html
from loaderdoctor.report.words import whole_of
from tests.findings.builders import copy_facts, shares, trace, with_exposed
from tests.report import samples


def traced(**changes: object) -> Facts:
    """A trace alone, of a loop that waits for copies from pageable memory."""
    copies = copy_facts(source="pageable", exposed_ms_per_step=3.0, busy_ms_per_step=2.9)
    seen = trace(shares=shares(copy=0.3), copies=(copies,), **changes)
    return facts_of_trace(seen)


def report(facts: Facts) -> model.Report:
    assert facts.trace is not None
    bound, severity = judge_trace(facts.trace)
    return samples.verdict(bound, severity, facts=facts, environment=None)


def test_a_trace_without_steps_has_shares_of_its_window_and_no_figure_of_a_step() -> None:
    facts = traced(step_clock="window", n_steps=0)
    shown = report(facts)
    assert shown.verdict.bound == "unknown"
    assert shown.step.wall_ms is None
    assert shown.step.window_ms == facts.trace.wall_ms if facts.trace is not None else False
    text = console_text(shown)
    assert "The recorded window" in text
    assert "a step ·" not in text
    assert "0 steps" not in text
    assert "marks no steps" in html(shown)


def test_a_trace_without_steps_has_no_findings_a_step_and_one_with_steps_has() -> None:
    assert find(traced(step_clock="window", n_steps=0)) == ()
    assert find(traced()) != ()


def test_a_step_is_a_step_and_a_batch_of_inference_a_batch() -> None:
    shown = samples.healthy()
    assert (whole_of(shown).title, whole_of(shown).unit) == ("The step", "a step")
    inference = samples.verdict(
        "compute", "none", facts=replace(with_exposed(), trains=False, calls_model=True)
    )
    assert whole_of(inference).unit == "a batch"
    assert step_of(with_exposed()).window_ms is None
