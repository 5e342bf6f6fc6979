"""Scripts that cut their own batches: profiled, and told what is not known without a DataLoader."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scripts.recorded import recorded
from tests.scripts.running import SHAPES, Diagnosed, diagnose

pytestmark = pytest.mark.scripts
slow = pytest.mark.slow


def check_own_batches(done: Diagnosed, definition: str = "one step of own_batches.py:") -> None:
    said = done.said
    assert said.command == "diagnose"
    assert said.step.definition.startswith(definition), said.step.definition
    assert "Nothing worth changing" not in done.summary  # that is known of nothing here
    assert "healthy" not in done.stdout
    assert said.step.count >= 4
    assert said.shares is not None
    assert said.shares.input is None  # what the loop's own batches cost can't be told
    assert said.shares.compute is not None
    assert said.shares.compute > 0
    assert "no-loader" in done.warnings, done.warnings
    assert "in the workers," not in done.summary
    assert list((done.folder / "tensorboard" / "baseline").glob("*.pt.trace.json.gz"))


@slow
def test_a_loop_that_cuts_its_own_batches_is_profiled_and_not_waited_for(tmp_path: Path) -> None:
    done = diagnose(SHAPES / "own_batches.py", str(10**9), cwd=tmp_path)
    assert done.code == 0, done.stderr
    check_own_batches(done)
    assert "DataLoader gets other batches" in done.stderr.splitlines()[0]  # if there is one
    assert "trained" not in done.stdout


@slow
def test_a_loader_class_that_makes_all_batches_itself_is_not_waited_for(tmp_path: Path) -> None:
    done = diagnose(SHAPES / "own_batches.py", str(10**9), "--subclass", cwd=tmp_path)
    assert done.code == 0, done.stderr
    check_own_batches(done)
    assert "its class replaces __iter__" in done.warnings["no-loader"]


@slow
def test_a_loop_that_updates_its_parameters_by_hand_is_profiled_too(tmp_path: Path) -> None:
    done = diagnose(SHAPES / "own_batches.py", str(10**9), "--by-hand", cwd=tmp_path)
    assert done.code == 0, done.stderr
    check_own_batches(done)


@slow
def test_a_step_of_many_backward_passes_is_one_step(tmp_path: Path) -> None:
    done = diagnose(SHAPES / "own_batches.py", str(10**9), "--closure", cwd=tmp_path)
    assert done.code == 0, done.stderr
    check_own_batches(done)
    lines = (SHAPES / "own_batches.py").read_text().splitlines()
    (at,) = (n for n, line in enumerate(lines, 1) if "# the one step" in line)
    assert done.said.step.definition == f"one step of own_batches.py:{at}"


@slow
def test_of_a_step_too_large_to_profile_its_backward_passes_are(tmp_path: Path) -> None:
    done = diagnose(SHAPES / "huge_closure.py", cwd=tmp_path)
    assert done.code == 0, done.stderr
    lines = (SHAPES / "huge_closure.py").read_text().splitlines()
    (at,) = (n for n, line in enumerate(lines, 1) if "# the one pass" in line)
    check_own_batches(done, f"one backward pass at huge_closure.py:{at}")


@slow
def test_a_loop_without_a_loader_runs_to_its_end_where_asked(tmp_path: Path) -> None:
    done = recorded(SHAPES / "own_batches.py", "6000", cwd=tmp_path)
    assert done.code == 0, done.stderr
    assert done.stdout == "trained 6000\n"
    assert "no torch DataLoader was iterated" in done.stderr
    assert not done.folder.exists()  # there was nothing to tell


@slow
def test_what_lies_between_the_steps_of_such_a_loop_is_told_first(tmp_path: Path) -> None:
    """Rollouts take four fifths of it; none is among the steps that are profiled."""
    done = diagnose(SHAPES / "rollouts.py", str(10**9), cwd=tmp_path)
    assert done.code == 0, done.stderr
    verdict, wall = done.said.verdict, done.said.wall
    assert (verdict.bound, verdict.severity) == ("outside", "high"), done.summary
    assert wall is not None
    (part,) = wall.outside
    assert part.what == "other"
    assert part.every_steps == 40
    assert 0.5 < wall.outside_share < 0.98
    assert wall.total_ms == pytest.approx(wall.step_ms + part.seconds * 1e3 / 40)
    assert "time-outside-steps" in done.kinds
    assert "play" in done.finding("time-outside-steps").summary  # the function, by its line
    recorded_ms = done.said.step.count * (done.said.step.wall_ms or 0.0)
    assert recorded_ms < part.seconds * 1e3  # no rollout in the trace
