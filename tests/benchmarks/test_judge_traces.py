"""How benchmarks/judge_traces.py judges what a report of a trace says that a change brings."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
judge_traces = importlib.import_module("judge_traces")
sys.path.remove(str(BENCHMARKS))


def report_with(predicted_step_ms: float | None) -> dict[str, Any]:
    return {
        "verdict": {"bound": "input", "severity": "high"},
        "trace_shares": {"input": 0.5},
        "findings": [],
        "recommendations": [
            {"setting": "Give the loader more workers", "predicted_step_ms": predicted_step_ms}
        ],
    }


def bounds_of(predicted_step_ms: float | None) -> Any:
    truth = {"expect_bound": ["input"], "step_ms": 10.0, "helps": {"num_workers": 2.0}}
    return judge_traces.judged(Path("x.json.gz"), truth, report_with(predicted_step_ms))["bounds"]


def test_each_number_is_judged_also_that_of_a_step_without_length() -> None:
    assert bounds_of(4.0) == [("num_workers", 10.0, 4.0, 5.0)]
    assert bounds_of(0.0) == [("num_workers", 10.0, 0.0, 5.0)]
    assert bounds_of(None) == []


def test_bounds_that_promise_everything_are_seen_to_be_far() -> None:
    near = judge_traces.tightness([(10.0, 4.5, 5.0), (10.0, 5.0, 5.0), (10.0, 9.8, 9.9)])
    assert "saves 1.05 times what was saved (median of 2 that save a twentieth)" in near
    assert "3 of 3 steps came within 15 %" in near
    far = judge_traces.tightness([(10.0, 0.0, 5.0), (10.0, 1.0, 8.0)])
    assert "saves 3.25 times" in far and "0 of 2 steps" in far
    assert judge_traces.decides(4.5, 5.0) and judge_traces.decides(5.5, 5.0)
    assert not judge_traces.decides(1.0, 5.0) and not judge_traces.decides(0.0, 5.0)
