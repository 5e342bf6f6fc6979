"""Training scripts of every shape under `loaderdoctor diagnose`: real files, real processes.

The scripts in `shapes/` are written as people write them. All but a few wait 4 ms for each sample
and batch four, so the loader is what bounds them and `num_workers` is what helps.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scripts.running import SHAPES, Diagnosed, diagnose

pytestmark = [pytest.mark.scripts, pytest.mark.alone]
slow = pytest.mark.slow


def check_input_bound(done: Diagnosed, loader: str) -> None:
    """The verdict that all waiting loaders of these scripts deserve, and the medicine for it."""
    said = done.said
    assert done.code == 0, done.stderr
    assert (said.verdict.bound, said.verdict.severity) == ("input", "high"), done.summary
    assert said.step.definition.startswith(f"one batch of {loader}:"), said.step.definition
    assert "loader-in-main-process" in done.kinds, done.summary
    trials = said.trials[1:]
    assert trials, done.warnings
    assert {t.status for t in trials} == {"ok"}, trials
    assert said.step.wall_ms is not None
    assert min(t.step_ms for t in trials if t.step_ms) < said.step.wall_ms, trials
    assert said.recommendations, done.summary
    assert "internal-error" not in done.warnings, done.warnings
    assert "evidence-missing" not in done.warnings, done.warnings


@slow
def test_a_guarded_script_with_argparse_gets_its_own_arguments(tmp_path: Path) -> None:
    done = diagnose(
        SHAPES / "guard.py", "--epochs", "9", "--budget", "5", cwd=tmp_path, budget_s=12
    )
    check_input_bound(done, "guard.py")
    assert "epochs 9 5\n" in done.stdout
    assert "feeds the optimizer at tiny.py:" in done.said.step.definition
    assert "not valid" in done.stderr.splitlines()[0]


@slow
def test_paths_and_folders_of_a_script_are_its_own(tmp_path: Path) -> None:
    (tmp_path / "rate.txt").write_text("0.01\n")
    done = diagnose(SHAPES / "no_guard.py", "9", "rate.txt", cwd=tmp_path)
    check_input_bound(done, "no_guard.py")
    assert "argv ['9', 'rate.txt'] rate 0.01\n" in done.stdout
    assert done.folder.parent == tmp_path  # though the script went elsewhere
    assert not list((tmp_path / "run").glob("*report*"))
    assert list((done.folder / "tensorboard" / "baseline").glob("*.pt.trace.json.gz"))


@slow
def test_a_module_with_relative_imports_runs_with_m(tmp_path: Path) -> None:
    (tmp_path / "pkg").symlink_to(SHAPES / "pkg")
    done = diagnose("pkg.train", cwd=tmp_path, options=["-m"])
    check_input_bound(done, "data.py")
    assert "feeds the optimizer at train.py:" in done.said.step.definition


@slow
def test_a_folder_changed_by_a_configuration_framework_is_followed(tmp_path: Path) -> None:
    done = diagnose(SHAPES / "hydra_like.py", "trainer.epochs=9", "data.batch_size=4", cwd=tmp_path)
    check_input_bound(done, "hydra_like.py")
    assert (tmp_path / "outputs/2024-01-01/12-00-00/config.yaml").exists()


@slow
def test_a_loop_three_calls_deep_that_never_ends_is_found_and_stopped(tmp_path: Path) -> None:
    done = diagnose(SHAPES / "deep_loop.py", cwd=tmp_path)
    check_input_bound(done, "deep_loop.py")


@slow
@pytest.mark.parametrize("kind", ["bare", "Exception"])
def test_a_loop_that_swallows_every_error_is_measured_and_stopped(
    kind: str, tmp_path: Path
) -> None:
    done = diagnose(SHAPES / "catches_all.py", kind, cwd=tmp_path)
    check_input_bound(done, "catches_all.py")


@slow
def test_two_optimizers_make_no_step_of_their_own(tmp_path: Path) -> None:
    done = diagnose(SHAPES / "gan.py", cwd=tmp_path)
    check_input_bound(done, "gan.py")


@slow
def test_with_accumulated_gradients_a_step_is_a_batch(tmp_path: Path) -> None:
    done = diagnose(SHAPES / "accumulation.py", cwd=tmp_path)
    check_input_bound(done, "accumulation.py")


@slow
def test_a_closure_called_twenty_times_is_one_step(tmp_path: Path) -> None:
    done = diagnose(SHAPES / "lbfgs.py", cwd=tmp_path)
    check_input_bound(done, "lbfgs.py")


@slow
def test_a_loop_without_any_optimizer_is_told_by_its_backward_pass(tmp_path: Path) -> None:
    done = diagnose(SHAPES / "no_optim.py", cwd=tmp_path)
    check_input_bound(done, "no_optim.py")
    assert "feeds the backward pass at no_optim.py:" in done.said.step.definition


@slow
def test_zipped_loaders_are_one_step_and_the_slow_one_is_named(tmp_path: Path) -> None:
    done = diagnose(SHAPES / "zip_two.py", cwd=tmp_path)
    check_input_bound(done, "zip_two.py")
    slow_one, fast_one = done.said.loaders
    assert f"one batch of {slow_one.id} with one of {fast_one.id}" in done.said.step.definition
    assert done.finding("loader-in-main-process").loader == slow_one.id


@slow
def test_validation_is_no_part_of_the_step(tmp_path: Path) -> None:
    # Most of the time is validation, in which nothing is measured.
    done = diagnose(SHAPES / "train_and_validate.py", cwd=tmp_path, budget_s=45)
    check_input_bound(done, "train_and_validate.py")
    roles = {loader.n_samples: loader.role for loader in done.said.loaders}
    assert roles == {80: "train", 120: "other"}
    step = done.said.step
    assert step.steps_per_epoch == 20
    # Twenty steps and sixty-four times as much validation: a step stays a training step.
    assert step.wall_ms is not None and step.boundary_ms is not None
    assert step.boundary_ms < 20 * step.wall_ms


@slow
@pytest.mark.parametrize("script", ["own_iter.py", "endless_iterator.py", "background.py"])
def test_loader_classes_with_an_iter_of_their_own_are_measured(script: str, tmp_path: Path) -> None:
    done = diagnose(SHAPES / script, cwd=tmp_path)
    check_input_bound(done, script)


@slow
@pytest.mark.parametrize("how", ["forever", "moved", "stream"])
def test_a_loader_behind_a_generator_or_without_end_is_the_step(how: str, tmp_path: Path) -> None:
    done = diagnose(SHAPES / "generators.py", how, cwd=tmp_path)
    said = done.said
    assert (said.verdict.bound, said.verdict.severity) == ("input", "high"), done.summary
    assert "loader-in-main-process" in done.kinds, done.summary
    assert "internal-error" not in done.warnings, done.warnings
    (loader,) = said.loaders
    assert loader.id.startswith("generators.py:")
    assert said.step.definition.startswith(f"one batch of {loader.id} (which feeds ")
    assert said.step.steps_per_epoch == (None if how == "stream" else 100)
    # Each worker would read the whole stream again; elsewhere workers are tried if time is left.
    assert ("num_workers" in {w.setting for w in said.not_advised}) is (how == "stream")


@slow
@pytest.mark.parametrize("kind", ["object", "dict", "list"])
def test_batches_may_be_anything(kind: str, tmp_path: Path) -> None:
    done = diagnose(SHAPES / "batch_kinds.py", kind, cwd=tmp_path)
    check_input_bound(done, "batch_kinds.py")
    assert done.said.ablation is not None, done.warnings


@slow
def test_replayed_batches_are_said_to_be_replayed(tmp_path: Path) -> None:
    done = diagnose(SHAPES / "cycles.py", cwd=tmp_path)
    assert "itertools.cycle" in done.warnings["batches-replayed"]
    assert "in the first epoch only" in done.said.verdict.summary
    assert not done.said.recommendations


@slow
def test_the_profiler_of_the_script_is_left_alone(tmp_path: Path) -> None:
    done = diagnose(SHAPES / "own_profiler.py", cwd=tmp_path)
    check_input_bound(done, "own_profiler.py")


@slow
def test_of_processes_that_train_each_by_itself_one_is_measured(tmp_path: Path) -> None:
    done = diagnose(SHAPES / "trains_apart.py", cwd=tmp_path, options=["--no-verify"])
    assert done.code == 0, done.stderr
    assert done.said.verdict.bound == "input", done.summary
    assert "the first that trained" in done.warnings["process-alone"]
    assert not {"ranks-missing", "internal-error"} & set(done.warnings), done.warnings
    assert "behind the children" not in done.stdout  # ended with the measured one


@slow
def test_ranks_that_a_script_spawns_are_all_measured(tmp_path: Path) -> None:
    done = diagnose(SHAPES / "spawns_ranks.py", cwd=tmp_path, options=["--no-verify"])
    assert done.code == 0, done.stderr
    assert done.said.verdict.bound == "input", done.summary
    assert [rank.rank for rank in done.said.ranks] == [0, 1]
    assert "ranks-missing" not in done.warnings, done.warnings
