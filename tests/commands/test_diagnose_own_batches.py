"""The report of a loop without a DataLoader: its profiled steps, and what lies between others."""

from __future__ import annotations

from pathlib import Path

import pytest

from loaderdoctor.commands.diagnose import report_without_dataloader
from loaderdoctor.instrument.wire.measured import PauseRecord
from loaderdoctor.instrument.wire.protocol import NoDataLoader
from loaderdoctor.report.console import console_text
from loaderdoctor.report.model import Report
from loaderdoctor.report.words import wall_sentence

TRACE = Path(__file__).parents[2] / "traces" / "enough_workers.pt.trace.json.gz"


def reported(step_ms: float, pauses: PauseRecord | None = None, n_steps: int = 768) -> Report:
    seen = NoDataLoader(
        site="train.py:9", n_steps=n_steps, step_ms=step_ms, trace_path=str(TRACE), pauses=pauses
    )
    return report_without_dataloader(seen, "train.py")[0]


def kinds(report: Report) -> set[str]:
    return {warning.kind for warning in report.warnings}


def paused(share: float, n: int = 12) -> PauseRecord:
    """Steps of 10 ms with a pause before each 64th that takes this share of all the time."""
    seconds = 64 * 0.01 * share / (1 - share)
    every = 64.0 if n > 1 else None
    return PauseRecord(n=n, seconds=seconds, every_steps=every, usual_ms=10.0)


def test_profiled_steps_that_are_much_quicker_than_the_others_are_not_all_there_is() -> None:
    profiled_ms = reported(1e-3).step.wall_ms
    assert profiled_ms is not None
    assert "not-steady" not in kinds(reported(1.4 * profiled_ms))
    assert "not-steady" not in kinds(reported(4.0 * profiled_ms, n_steps=3))  # compiled, perhaps
    longer = reported(4.0 * profiled_ms)
    assert "not-steady" in kinds(longer)
    screen = " ".join(console_text(longer).split())
    assert "How far to trust it: 768 steps without the profiler took" in screen


@pytest.mark.parametrize(("share", "bound"), [(0.77, "outside"), (0.02, "compute")])
def test_pauses_are_the_verdict_where_they_take_most(share: float, bound: str) -> None:
    report = reported(44.0, paused(share))
    assert report.verdict.bound == bound, report.verdict.summary
    assert "not-steady" not in kinds(report)
    assert report.wall is not None
    assert report.wall.outside_share == pytest.approx(share)
    if bound == "outside":
        assert report.verdict.severity == "high"
        assert "other work of the loop" in report.verdict.summary
        assert "10.0 ms of it the step itself" in " ".join(console_text(report).split())


def test_of_a_pause_that_was_seen_once_nobody_knows_how_much_it_takes() -> None:
    profiled_ms = reported(1e-3).step.wall_ms or 0.0
    report = reported(4.0 * profiled_ms, paused(0.77, n=1))
    assert report.verdict.bound == "compute"
    assert "seen once. How often it comes is not known" in (wall_sentence(report) or "")
    assert "not-steady" in kinds(report)
