"""What lies outside the training steps, from a real script under `diagnose`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scripts.running import SHAPES, diagnose

pytestmark = [pytest.mark.scripts, pytest.mark.slow, pytest.mark.alone]


@pytest.mark.parametrize(("when", "every"), [("often", 4), ("epochs", 16)])
def test_validation_and_saving_are_told_of_by_place_and_period(
    when: str, every: int, tmp_path: Path
) -> None:
    done = diagnose(SHAPES / "outside_the_steps.py", when, cwd=tmp_path, options=["--no-verify"])
    wall = done.said.wall
    assert wall is not None
    parts = {str(part.what): part for part in wall.outside}
    assert {"validation", "saving"} <= set(parts)
    for what, seconds in (("validation", 0.12), ("saving", 0.05)):
        part = parts[what]
        assert part.every_steps == pytest.approx(every, rel=0.02)
        assert seconds <= part.seconds < 3 * seconds
        assert part.at_epoch_end == (when == "epochs")
        assert (part.site or "").startswith("outside_the_steps.py:")
    assert wall.total_ms == pytest.approx(wall.step_ms + wall.outside_ms)
    assert wall.outside_ms > 170 / every
    found = done.finding("time-outside-steps")
    assert found.share == pytest.approx(wall.outside_share)
    if when == "often":  # 42 ms and more next to a step of 10
        assert (done.said.verdict.bound, done.said.verdict.severity) == ("outside", "high")
        assert done.said.recommendations[0].setting.startswith("Validate less often")


def test_a_loop_with_nothing_but_steps_is_told_of_nothing_else(tmp_path: Path) -> None:
    done = diagnose(SHAPES / "outside_the_steps.py", "never", cwd=tmp_path, options=["--no-verify"])
    wall = done.said.wall
    assert wall is not None
    assert wall.outside == ()
    assert wall.total_ms == done.said.step.wall_ms
    assert "time-outside-steps" not in done.kinds
    assert done.said.verdict.bound != "outside"


def test_training_that_goes_on_with_another_loader_is_what_is_judged(tmp_path: Path) -> None:
    done = diagnose(SHAPES / "two_loaders.py", "phases", cwd=tmp_path, options=["--no-verify"])
    roles = {x.id: x.role for x in done.said.loaders}
    assert (roles["two_loaders.py:11"], roles["two_loaders.py:10"]) == ("train", "other")
    assert "two_loaders.py:10" in done.warnings["loader-changed"]
    assert done.said.verdict.bound == "input", done.summary
    assert done.share > 0.3  # 16 of 24 ms and the rest of the step, by construction


def test_another_loader_that_trains_by_turns_is_no_validation(tmp_path: Path) -> None:
    done = diagnose(SHAPES / "two_loaders.py", "turns", cwd=tmp_path, options=["--no-verify"])
    wall = done.said.wall
    assert wall is not None
    assert not [part for part in wall.outside if part.what == "validation"]
    (part,) = wall.elsewhere
    assert (part.what, part.site, part.n_batches) == ("training", "two_loaders.py:11", 24)
    assert done.finding("trains-elsewhere").evidence["n_batches"] == 24
    assert "no_grad" not in done.stdout
