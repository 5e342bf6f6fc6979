"""Hints about computing, from a real script under `diagnose`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scripts.running import SHAPES, diagnose

pytestmark = [pytest.mark.scripts, pytest.mark.slow, pytest.mark.alone]
HINTS = {"grad-not-set-to-none", "bias-before-batchnorm"}


def test_needless_work_of_the_step_is_a_hint_and_no_verdict(tmp_path: Path) -> None:
    done = diagnose(SHAPES / "hints.py", "wasteful", cwd=tmp_path, options=["--no-verify"])
    assert done.kinds >= HINTS, done.summary
    fills = done.finding("grad-not-set-to-none")
    assert (fills.severity, fills.evidence["site"]) == ("low", "hints.py:22")
    assert done.finding("bias-before-batchnorm").evidence["first"] == "0 -> 1"
    assert all(f.severity == "low" for f in done.said.findings if f.kind in HINTS)
    assert (done.said.verdict.bound, done.said.verdict.severity) != ("input", "high"), done.summary
    titles = " ".join(r.code or r.idea or "" for r in done.said.recommendations)
    assert "optimizer.zero_grad(set_to_none=True)" in titles  # in the script's own line
    assert "bias=False" in titles


def test_a_thrifty_step_gets_no_hint(tmp_path: Path) -> None:
    done = diagnose(SHAPES / "hints.py", "thrifty", cwd=tmp_path, options=["--no-verify"])
    assert not done.kinds & HINTS, done.summary
