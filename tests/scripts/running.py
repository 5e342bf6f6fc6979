"""Runs a script under the real `diagnose` command, in a process of its own; reads its report."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from loaderdoctor.report.model import Finding, Recommendation, Report

HERE = Path(__file__).parent
SHAPES = HERE / "shapes"
STARVED = HERE / "starved"
CAUSES = HERE / "causes"
# Enough for plain, profiled and ablation windows and some rounds of trials of a 6 ms step.
SMALL_BUDGET_S = 12.0
TIMEOUT_S = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosed:
    """What one run of the command left behind."""

    code: int
    stdout: str
    stderr: str
    report: Report | None
    folder: Path

    @property
    def said(self) -> Report:
        """The report; fails with what the command printed where there is none."""
        assert self.report is not None, f"exit {self.code}\n{self.stdout}\n{self.stderr}"
        return self.report

    @property
    def kinds(self) -> set[str]:
        """Findings by kind."""
        return {f.kind for f in self.said.findings}

    def finding(self, kind: str) -> Finding:
        """The finding of this kind."""
        found = [f for f in self.said.findings if f.kind == kind]
        assert found, f"no {kind}: {self.summary}"
        return found[0]

    @property
    def settings(self) -> dict[str, Recommendation]:
        """Recommended settings by name."""
        return {r.setting: r for r in self.said.recommendations}

    @property
    def warnings(self) -> dict[str, str]:
        """Warning texts by kind."""
        return {w.kind: w.text for w in self.said.warnings}

    @property
    def share(self) -> float:
        """Input's share of the step."""
        shares = self.said.shares
        assert shares is not None and shares.input is not None
        return shares.input

    @property
    def gain(self) -> float | None:
        """Step now / step with the recommended settings, as measured."""
        measured = [r.measured_step_ms for r in self.said.recommendations if r.measured_step_ms]
        now_ms = self.said.step.wall_ms
        return now_ms / measured[0] if measured and now_ms is not None else None

    @property
    def summary(self) -> str:
        """One line for a failed assertion: the verdict with its share, and findings."""
        said = self.said
        kinds = ", ".join(f"{f.kind} {f.share}" for f in said.findings)
        return f"{said.verdict.bound} {said.verdict.severity}; {said.shares}; {kinds}"


# name -> what the terminal summary prints
TABLE: dict[str, tuple[str, str, str]] = {}


def diagnose(
    script: Path | str,
    *args: str,
    cwd: Path,
    options: Sequence[str] = (),
    budget_s: float = SMALL_BUDGET_S,
    environment: dict[str, str] | None = None,
) -> Diagnosed:
    """`loaderdoctor diagnose [options] SCRIPT [args]` in `cwd`; a module where `options` has -m."""
    folder = cwd / "report"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "loaderdoctor", "diagnose"),
            *("--budget", str(budget_s), "--output", str(folder)),
            *options,
            str(script),
            *args,
        ],
        cwd=cwd,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            **(environment or {}),
        },
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    path = folder / "report.json"
    report = msgspec.json.decode(path.read_bytes(), type=Report) if path.exists() else None
    result = Diagnosed(
        code=done.returncode,
        stdout=done.stdout,
        stderr=done.stderr,
        report=report,
        folder=folder,
    )
    TABLE[" ".join([Path(script).name, *args])] = _row(result)
    return result


def _row(result: Diagnosed) -> tuple[str, str, str]:
    if result.report is None:
        last = (result.stderr.strip().splitlines() or [""])[-1]
        return f"exit {result.code}", last, ""
    said = result.report
    verdict = f"{said.verdict.bound}, {said.verdict.severity}"
    shares = said.shares
    if shares is not None and shares.input is not None:
        verdict += f" ({shares.input:.0%} input)"
    gain = result.gain
    return (
        verdict,
        " ".join(f.kind for f in said.findings) or "–",
        f"{gain:.2f}×" if gain is not None else "–",
    )
