"""Callbacks of trainers: the training stays what it was, and there is a report of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from loaderdoctor.report import read_report
from loaderdoctor.report.model import Report

pytestmark = pytest.mark.frameworks
SCRIPTS = Path(__file__).parent / "scripts"


def train(script: str, *args: str, cwd: Path) -> str:
    """What it printed last."""
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / script), *args],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


def report_in(folder: Path) -> Report:
    report = read_report(folder)
    assert report.run is not None
    assert report.run.complete
    return report


@pytest.mark.parametrize("package", ["lightning", "pytorch_lightning"])
def test_lightnings_fit_is_recorded_and_stays_what_it_was(package: str, tmp_path: Path) -> None:
    pytest.importorskip(package)
    alone = train("callback_lightning.py", package, "", "", "-1", cwd=tmp_path)
    folder = tmp_path / "run"
    assert train("callback_lightning.py", package, str(folder), "", "-1", cwd=tmp_path) == alone
    report = report_in(folder)
    assert report.run is not None
    assert report.run.n_steps == 800
    assert report.run.tuning is None
    assert report.run.input_share is not None and report.run.input_share > 0.5


def test_lightnings_fit_is_tuned_and_its_batches_stay(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    alone = train("callback_lightning.py", "lightning", "", "", "-1", cwd=tmp_path)
    folder = tmp_path / "run"
    assert train("callback_lightning.py", "lightning", str(folder), "tune", "-1", cwd=tmp_path) == (
        alone
    )
    report = report_in(folder)
    assert report.run is not None and report.run.tuning is not None
    assert report.run.tuning.not_tuned is None
    assert report.run.tuning.tried


def test_a_fit_that_raises_is_reported_as_failed(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    folder = tmp_path / "run"
    train("callback_lightning.py", "lightning", str(folder), "", "400", cwd=tmp_path)
    run = report_in(folder).run
    assert run is not None
    assert run.how == "script-failed"
    assert 350 < run.n_steps <= 401  # the step that raised had its batch


def test_transformers_train_is_recorded_and_stays_what_it_was(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    alone = train("callback_transformers.py", str(tmp_path / "a"), "", cwd=tmp_path)
    folder = tmp_path / "run"
    assert (
        train("callback_transformers.py", str(tmp_path / "b"), str(folder), cwd=tmp_path) == alone
    )
    run = report_in(folder).run
    assert run is not None
    # Accelerate's loader is a batch ahead of the step, also of the one that max_steps ends with.
    assert run.n_steps in (500, 501)
