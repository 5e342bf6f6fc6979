"""The table of promises: which rows hold, which are misses, what is proven of several."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import prescription  # type: ignore[import-not-found]

PROOF = {
    "changes": "num_workers=2 (now 0)",
    "before_ms": {"value": 10.0},
    "after_ms": {"value": 5.0},
    "speed_up": {"value": 2.0, "low": 1.9, "high": None},
    "promised_speed_up": 2.1,
    "promise_at_best": False,
    "promise_kept": True,
    "numerics": "redrawn",
    "as_expected": True,
    "training": "other random draws",
}


@pytest.fixture
def row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """One script through commands that answer at once; change 1 can't be written, 2 can."""

    def of(proof: dict[str, Any] | None, *, advises: bool = True) -> dict[str, Any]:
        def answer(words: list[str], *_: Any, **__: Any) -> str:
            if words[0] == "diagnose":
                run = Path(words[words.index("--output") + 1])
                run.mkdir(parents=True)
                report = {
                    "verdict": {"bound": "input", "severity": "high"},
                    "step": {"wall_ms": 10.0},
                    "recommendations": [{"setting": "x"}] if advises else [],
                }
                (run / "report.json").write_text(json.dumps(report))
            if words[0] == "apply" and words[-1] == "1":
                raise prescription.StepError("apply: belongs to an installed package")
            if words[0] == "prove":
                assert words[-1] == "2"
                if proof is None:
                    raise prescription.StepError("prove: The changed script failed")
                (Path(words[-2]) / "proofs.json").write_text(json.dumps([proof]))
            return ""

        monkeypatch.setattr(prescription, "_ours", answer)
        (tmp_path / "scripts").mkdir(exist_ok=True)
        case = prescription.Case(name="a", folder=tmp_path / "scripts", words=("a.py",))
        args = argparse.Namespace(runs=None, budget=20.0, turns=3, max_turns=3, seconds=2.0)
        share = prescription.Share(cpus=(0,), gpu=None)
        found: dict[str, Any] = prescription.row_of(case, args, share)
        return found

    return of


def test_a_row_holds_where_the_promise_and_the_losses_do(
    row: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    good = row(PROOF)
    assert prescription.held(good) is True
    assert prescription.held(row(PROOF | {"promise_kept": False})) is False
    assert prescription.held(row(PROOF | {"promise_kept": None})) is False
    changed = PROOF | {"numerics": "changed"}
    assert prescription.held(row(changed)) is True  # by numerics, as the advice said
    assert prescription.held(row(changed | {"as_expected": False})) is False
    unknown = PROOF | {"numerics": "unknown", "as_expected": None}
    assert prescription.held(row(unknown)) is None  # as promised, and nothing known of the rest
    assert prescription.held(row(unknown | {"promise_kept": False})) is False
    assert prescription.held(row(unknown | {"as_expected": False})) is False  # samples are lost
    noisy = PROOF | {"promised_gain": True, "speed_up": {"value": 1.2, "low": 0.9, "high": 2.2}}
    assert prescription.held(row(noisy)) is None  # 2.1 is not ruled out, and no gain is shown
    assert prescription.held(row(noisy | {"promised_gain": False})) is True
    assert prescription.held(row(noisy | {"promise_kept": False})) is False
    open_ = row(changed | {"as_expected": None})
    assert prescription.held(open_) is None
    failed, silent = row(None), row(PROOF, advises=False)
    assert prescription.held(failed) is False
    assert prescription.held(silent) is None
    prescription.print_table([good, failed, silent, open_, row(noisy)])
    out = capsys.readouterr().out
    assert "| 1 by hand; num_workers=2 (now 0) | 10 → 5 | 2.10× | 2.00× [1.90, inf] |" in out
    assert "The changed script failed | **no** |" in out
    assert "| speed yes, training not known |" in out
    assert "| open: no gain shown, none ruled out |" in out
    left = "of 1 the proof decides nothing; of 1 the speed alone, training is not known."
    assert f"1 of 4 held; {left}" in out


def test_gpus_are_those_that_the_caller_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert [part.gpu for part in prescription.shares(3)] == ["3", "5", "3"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert [part.gpu for part in prescription.shares(2)] == ["0", "1"]


def test_the_machine_is_divided_without_overlap() -> None:
    parts = prescription.shares(2)
    assert len(parts) == 2
    assert all(part.cpus for part in parts)
    if len(prescription.os.sched_getaffinity(0)) >= 2:
        assert not set(parts[0].cpus) & set(parts[1].cpus)
