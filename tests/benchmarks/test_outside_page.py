"""The page of truths from outside, as a script fills it from stored rows."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
outside_page = importlib.import_module("outside_page")
sys.path.remove(str(ROOT / "benchmarks"))


def public_row(name: str, share: float, low: float, high: float) -> dict[str, Any]:
    """Beside a truth of 27 % in two runs, 26 and 28."""
    return {
        "name": name,
        "why": [],
        "said": {
            "bound": "input", "severity": "uncertain", "step_ms": 100.0, "input": share,
            "claim": {"share": share, "low": low, "high": high}, "n_rounds": 1, "wait_ms": 1.0,
            "findings": [],
        },
        "truth": {"step_ms": 100.0, "share": 0.27, "noise": 0.02, "wait_ms": 1.0},
        "runs": {
            "plain": [{"step_ms": 100.0}, {"step_ms": 100.0}],
            "ready": [{"step_ms": 74.0}, {"step_ms": 72.0}],
        },
    }  # fmt: skip


def dlio_row(name: str, share: float, high: float) -> dict[str, Any]:
    return {
        "name": name, "au": 0.9, "au_whole": 0.9, "waited": 0.1, "own_noise": 0.01,
        "noise": high - share, "waiting_noise": high - share,
        "input": {"share": share, "low": share, "high": high},
        "ablation": {"n_rounds": 3}, "findings": [], "agrees": True, "agrees_with_waiting": True,
        "decides": high - share < 0.1, "decides_of_waiting": high - share < 0.1,
    }  # fmt: skip


def test_both_tables_are_replaced_and_every_row_that_is_no_yes_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, public, dlio = (tmp_path / name for name in ("page.md", "public", "dlio"))
    page.write_text((ROOT / "docs" / "outside.md").read_text())
    rows = [public_row("vae", 0.25, 0.2, 0.28), public_row("mnist", 0.01, 0.0, 0.01)]
    rows.append(public_row("mnist", 0.01, 0.0, 0.9))  # again: the last one counts
    public.write_text("".join(json.dumps(row) + "\n" for row in rows))
    of_dlio = [dlio_row("csv", 0.08, 0.5), dlio_row("dlrm", 0.09, 0.11)]
    dlio.write_text("".join(json.dumps(row) + "\n" for row in of_dlio))
    asked = ["--where", "Here.", "--revision", "abc", "--page", str(page), "--public", str(public)]
    asked += ["--dlio", str(dlio), "--note", "mnist=So it is."]
    monkeypatch.setattr(sys, "argv", ["outside_page.py", *asked])
    assert outside_page.main() == 0
    once = page.read_text()
    assert outside_page.main() == 0
    assert page.read_text() == once
    assert once.count("Here. Revision abc.") == 2
    assert "2 scripts: 1 right, 1 decide nothing, 0 wrong" in once
    (told,) = (line for line in once.splitlines() if line.startswith("- `mnist`: "))
    assert "save 26 and 28 % with ready batches; we say 1 %, 0 to 90 %, by 1 round" in told
    assert "Noise: 89 points of our interval, 2 points of the truth's own." in told
    assert told.endswith("So it is.")
    (told,) = (line for line in once.splitlines() if line.startswith("- `csv`: "))
    assert "We are +2.0 and +2.0 points off, by 3 rounds" in told
    assert "Noise: 42 points of our interval, 1 points of DLIO's own" in told
    assert not [x for x in once.splitlines() if x.startswith(("- `vae`", "- `dlrm`"))]
    assert "## MLPerf Storage's DLIO" in once and "### Left out" in once


def test_runs_are_told_by_pairs_and_not_put_together_from_two() -> None:
    row = public_row("vae", 0.25, 0.2, 0.28)
    assert outside_page.shares_of(row) == pytest.approx([0.26, 0.28])
    row["runs"]["ready"].pop(0)  # the first run ended before its batches were ready
    assert outside_page.shares_of(row) == [0.27]
    plain, ready = (
        {"step_ms": ms, "wait_ms": 0.0, "blocks_ms": [], "n_steps": 9, "n_epochs": 1, "most_ms": ms}
        for ms in (100.0, 72.0)
    )
    row["pairs"] = [[plain, ready]]
    assert outside_page.shares_of(row) == pytest.approx([0.28])
    apart = plain | {"phases_ms": [90.0, 110.0]}, ready | {"phases_ms": [60.0]}
    row["pairs"] = [apart]  # with ready batches beside what is next to it
    assert outside_page.shares_of(row) == pytest.approx([0.4])


def test_a_page_without_marks_and_rows_without_claims_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no marks for dlio"):
        outside_page.filled("# A page\n", "dlio", "x")
    old = tmp_path / "old"
    old.write_text(json.dumps({"name": "vae", "why": [], "said": {"input": 0.1}}))
    with pytest.raises(ValueError, match="without what the report claims"):
        outside_page.rows_in([old])
