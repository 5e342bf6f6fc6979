"""`--run-to-end`: what the script prints, saves and returns is what it does unwatched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scripts.running import SHAPES, diagnose

pytestmark = pytest.mark.scripts


@pytest.mark.slow  # the same of `run`, which this option now is, is in test_recorded.py
@pytest.mark.parametrize("n_workers", ["0", "2"])
def test_a_run_to_the_end_is_the_unwatched_run_with_a_report(
    n_workers: str, tmp_path: Path
) -> None:
    script, unwatched_dir, watched_dir = SHAPES / "saves.py", tmp_path / "a", tmp_path / "b"
    unwatched_dir.mkdir()
    watched_dir.mkdir()
    unwatched = subprocess.Popen(
        [sys.executable, str(script), "weights.txt", n_workers],
        cwd=unwatched_dir,
        env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    done = diagnose(
        script, "weights.txt", n_workers, cwd=watched_dir, options=["--run-to-end"], budget_s=20
    )
    out, err = unwatched.communicate()
    assert unwatched.returncode == done.code == 5
    assert done.stdout.startswith(out)
    assert err in done.stderr
    assert "not valid" not in done.stderr
    assert "loaderdoctor run --profile" in done.stderr
    saved = (watched_dir / "weights.txt").read_text()
    assert saved == (unwatched_dir / "weights.txt").read_text()
    assert {p.name for p in watched_dir.iterdir()} == {"weights.txt", "report"}
    assert done.said.step.wall_ms is not None
    assert done.said.trace_shares is not None
    assert done.said.ablation is None and not done.said.trials
