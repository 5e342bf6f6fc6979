"""Loops that work anew for each new shape compute: it is not their loader that costs the step."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scripts.running import SHAPES, diagnose

pytestmark = [pytest.mark.scripts, pytest.mark.slow, pytest.mark.alone]
SCRIPT = SHAPES / "new_shapes.py"
OPTIONS = ["--no-verify"]


@pytest.mark.parametrize("how", ["plan", "nested"])
def test_a_plan_for_each_shape_computes(how: str, tmp_path: Path) -> None:
    done = diagnose(SCRIPT, how, cwd=tmp_path, options=OPTIONS)
    assert done.said.verdict.bound == "compute", done.summary
    found = done.finding("compute-depends-on-new-shapes")
    assert found.severity == "high"
    assert found.evidence["line"] in (None, *range(16, 20), *range(40, 46))  # `busy` or `plan`
    ablation = done.said.ablation
    assert ablation is not None and ablation.new_shape_part == 1.0


def test_code_compiled_for_each_shape_computes(tmp_path: Path) -> None:
    done = diagnose(SCRIPT, "compile", cwd=tmp_path, options=OPTIONS)
    assert done.said.verdict.bound == "compute", done.summary
    found = done.finding("recompilation")
    assert found.severity == "high"
    assert found.evidence["compilations_per_step"] == pytest.approx(1.0, abs=0.1)
    assert "size mismatch" in str(found.evidence["reason"])
    assert "dynamic=True" in done.stdout


@pytest.mark.parametrize("how", ["compile_dynamic", "twenty", "changes", "numbers"])
def test_what_is_made_once_or_for_few_shapes_is_no_finding(how: str, tmp_path: Path) -> None:
    done = diagnose(SCRIPT, how, cwd=tmp_path, options=OPTIONS)
    assert done.said.verdict.bound != "input", done.summary
    assert not done.kinds & {"recompilation", "compute-depends-on-new-shapes"}, done.summary


def test_a_slow_loader_of_many_shapes_is_still_the_loaders(tmp_path: Path) -> None:
    done = diagnose(SCRIPT, "loader", cwd=tmp_path, options=OPTIONS)
    assert (done.said.verdict.bound, done.said.verdict.severity) == ("input", "high"), done.summary
    assert done.share > 0.7
