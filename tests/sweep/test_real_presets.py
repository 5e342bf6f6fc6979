"""Presets, isolation and resuming with real processes over real loops. Minutes: `-m slow`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loaderdoctor.sweep import timings_file
from tests.commands.sweep.test_command import ENVIRONMENT, SLOW_LOADER, loaderdoctor

pytestmark = pytest.mark.slow
VERDICTS = {"agrees", "disagrees", "not separable from noise", "not testable here"}


def reported(tmp_path: Path, *args: str) -> dict[str, Any]:
    done = loaderdoctor("sweep", "--output", "run", "--json", "report.json", *args, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads((tmp_path / "report.json").read_text())
    return report


def test_the_classic_table_over_mnist(tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    report = reported(tmp_path, "--preset", "workers-pinning", "--recipe", "mnist")
    rows = report["trials"][1:]
    assert [row["settings"]["num_workers"] for row in rows] == [0, 1, 2, 4, 8] * 2
    assert [row["settings"]["pin_memory"] for row in rows] == [False] * 5 + [True] * 5
    assert {row["status"] for row in rows} == {"ok"}
    for row in rows:
        assert row["epoch_s"] > 0
        assert row["time_ratio"] is not None
    (claim,) = report["claims"]
    assert claim["verdict"] in VERDICTS - {"not testable here"}
    assert (tmp_path / "run" / "plots" / "times.png").is_file()
    with np.load(tmp_path / "run" / timings_file.NAME, allow_pickle=False) as data:
        assert set(data["trial"]) >= {0, 2, 3, 4, 5}


def test_reuse_over_a_script_of_the_users(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SLOW_LOADER)
    report = reported(tmp_path, "--preset", "reuse", "--budget", "40", "train.py")
    rows = {(row["group"], row["row"]): row for row in report["trials"][1:]}
    plain = rows["copied each step", "plain"]
    persistent = rows["copied each step", "persistent workers"]
    assert plain["status"] == persistent["status"] == "ok"
    assert plain["startup_s"] > 0
    assert all(row["reason"] for row in rows.values() if row["status"] == "skipped")
    assert {claim["verdict"] for claim in report["claims"]} <= VERDICTS


def test_the_loader_alone_beside_the_model(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SLOW_LOADER)
    report = reported(tmp_path, "--loader-only", "--budget", "120", "train.py")
    rows = {row["row"]: row for row in report["trials"][1:]}
    assert len([name for name in rows if name.endswith("workers")]) == 11
    # Samples that wait 10 ms: one process gives 100 a second, five give several times that.
    assert 50 < rows["0 workers"]["samples_per_s"] < 105
    assert rows["5 workers"]["samples_per_s"] > 2.5 * rows["0 workers"]["samples_per_s"]
    assert rows["the model alone"]["samples_per_s"] > 3 * rows["5 workers"]["samples_per_s"] / 2.5
    assert "The model alone takes" in report["verdict"]["summary"]


def test_isolated_figures_are_those_of_processes_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SLOW_LOADER)
    report = reported(
        tmp_path,
        *("--isolate", "--grid", "num_workers=0,4"),
        *("--rounds", "2", "--budget", "150", "--no-ablation", "train.py"),
    )
    own, four = report["trials"]
    assert own["status"] == four["status"] == "ok"
    assert four["step_ms"] < 0.6 * own["step_ms"]
    assert own["startup_s"] is not None


def test_an_interrupted_sweep_is_resumed_where_it_stopped(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SLOW_LOADER)
    command = [sys.executable, "-m", "loaderdoctor", "sweep", "--output", "run", "--rounds", "3"]
    command += ["--grid", "num_workers=0,2,4", "--budget", "40", "train.py"]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        path = tmp_path / "run" / timings_file.NAME
        end = time.monotonic() + 120
        while not path.is_file() and time.monotonic() < end:
            time.sleep(0.2)
        os.kill(process.pid, signal.SIGINT)
        process.communicate(timeout=120)
    _, before = timings_file.read(tmp_path / "run")
    done = loaderdoctor("sweep", "--resume", "run", "--json", "-", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    _, after = timings_file.read(tmp_path / "run")
    for index, measurements in before.items():
        assert after[index][: len(measurements)] == measurements
    assert sum(map(len, after.values())) > sum(map(len, before.values()))
    assert [trial["status"] for trial in report["trials"]] == ["ok"] * 3
