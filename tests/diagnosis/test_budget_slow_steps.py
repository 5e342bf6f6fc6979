"""The first advice is measured, however slow the steps: within the budget, or the second cap."""

from __future__ import annotations

from pathlib import Path

import pytest

from loaderdoctor.diagnosis import Diagnosis
from loaderdoctor.diagnosis.budget import DiagnosisOptions
from loaderdoctor.instrument.wire.protocol import ProfilerSchedule
from loaderdoctor.report.model import Report
from tests.diagnosis.slow_steps import StarvedRun

BUDGET_S = 45.0  # the default


def diagnosed(
    script_run: StarvedRun, folder: Path, *, budget_s: float = BUDGET_S
) -> tuple[Report, list[str]]:
    said: list[str] = []
    made = Diagnosis(
        script_run,
        target="train.py",
        raw=folder,
        options=DiagnosisOptions(budget_s=budget_s, profiler=ProfilerSchedule()),
        say=said.append,
        clock=lambda: script_run.now_s,
    )
    made.measure(script_run.observed)
    return made.report(), said


@pytest.mark.parametrize("step_ms", [2.0, 20.0, 82.0, 100.0, 171.0])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_first_advice_is_measured_within_the_budget(
    step_ms: float, seed: int, tmp_path: Path
) -> None:
    script_run = StarvedRun(step_ms, seed=seed)
    report, said = diagnosed(script_run, tmp_path)
    first = report.recommendations[0]
    assert first.setting == "num_workers"
    assert first.measured_step_ms == pytest.approx(step_ms / 3, rel=0.15)
    assert script_run.now_s <= BUDGET_S
    assert "measured here" in report.verdict.summary
    assert "too few windows" not in report.verdict.summary
    assert said == []


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_of_steps_of_300_ms_within_the_second_cap(seed: int, tmp_path: Path) -> None:
    script_run = StarvedRun(300.0, seed=seed)
    report, _ = diagnosed(script_run, tmp_path)
    first = report.recommendations[0]
    assert first.setting == "num_workers" and first.measured_step_ms is not None
    assert script_run.now_s <= 2 * BUDGET_S


def test_going_on_beyond_the_budget_is_told(tmp_path: Path) -> None:
    script_run = StarvedRun(300.0)
    report, said = diagnosed(script_run, tmp_path, budget_s=20.0)
    assert script_run.now_s > 20.0
    assert said == [
        "the first advice is still a prediction after 20 s: it is tried for longer, until 40 s at "
        "most."
    ]
    assert report.recommendations
    assert script_run.now_s <= 40.0


def test_where_nothing_would_help_no_second_cap_is_used(tmp_path: Path) -> None:
    script_run = StarvedRun(100.0, vary=0.03, noise=0.01)
    script_run.trial_ms = lambda changed: 100.0
    report, said = diagnosed(script_run, tmp_path)
    assert all(r.measured_step_ms is None for r in report.recommendations)
    assert script_run.now_s <= BUDGET_S and said == []
