"""Work of the loop's own is named by its line, what it calls and where it lies, without a flag."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.scripts.running import HERE, Diagnosed, diagnose

pytestmark = [pytest.mark.scripts, pytest.mark.slow]
LOOP_WORK = HERE / "loop_work"


def diagnosed(what: str, tmp_path: Path) -> Diagnosed:
    done = diagnose(LOOP_WORK / "work.py", what, cwd=tmp_path, options=["--no-verify"], budget_s=60)
    assert done.code == 0, done.stderr
    return done


@pytest.mark.parametrize(
    ("what", "early"),
    [("numpy", True), ("deepcopy", False), ("elements", True)],
)
def test_the_line_that_works_is_named_with_what_it_does(
    what: str, early: bool, tmp_path: Path
) -> None:
    done = diagnosed(what, tmp_path)
    assert "work-between-steps" in done.kinds, done.summary
    finding = done.finding("work-between-steps")
    evidence = finding.evidence
    assert evidence["what"] == what, finding.summary
    # None where too few samples fell into the model's passes to tell: never the wrong side.
    assert evidence["before_forward_pass"] in (early, None), finding.summary
    assert Path(str(evidence["file"])).name == "work.py"
    source = (LOOP_WORK / "work.py").read_text().splitlines()
    if what == "elements":
        assert "the_work (work.py:" in finding.summary
        assert "work.py:" in str(evidence["called_from"])
    else:
        assert source[int(str(evidence["line"])) - 1].endswith("# the work"), finding.summary
    if sys.version_info >= (3, 11) and what == "deepcopy":
        assert evidence["calls"] == "copy.deepcopy"


def test_saving_in_each_step_is_told_once_by_its_line(tmp_path: Path) -> None:
    done = diagnosed("save", tmp_path)
    assert "work-between-steps" not in done.kinds, done.summary
    finding = done.finding("time-outside-steps")
    source = (LOOP_WORK / "work.py").read_text().splitlines()
    (line,) = [n for n, text in enumerate(source, 1) if "torch.save" in text]
    assert f"Saving (work.py:{line})" in finding.summary


def test_a_heavy_model_has_no_work_between_its_steps(tmp_path: Path) -> None:
    done = diagnosed("heavy", tmp_path)
    assert "work-between-steps" not in done.kinds, done.summary
    assert done.said.verdict.bound == "compute"


def test_a_replay_buffer_without_a_loader_is_named_by_its_line(tmp_path: Path) -> None:
    done = diagnose(LOOP_WORK / "replay.py", cwd=tmp_path, budget_s=60)
    assert done.code == 0, done.stderr
    assert "--with-stack" not in done.stdout
    finding = done.finding("work-between-steps")
    assert "buffer.sample(128)" in finding.summary
    assert Path(str(finding.evidence["file"])).name == "replay.py"
    assert "torch.randint" in (finding.advice or "")
