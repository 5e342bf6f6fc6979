"""Starts a sweep of a recipe and reads what it left: for benchmarks that compare sweeps."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Swept:
    """One sweep: its report, its visits as columns of samples.npz, and how long it took."""

    report: dict[str, Any]
    samples: dict[str, NDArray[Any]]
    total_s: float  # of the whole command


def swept(recipe: str, folder: Path, *, budget_s: float, grid: Sequence[str], more: str) -> Swept:
    """Run `loaderdoctor sweep` with `more` options into `folder`. Raises RuntimeError."""
    command = [sys.executable, "-m", "loaderdoctor", "sweep", "--recipe", recipe, *more.split()]
    command += ["--no-ablation", "--budget", str(budget_s), "--output", str(folder)]
    command += ["--grid", *grid] if grid else []
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    total_s = time.monotonic() - began
    if not (folder / "report.json").exists():
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-1500:]}")
    with np.load(folder / "samples.npz") as samples:
        columns = {name: samples[name] for name in samples.files}
    report = json.loads((folder / "report.json").read_text())
    return Swept(report=report, samples=columns, total_s=total_s)


def machine(report: dict[str, Any]) -> str:
    """Where a report was measured, for the line under a table."""
    environment = report["environment"]
    device = environment["device_name"] or "no accelerator"
    return f"{device}, {environment['usable_cpus']:g} CPUs, torch {environment['torch']}"
