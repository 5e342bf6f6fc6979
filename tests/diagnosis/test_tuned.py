"""What `--tune` tried is told as that by the findings and the advice of the same run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from loaderdoctor.advice.prescription import prescribe
from loaderdoctor.diagnosis.prescribe import prescribed_rows
from loaderdoctor.diagnosis.tuned import told_in_findings, told_in_rows
from loaderdoctor.findings.rules import find
from loaderdoctor.instrument.wire.measured import TriedRecord, TuningRecord
from loaderdoctor.report.build import Judged, Tried, build_report
from loaderdoctor.report.console import console_text
from loaderdoctor.settings import Settings
from tests.findings.builders import with_exposed
from tests.findings.input_facts import BY_ITSELF, NO_WORKERS

FACTS = with_exposed(input_=0.7, loaders=NO_WORKERS, workers=BY_ITSELF)
OWN = Settings(num_workers=0, pin_memory=False, in_order=True)
WANTED = replace(OWN, num_workers=3, prefetch_factor=2, persistent_workers=False)
DEAR = TriedRecord(settings=WANTED, verdict="too-dear", at_step=137, step_ms=14.5, against_ms=10.1)
FIGURES = "14.5 ms a step next to 10.1 ms before"
GIVEN_UP = "given up: trying it on would have cost too much"


def told(*tried: TriedRecord, chosen: Settings | None = None) -> str:
    """The console report, in one line, of a run that tuned so far."""
    tuning = TuningRecord(
        loader="train.py:14", exact=True, own=OWN, chosen=chosen, n_steps=900, tried=tried
    )
    findings = find(FACTS)
    rows = prescribed_rows(FACTS, prescribe(FACTS, findings), None)
    report = build_report(
        FACTS,
        target="train.py",
        judged=Judged(
            bound="input",
            severity="high",
            findings=told_in_findings(findings, FACTS, tuning),
        ),
        tried=Tried(recommendations=told_in_rows(rows, tuning)),
    )
    return " ".join(console_text(report).split())


def test_what_was_given_up_is_told_wherever_it_is_named() -> None:
    text = told(DEAR)
    assert "not tried" not in text
    assert (
        f"Tried in this run (num_workers=3): 14.5 ms a step against 10.1 ms before, {GIVEN_UP}."
        in text
    )
    verdict, changes = text.split("Findings", 1)
    assert f"tried in this run: {FIGURES}, {GIVEN_UP}." in verdict
    assert f"tried in this run: {FIGURES}, {GIVEN_UP}" in changes.split("What to change", 1)[1]


def test_what_was_given_up_before_any_window_has_no_figures() -> None:
    text = told(structs.replace(DEAR, step_ms=None))
    assert "not tried" not in text
    assert f"(predicted; tried in this run (num_workers=3): {GIVEN_UP})" in text
    assert f"tried in this run: {GIVEN_UP}." in text


def test_what_was_no_faster_is_not_advised_again() -> None:
    text = told(structs.replace(DEAR, verdict="slower"))
    assert "14.5 ms a step against 10.1 ms before, no faster." in text
    assert "num_workers=3 (now 0)" in told(DEAR)
    assert "num_workers=3 (now 0)" not in text


def test_what_could_not_be_tried_was_not_tried() -> None:
    text = told(
        structs.replace(DEAR, verdict="refused", step_ms=None, reason="the machine is full")
    )
    assert "it was not tried here" in text and "not tried in this run" in text
    assert text == told()


@pytest.mark.parametrize("kept", [True, False])
def test_a_gain_that_was_given_back_is_none(kept: bool) -> None:
    one = structs.replace(DEAR, verdict="kept", step_ms=4.0)
    said = "kept." if kept else "kept until the gain was not confirmed."
    assert f"4.00 ms a step against 10.1 ms before, {said}" in told(
        one, chosen=WANTED if kept else None
    )
