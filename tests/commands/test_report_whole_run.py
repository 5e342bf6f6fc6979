"""The report of a whole run: its verdict where the first window has none, and what was tuned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from loaderdoctor.commands.output import share_of
from loaderdoctor.commands.report import with_whole_run
from loaderdoctor.errors import UsageError
from loaderdoctor.instrument.wire.measured import TriedRecord, TuningRecord
from loaderdoctor.report import decode_report
from loaderdoctor.report.console import console_text
from loaderdoctor.report.html import html
from loaderdoctor.report.run_model import Run, RunAlert, RunStretch, RunTime
from loaderdoctor.settings import Settings
from tests.report.sample_facts import facts
from tests.report.samples import input_bound, nothing_recorded

OWN = Settings(num_workers=0, pin_memory=False)
CHOSEN = Settings(
    num_workers=3,
    prefetch_factor=2,
    persistent_workers=False,
    pin_memory=False,
    in_order=True,
    start_method="fork",
)
TUNING = TuningRecord(
    loader="train.py:41",
    exact=True,
    own=OWN,
    chosen=CHOSEN,
    chosen_at_step=400,
    proven=True,
    own_ms=(22.0, 21.0, 23.0),
    chosen_ms=(5.0, 4.9, 5.1),
    n_steps=4000,
    lost_steps=20.0,
    saved_s=60.0,
    tried=(
        TriedRecord(settings=CHOSEN, verdict="kept", at_step=390, step_ms=5.0, against_ms=22.0),
        TriedRecord(
            settings=replace(CHOSEN, num_workers=6),
            verdict="slower",
            at_step=900,
            step_ms=6.0,
            against_ms=5.0,
        ),
    ),
)


def time(input_s: float, recorded_s: float, n_steps: int) -> RunTime:
    return RunTime(
        recorded_s=recorded_s,
        n_steps=n_steps,
        step_s=recorded_s - input_s,
        input_s=input_s,
        starts_s=0.0,
        validation_s=0.0,
        saving_s=0.0,
        other_s=0.0,
        gc_s=0.0,
        waited_s=input_s,
    )


def run(
    input_s: float, *, n_steps: int = 4000, tuning: TuningRecord | None = None, late: float = 0.0
) -> Run:
    """Of 40 s recorded; the last 20 s wait for a `late` share."""
    halves = (
        time(input_s - 20.0 * late, 20.0, n_steps // 2),
        time(20.0 * late, 20.0, n_steps // 2),
    )
    return Run(
        took_s=45.0,
        before_s=5.0,
        time=time(input_s, 40.0, n_steps),
        n_steps=n_steps,
        step_ms_quantiles=None,
        wait_ms_quantiles=None,
        timeline=tuple(
            RunStretch(start_s=5.0 + 20.0 * i, end_s=25.0 + 20.0 * i, time=half)
            for i, half in enumerate(halves)
        ),
        alerts=(RunAlert(kind="tuned", at_s=24.0, step=400, text="…"),) if tuning else (),
        tuning=tuning,
        complete=True,
        how="script-ended",
        exit_code=0,
    )


@pytest.mark.parametrize(("input_s", "severity"), [(14.0, "high"), (4.0, "moderate")])
def test_a_run_that_waited_is_input_bound_without_a_trace(input_s: float, severity: str) -> None:
    report = with_whole_run(nothing_recorded(), run(input_s), None)
    assert (report.verdict.bound, report.verdict.severity) == ("input", severity)
    assert f"Waiting for batches took {input_s:.0f}." in report.verdict.summary


def test_a_run_that_hardly_waited_has_no_other_verdict() -> None:
    verdict = with_whole_run(nothing_recorded(), run(0.4), None).verdict
    assert verdict.bound == "unknown"
    assert "hardly any" in verdict.summary


def test_too_few_steps_and_a_verdict_of_the_first_window_stay_as_they_are() -> None:
    few, known = nothing_recorded(), input_bound()
    assert with_whole_run(few, run(14.0, n_steps=50), None).verdict == few.verdict
    assert with_whole_run(known, run(0.4), None).verdict == known.verdict


@pytest.mark.parametrize(("waited_s", "differs"), [(0.4, True), (34.0, False)])
def test_a_run_whose_first_window_was_another_is_told_so(waited_s: float, differs: bool) -> None:
    """Or the verdict, of that window, contradicts where the hours went."""
    report = with_whole_run(input_bound(), run(waited_s), None)
    said = "which the step and the findings are of, the loader cost 86 % of the step."
    for text in (console_text(report), console_text(report, brief=True), html(report)):
        assert (said in " ".join(text.split())) is differs


def test_a_run_of_which_a_quantile_is_missing_is_refused(tmp_path: Path) -> None:
    report = with_whole_run(input_bound(), run(0.4), None)
    whole = msgspec.to_builtins(report)
    whole["run"]["step_ms_quantiles"] = [1.0, 2.0, 3.0]
    with pytest.raises(UsageError, match="not a loaderdoctor report"):
        decode_report(msgspec.json.encode(whole), source=tmp_path)


def test_what_was_tuned_is_told_row_by_row_with_the_line_to_write() -> None:
    whole = run(14.0, tuning=TUNING, late=0.05)
    report = with_whole_run(nothing_recorded(), whole, facts())
    assert "and 5 % since the loader was tuned" in report.verdict.summary
    (row,) = report.recommendations
    assert (row.setting, row.from_, row.to) == ("num_workers", 0, 3)
    assert (row.own_step_ms, row.measured_step_ms) == (22.0, 5.0)
    assert row.code or row.idea
    before = with_whole_run(input_bound(), whole, facts())
    measured = [r for r in before.recommendations if r.setting in ("num_workers", "pin_memory")]
    assert [(r.setting, r.to) for r in measured] == [("num_workers", 3)]
    assert "since the loader was tuned" in before.verdict.summary  # not what was predicted
    text = console_text(report)
    assert "Tuning" in html(report) and "no faster" in html(report)
    for words in ("goes on with num_workers=3:", "num_workers=6", "no faster", "20 of 4000 steps"):
        assert words in " ".join(text.split()), text


def test_a_run_that_its_first_window_held_tells_its_steps_and_no_time() -> None:
    short = msgspec.structs.replace(run(0.0, n_steps=213), time=time(0.0, 0.0, 0), timeline=())
    report = with_whole_run(input_bound(), short, facts())
    assert report.verdict == input_bound().verdict
    text = " ".join(console_text(report).split())
    assert "213 steps: over within the first window" in text
    assert "over within the first window, before anything else was recorded.</p>" in html(report)
    # A rule of --fail-on is judged by that window.
    assert report.shares is not None
    assert share_of(report, "input") == report.shares.input
