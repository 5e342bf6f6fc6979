"""Loops that are slow, short, or slow to begin: the best answer that the budget and they allow."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.scripts.running import SHAPES, diagnose

pytestmark = [pytest.mark.scripts, pytest.mark.slow, pytest.mark.alone]
# Imports, the steps before the loop is warm and writing the report come on top of the budget; on
# two busy cores they take this long.
AROUND_S = 60.0


def test_slow_first_steps_are_no_part_of_the_figures(tmp_path: Path) -> None:
    done = diagnose(SHAPES / "odd_pace.py", "3000", "2.0", "0.02", cwd=tmp_path)
    assert done.said.step.wall_ms is not None
    assert done.said.step.wall_ms < 500.0  # of 2000 in the first three
    assert done.said.verdict.bound == "input", done.summary


def test_steps_of_seconds_get_an_answer_within_the_budget(tmp_path: Path) -> None:
    began = time.monotonic()
    done = diagnose(SHAPES / "odd_pace.py", "300", "2.0", "2.0", cwd=tmp_path, budget_s=30)
    took_s = time.monotonic() - began
    said = done.said
    assert done.code == 0
    assert took_s < 30 + AROUND_S
    assert said.step.wall_ms is not None and said.step.wall_ms > 1900.0
    assert said.verdict.bound in ("input", "unknown"), done.summary
    assert said.findings or said.verdict.bound == "unknown", done.summary


def test_a_script_of_three_steps_is_told_to_run_longer(tmp_path: Path) -> None:
    done = diagnose(SHAPES / "odd_pace.py", "3", "0.02", "0.02", cwd=tmp_path)
    assert "trained\n" in done.stdout
    assert done.code == 1
    assert "Let it run longer: more batches or more epochs." in done.stderr


def test_a_script_that_ends_soon_after_it_is_warm_tells_what_there_was(tmp_path: Path) -> None:
    script, once = SHAPES / "odd_pace.py", ["--once"]
    done = diagnose(script, "60", "0.02", "0.02", cwd=tmp_path, options=once)
    assert done.code == 0
    assert done.stdout.count("trained\n") == 1
    assert "--once keeps it to one run" in done.warnings["script-ended-early"]
    step = done.said.step
    assert step.wall_ms is None or step.wall_ms > 19.0
