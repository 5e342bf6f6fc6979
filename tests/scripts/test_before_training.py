"""Whole scripts that read their loader before they train, or that never do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scripts.running import SHAPES, Diagnosed, diagnose

pytestmark = [pytest.mark.scripts, pytest.mark.slow]
SCRIPT = SHAPES / "before_training.py"


def run(kind: str, cwd: Path) -> Diagnosed:
    return diagnose(SCRIPT, kind, cwd=cwd, budget_s=12)


@pytest.mark.parametrize("kind", ["statistics", "probe", "skip", "sanity", "features"])
def test_the_loop_that_trains_is_judged_and_what_went_before_is_told(
    kind: str, tmp_path: Path
) -> None:
    done = run(kind, tmp_path)
    said = done.said
    assert said.trains
    assert "which feeds the optimizer" in said.step.definition
    assert said.step.wall_ms is not None
    assert said.step.wall_ms > 30  # of training: a batch that is only read takes 8 ms
    assert done.share < 0.5, done.summary
    assert "batches-replayed" not in done.warnings
    known = {
        (one.n_passes, one.n_batches, one.skips, one.calls_model) for one in said.before_training
    }
    expected = {
        "statistics": {(4, 800, False, False)},
        "probe": {(1, 100, False, False)},
        "skip": {(1, 600, True, False)},
        "sanity": {(1, 2, False, None)},
        "features": {(2, 400, False, True)},
    }
    assert known == expected[kind]
    if kind in ("statistics", "features"):
        assert "pass-before-training" in done.kinds, done.summary


def test_a_script_that_only_evaluates_is_inference(tmp_path: Path) -> None:
    done = run("evaluation", tmp_path)
    said = done.said
    assert (said.trains, said.calls_model) == (False, True)
    assert said.verdict.bound == "input", done.summary
    assert "inference" in done.stdout
    assert "a batch" in said.verdict.summary
    assert "training" not in said.verdict.summary.replace("before_training.py", "")


def test_a_script_that_ends_after_reading_is_run_again_for_what_it_does(tmp_path: Path) -> None:
    done = run("reading", tmp_path)
    said = done.said
    assert (said.trains, said.calls_model) == (False, False)
    assert said.verdict.bound == "unknown"
    assert "If training follows, this says nothing of it" in said.verdict.summary
    assert "run again" in done.stderr
