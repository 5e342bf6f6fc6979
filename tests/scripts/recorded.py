"""Runs a script under the real `run` command, next to a run without it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from loaderdoctor.report.model import Report
from loaderdoctor.report.run_model import Run

TIMEOUT_S = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What came of it."""

    code: int
    stdout: str
    stderr: str
    folder: Path

    @property
    def report(self) -> Report:
        """report.json; fails with what was printed where there is none."""
        path = self.folder / "report.json"
        assert path.is_file(), f"exit {self.code}\n{self.stdout}\n{self.stderr}"
        return msgspec.json.decode(path.read_bytes(), type=Report)

    @property
    def run(self) -> Run:
        """The whole run."""
        found = self.report.run
        assert found is not None
        return found

    @property
    def told(self) -> dict[str, str]:
        """Alerts by kind."""
        return {a.kind: a.text for a in self.run.alerts}

    @property
    def causes(self) -> set[str]:
        """Of all alerts."""
        return {a.cause for a in self.run.alerts if a.cause is not None}


def environment() -> dict[str, str]:
    """One thread: two on two busy cores take many times as long."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def unwatched(script: Path, *args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The script alone."""
    return subprocess.run(
        [sys.executable, str(script), *args],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


def recorded(script: Path | str, *args: str, cwd: Path, options: Sequence[str] = ()) -> Done:
    """The script under `loaderdoctor run`."""
    folder = cwd / "run"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "loaderdoctor", "run", "--output", str(folder)),
            *options,
            str(script),
            *args,
        ],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    return Done(code=done.returncode, stdout=done.stdout, stderr=done.stderr, folder=folder)
