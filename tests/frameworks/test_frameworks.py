"""Unmodified framework scripts under `loaderdoctor diagnose`: tiny models made here, no network.

Needs the `frameworks` extra: `pytest -m frameworks`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scripts.running import Diagnosed, diagnose

pytestmark = pytest.mark.frameworks
SCRIPTS = Path(__file__).parent / "scripts"
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
BUDGET_S = 25.0


def run(script: str, *args: str, needs: str, cwd: Path) -> Diagnosed:
    pytest.importorskip(needs)
    done = diagnose(SCRIPTS / script, *args, cwd=cwd, budget_s=BUDGET_S, environment=OFFLINE)
    said = done.said
    assert done.code == 0, done.stderr
    assert (said.verdict.bound, said.verdict.severity) == ("input", "high"), done.summary
    assert "loader-in-main-process" in done.kinds, done.summary
    assert said.ablation is not None, done.warnings
    assert {t.status for t in said.trials} == {"ok"}, said.trials
    assert "num_workers" in done.settings, said.recommendations
    return done


def line_of(script: str, text: str) -> str:
    """`script:line` of the only line that holds the text."""
    lines = (SCRIPTS / script).read_text().splitlines()
    (number,) = [n for n, line in enumerate(lines, 1) if text in line]
    return f"{script}:{number}"


def test_lightning_names_the_loader_the_user_built_and_counts_no_validation(
    tmp_path: Path,
) -> None:
    done = run("with_lightning.py", needs="lightning", cwd=tmp_path)
    definition = done.said.step.definition
    assert definition.startswith(
        f"one batch of {line_of('with_lightning.py', 'DataLoader(Samples(1600)')} "
    ), definition
    assert "feeds the optimizer at with_lightning.py:" in definition
    assert done.said.step.steps_per_epoch == 400
    roles = {loader.n_samples: loader.role for loader in done.said.loaders}
    assert roles == {1600: "train", 64: "other"}
    change = " ".join(done.settings["num_workers"].code.split())
    assert "- return DataLoader(Samples(1600), batch_size=4, shuffle=True)" in change
    assert "+ return DataLoader(Samples(1600), batch_size=4, shuffle=True, num_workers=" in change


@pytest.mark.parametrize("accumulated", [1, 2])
def test_transformers_is_told_in_its_own_arguments(accumulated: int, tmp_path: Path) -> None:
    done = run(
        "with_transformers.py",
        str(tmp_path / "out"),
        str(accumulated),
        needs="transformers",
        cwd=tmp_path,
    )
    definition = done.said.step.definition
    assert definition.startswith("one batch of with_transformers.py:"), definition
    assert done.said.step.steps_per_epoch == 1000
    change = done.settings["num_workers"].code
    assert "+         dataloader_num_workers=" in change, change


def test_accelerate_names_the_loader_that_was_prepared(tmp_path: Path) -> None:
    done = run("with_accelerate.py", needs="accelerate", cwd=tmp_path)
    definition = done.said.step.definition
    assert definition.startswith(
        f"one batch of {line_of('with_accelerate.py', 'loader = DataLoader(')} "
    ), definition
    assert "feeds the optimizer at with_accelerate.py:" in definition
    change = " ".join(done.settings["num_workers"].code.split())
    assert "+ loader = DataLoader(Samples(), batch_size=4, shuffle=True, num_workers=" in change
