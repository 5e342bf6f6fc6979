"""Scripts of seconds: run again until the answer is complete."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scripts.running import SHAPES, Diagnosed, diagnose

pytestmark = pytest.mark.scripts
slow = pytest.mark.slow


def check_complete(done: Diagnosed) -> None:
    """What was asked for is there, and each run of the script was shown as it is."""
    said = done.said
    assert done.code == 0, done.stderr
    assert "script-ended-early" not in done.warnings, done.warnings
    assert said.ablation is not None, done.summary
    assert said.trace_shares is not None
    n_runs = 1 + done.stderr.count(" begins, to go on.")
    if n_runs > 1:
        assert f"was run {n_runs} times" in done.warnings["script-run-again"]
    else:  # of a fast machine one run of ten seconds tells all
        assert "script-run-again" not in done.warnings
    assert done.stdout.count("trained\n") == n_runs - 1  # the last one is stopped


@slow
def test_a_script_of_seconds_is_run_again_until_the_answer_is_complete(tmp_path: Path) -> None:
    args = SHAPES / "odd_pace.py", "250", "0.004", "0.004"
    done = diagnose(*args, cwd=tmp_path, budget_s=30, options=["--no-verify"])
    check_complete(done)
    assert " begins, to go on." in done.stderr  # it trains for a second
    assert done.said.verdict.bound == "input", done.summary


KINDS = (
    *("waits", "workers", "epochs", "work", "accumulates", "validates", "saves", "streams"),
    "collates",
)


@slow
@pytest.mark.parametrize("kind", KINDS)
def test_scripts_of_ten_seconds_get_ablation_and_trials(kind: str, tmp_path: Path) -> None:
    done = diagnose(SHAPES / "ten_seconds.py", kind, cwd=tmp_path, budget_s=30)
    check_complete(done)
    said = done.said
    tried = [t for t in said.trials[1:] if t.status == "ok" and t.n_windows]
    assert tried or not said.findings, done.summary
    assert "at best 0 ms" not in done.stdout
    assert "compute 0 ms" not in done.stdout


@slow
def test_a_script_that_reads_its_standard_input_is_run_once(tmp_path: Path) -> None:
    script = tmp_path / "asks.py"
    text = (SHAPES / "odd_pace.py").read_text()
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(SHAPES)!r})\n{text}\nsys.stdin.read()\n"
    )
    done = diagnose(script, "60", "0.02", "0.02", cwd=tmp_path)
    assert "standard input" in done.warnings["script-ended-early"]
    assert done.stdout.count("trained\n") == 1


@slow
def test_a_script_that_resumed_from_its_own_checkpoint_is_not_measured_again(
    tmp_path: Path,
) -> None:
    script = tmp_path / "resumes.py"
    text = (SHAPES / "odd_pace.py").read_text()
    script.write_text(
        f"import os, sys\nsys.path.insert(0, {str(SHAPES)!r})\n"
        "if os.path.exists('checkpoint'):\n    print('done before')\n    sys.exit()\n"
        f"{text}\nopen('checkpoint', 'w').close()\n"
    )
    done = diagnose(script, "60", "0.02", "0.02", cwd=tmp_path, budget_s=40)
    assert done.code == 0
    assert done.stdout.count("trained\n") == 1
    assert done.stdout.count("done before\n") == 1
    assert "Run again, it did otherwise" in done.warnings["script-ended-early"]
    assert "What was measured before stands" in done.stderr
