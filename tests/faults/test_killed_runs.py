"""A recorded run that is killed, all of it at once, leaves a folder that `report` reads."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.scripts.recorded import environment
from tests.scripts.running import SHAPES

pytestmark = [pytest.mark.scripts, pytest.mark.slow]

PATIENCE_S = 180.0


def listening(folder: Path) -> list[psutil.Process]:
    """The process that listens: it has the command line that was typed."""
    running = psutil.process_iter(["cmdline"])
    return [p for p in running if str(folder) in (p.info["cmdline"] or ())]


def test_a_killed_run_is_reported_from_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = subprocess.Popen(
        [
            *(sys.executable, "-m", "loaderdoctor", "run", "--output", str(folder)),
            *(str(SHAPES / "faulty.py"), "nothing", "60000"),
        ],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.DEVNULL,
    )
    try:
        end_s = time.monotonic() + PATIENCE_S
        while not (folder / ".recorded" / "run.json").is_file():
            assert run.poll() is None and time.monotonic() < end_s
            time.sleep(0.2)
    finally:
        workers = psutil.Process(run.pid).children(recursive=True)
        for process in [*listening(folder), psutil.Process(run.pid), *workers]:
            process.kill()
        run.wait()
    assert not (folder / "report.json").exists()
    done = subprocess.run(
        [sys.executable, "-m", "loaderdoctor", "report", str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "The whole run" in done.stdout
    assert "not over when this was written" in done.stdout


def test_what_is_no_run_folder_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "loaderdoctor", "report", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert "nothing to report" in done.stderr
