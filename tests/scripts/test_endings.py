"""Scripts that end before they are measured, or never train: their exit code, and what is said."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scripts.running import SHAPES, diagnose

pytestmark = pytest.mark.scripts
slow = pytest.mark.slow


@slow
@pytest.mark.parametrize(("how", "code"), [("SystemExit", 3), ("_exit", 4)])
def test_a_script_that_ends_early_leaves_its_exit_code_and_a_report(
    how: str, code: int, tmp_path: Path
) -> None:
    done = diagnose(SHAPES / "ends_early.py", how, "200", cwd=tmp_path, budget_s=120)
    assert done.code == code
    assert "trained\n" in done.stdout
    assert done.said.verdict.bound == "input", done.summary
    assert done.said.trace_shares is not None
    assert "script-ended-early" in done.warnings, done.warnings


def test_a_failing_script_shows_its_own_traceback_and_exit_code(tmp_path: Path) -> None:
    script = SHAPES / "ends_early.py"
    unwatched = subprocess.Popen(
        [sys.executable, str(script), "error", "40"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    done = diagnose(script, "error", "40", cwd=tmp_path)
    _, err = unwatched.communicate()
    assert done.code == unwatched.returncode == 1
    assert err.startswith("Traceback")
    assert err in done.stderr


@slow
def test_a_script_that_refuses_its_command_line_keeps_its_exit_code(tmp_path: Path) -> None:
    done = diagnose(SHAPES / "guard.py", "--epocs", "9", cwd=tmp_path)
    assert done.code == 2
    *_, theirs, ours = done.stderr.splitlines()
    assert "guard.py: error:" in theirs
    assert "the script exited with code 2 before it iterated a DataLoader" in ours
    assert "no torch DataLoader" not in done.stderr


@slow
def test_a_script_without_a_loader_is_told_so(tmp_path: Path) -> None:
    done = diagnose(SHAPES / "no_loader.py", cwd=tmp_path)
    assert done.code == 1
    assert "trained\n" in done.stdout
    assert "no torch DataLoader was iterated" in done.stderr.splitlines()[-1]


@slow
def test_a_script_that_trains_long_on_one_batch_is_told_so(tmp_path: Path) -> None:
    done = diagnose(SHAPES / "one_batch.py", cwd=tmp_path)
    assert done.code == 1
    said = done.stderr.splitlines()[-1]
    assert "2,000 optimizer steps on 1 batch of one_batch.py:5" in said
    assert "run longer" not in said
