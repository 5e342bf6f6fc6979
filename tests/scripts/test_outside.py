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
