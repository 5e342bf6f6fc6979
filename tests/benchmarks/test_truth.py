"""What truth.py says of all loops together."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PATH = Path(__file__).parents[2] / "benchmarks" / "truth.py"


@pytest.fixture(scope="module")
def truth() -> ModuleType:
    spec = importlib.util.spec_from_file_location("truth_of_loops", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def row(name: str, *, off: float, noise: float = 0.0) -> dict[str, Any]:
    shares = {"input_true": 0.4, "input_ours": 0.4 + off, "copy_true": 0.1, "copy_ours": 0.1}
    shares |= {"rest_true": 0.5, "rest_ours": 0.5 - off, "truth_ms": 10.0, "ours_ms": 10.0}
    shares |= {"input_noise": noise, "copy_noise": 0.0, "n_rounds": 8, "recorded_only": False}
    return {"loop": name, "agrees": True, "verdict": "input high", **shares}


def test_an_error_within_the_truth_s_own_noise_counts_in_the_median_and_is_no_miss(
    truth: ModuleType,
) -> None:
    said = truth.summary([row("quiet", off=0.02), row("noisy", off=-0.08, noise=0.1)])
    assert "2 loops: median error 1.0 points (aim 1.5), largest 8.0;" in said
    assert said.endswith("noise: none.")


def test_an_error_beyond_both_is_named_and_so_is_a_loop_that_failed(truth: ModuleType) -> None:
    rows = [row("off", off=0.08, noise=0.03), {"loop": "died", "agrees": False, "error": "x"}]
    said = truth.summary(rows)
    assert "input of off by 8.0 (noise 3.0). Not measured: died." in said
    table = truth.markdown(rows)
    assert "| `off` | 10.00 / 10.00 | 40.0 / 48.0 | 10.0 / 10.0 | 50.0 / 42.0 | 3.0 | 8 |" in table
    assert "`died`" not in table.partition("1 loops")[0]
    assert truth.summary(rows[1:]) == "No loop was measured."


def test_a_row_judges_what_the_report_states_not_the_signed_measurement(truth: ModuleType) -> None:
    runs = {"full": [10.0, 10.0], "cached": [9.0, 9.0], "resident": [9.0, 9.0]}
    report: dict[str, Any] = {
        "ablation": {"plain_ms": 10.0, "input_ms": -3.0, "copy_ms": 0.4, "ci_ms": {}}
        | {"claims": {"input_ms": [0.9, [0.5, 1.5]]}},
        "step": {"wall_ms": 10.0, "steps_per_epoch": None, "boundary_ms": None},
        "verdict": {"bound": "compute", "severity": "none"},
        "shares": {"input": 0.09, "copy": 0.04},
        "trace_shares": None,
        "findings": [],
    }
    found = truth.compare("one", truth.truth_of(runs), report)
    assert (found["input_ours"], found["copy_ours"]) == (pytest.approx(0.09), pytest.approx(0.04))
    assert found["agrees"]
    report["ablation"]["claims"] = {}
    assert truth.compare("one", truth.truth_of(runs), report)["input_ours"] == 0.0


def test_a_process_that_becomes_faster_is_no_noise_of_what_a_part_takes(truth: ModuleType) -> None:
    slow = {"full": [12.0], "cached": [8.0], "resident": [6.0]}
    fast = {"full": [9.0], "cached": [5.0], "resident": [3.2]}
    found = truth.truth_of(slow, fast)
    assert (found["input_ms"], found["copy_ms"]) == (4.0, pytest.approx(1.9))
    assert found["step_ms"] == pytest.approx(found["rest_ms"] + 5.9)
    assert found["input_noise_ms"] == 0.0
    assert found["copy_noise_ms"] == pytest.approx(0.2)  # 2 × 0.141 / √2
    assert truth.truth_of(slow)["copy_noise_ms"] == 0.0


def test_rounds_end_with_their_number_or_their_time_and_one_is_made(truth: ModuleType) -> None:
    def one() -> dict[str, list[float]]:
        return {}

    assert len(truth.rounds_of(one, most=3, seconds=60.0)) == 3
    assert len(truth.rounds_of(one, most=3, seconds=0.0)) == 1
