"""A diagnosis of a script of seconds: as complete as that of one that trains for ever."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from loaderdoctor.diagnosis import Diagnosis
from loaderdoctor.diagnosis.budget import DiagnosisOptions
from loaderdoctor.instrument.command.repeated_run import RUN_AGAIN, RepeatedRun
from loaderdoctor.instrument.wire.protocol import Observed, WindowDone, WindowRequest
from loaderdoctor.report.model import Report
from tests.diagnosis.simulator import SimulatedRun

START_S = 4.0


class ShortRun(SimulatedRun):
    """One run of it: some windows, on the clock of all runs."""

    def __init__(self, clock: list[float], n_windows: int | None, seed: int) -> None:
        super().__init__(
            {"plain": 20.0, "no_input": 5.0},
            trial_ms=lambda settings: 6.0,
            ends_after=n_windows,
            seed=seed,
        )
        self.clock = clock

    def __enter__(self) -> ShortRun:
        return self

    def __exit__(self, *_: object) -> None: ...

    def wait_observed(self, timeout_s: float | None = None, on_event: Any = None) -> Observed:
        self.clock[0] += START_S
        return self.observed

    def measure(
        self, requests: Sequence[WindowRequest], on_event: Any = None, timeout_s: Any = None
    ) -> list[WindowDone]:
        before_s = self.now_s
        done = super().measure(requests)
        self.clock[0] += self.now_s - before_s
        return done


def diagnosed(
    tmp_path: Path, *, n_windows: int | None, never: str | None = None
) -> tuple[Diagnosis, Report, int]:
    """(the diagnosis, its report, how often the script was started)."""
    clock = [0.0]
    starts: list[ShortRun] = []

    def start(patient: bool) -> ShortRun:
        starts.append(ShortRun(clock, n_windows, seed=len(starts)))
        return starts[-1]

    runs = RepeatedRun(
        start=start, say=lambda text: None, budget_s=45.0, never=never, clock=lambda: clock[0]
    )
    with runs:
        made = Diagnosis(
            runs,
            target="train.py",
            raw=tmp_path,
            options=DiagnosisOptions(budget_s=45.0),
            clock=runs.measuring_clock,
        )
        made.measure(runs.wait_observed())
        runs.stop()
        return made, made.report(), len(starts)


@pytest.mark.parametrize("n_windows", [3, 6])
def test_the_answer_of_short_runs_is_as_complete_as_that_of_an_endless_one(
    n_windows: int, tmp_path: Path
) -> None:
    endless, told, n_starts = diagnosed(tmp_path, n_windows=None)
    assert n_starts == 1
    short, said, n_runs = diagnosed(tmp_path, n_windows=n_windows)
    assert n_runs > 2
    assert "script-ended-early" not in {w.kind for w in said.warnings}
    assert RUN_AGAIN in {w.kind for w in said.warnings}
    assert endless.evidence is not None and short.evidence is not None
    assert said.verdict.bound == told.verdict.bound == "input"
    assert said.ablation is not None
    assert [r.setting for r in said.recommendations] == [r.setting for r in told.recommendations]
    assert said.recommendations
    assert all(r.measured_step_ms is not None for r in said.recommendations)


def test_once_leaves_it_incomplete_and_says_how_to_have_more(tmp_path: Path) -> None:
    why = "--once keeps it to one run."
    _, said, n_runs = diagnosed(tmp_path, n_windows=3, never=why)
    assert n_runs == 1
    texts = {w.kind: w.text for w in said.warnings}
    assert why in texts["script-ended-early"]
    assert RUN_AGAIN not in texts
