"""Each reference loop runs as a plain script, trains, repeats itself and says what it trains on."""

from __future__ import annotations

import math
import pickle
from pathlib import Path

import numpy as np
import pytest

from loaderdoctor.recipes import find
from tests.recipes.running import RECIPES, THREE_STEPS, fail, losses, run, run_all

pytest.importorskip("torchvision")
pytestmark = pytest.mark.scripts

LADDER = (
    *("--amp", "--uint8", "--num-workers", "1", "--pin-memory", "--non-blocking"),
    *("--prefetch-factor", "4", "--persistent-workers"),
    *("--channels-last", "--cudnn-benchmark", "--fused-optimizer"),
)
# Makes the interpreter start workers as Python 3.14 and macOS do: everything they need is pickled.
SPAWN = "import multiprocessing\nmultiprocessing.set_start_method('spawn')\n"


@pytest.mark.parametrize("name", THREE_STEPS)
def test_a_recipe_is_described_and_knows_nothing_of_us(name: str) -> None:
    recipe = find(name).check()
    assert recipe.name == name
    assert recipe.folder == RECIPES / name
    assert "loaderdoctor" not in "".join(p.read_text() for p in recipe.folder.glob("*.py"))
    if "_photos" in recipe.script.read_text():
        assert "CC BY 2.0" in recipe.description


@pytest.fixture(scope="module")
def three_steps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each recipe prints in three steps, by name."""
    return run_all(THREE_STEPS, cwd=tmp_path_factory.mktemp("recipes"))


@pytest.mark.parametrize("name", THREE_STEPS)
def test_three_steps_end_with_a_finite_loss(name: str, three_steps: dict[str, str]) -> None:
    (loss,) = losses(three_steps[name])
    assert math.isfinite(loss)
    assert loss > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", THREE_STEPS)
def test_workers_can_be_spawned(name: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SPAWN)
    options = (*THREE_STEPS[name], "--num-workers", "1")
    (loss,) = losses(run(name, *options, cwd=tmp_path, PYTHONPATH=str(tmp_path)))
    assert math.isfinite(loss)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("tensors", "--epochs 2"),
        ("tokens", "--samples 1600 --max-length 64 --epochs 2 --trim --vectorised"),
        ("multimodal", "--samples 800 --epochs 4"),
    ],
)
def test_a_loop_learns(name: str, options: str, tmp_path: Path) -> None:
    first, *_, last = losses(run(name, *options.split(), cwd=tmp_path))
    assert last < 0.8 * first


@pytest.mark.slow
def test_every_rung_is_an_option_and_cutouts_are_not_passed_off_as_cifar10(tmp_path: Path) -> None:
    out = run("cifar10-mobilenetv2", *THREE_STEPS["cifar10-mobilenetv2"], *LADDER, cwd=tmp_path)
    assert math.isfinite(losses(out)[0])
    assert "cut-outs of two photos, not CIFAR-10" in out
    assert "not CIFAR-10" in find("cifar10-mobilenetv2").description


@pytest.mark.slow
@pytest.mark.parametrize("rung", [(), ("--uint8",)])
def test_cifar10_is_read_in_torchvisions_layout(rung: tuple[str, ...], tmp_path: Path) -> None:
    """Stand-in files in the true layout; only the comparison of MD5 sums is left out."""
    (tmp_path / "sitecustomize.py").write_text(
        "import torchvision.datasets.cifar as cifar\n"
        "cifar.check_integrity = lambda path, md5=None: cifar.os.path.isfile(path)\n"
    )
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    random = np.random.default_rng(0)
    for half in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        # No picture twice: of a batch of equals batch norm finds no variance, and steps explode.
        pixels = random.integers(256, size=(4, 3 * 32 * 32), dtype=np.uint8)
        (folder / half).write_bytes(pickle.dumps({"data": pixels, "labels": [0, 3, 6, 9]}))
    (folder / "batches.meta").write_bytes(
        pickle.dumps({"label_names": [str(i) for i in range(10)]})
    )
    options = ("--data-dir", str(tmp_path), "--batch-size", "10", *rung)
    out = run("cifar10-mobilenetv2", *options, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert "20 images, CIFAR-10, at 16x16" in out
    assert math.isfinite(losses(out)[0])


@pytest.mark.slow
def test_a_folder_without_cifar10_says_what_was_looked_for(tmp_path: Path) -> None:
    err = fail("cifar10-mobilenetv2", "--data-dir", str(tmp_path), cwd=tmp_path)
    assert "cifar-10-batches-py" in err


@pytest.mark.slow
def test_the_same_seed_gives_the_same_losses_and_another_one_others(tmp_path: Path) -> None:
    def train(seed: int, workers: int) -> list[float]:
        options = ("--samples", "64", "--max-length", "16", "--epochs", "2", "--trim")
        words = (*options, "--seed", str(seed), "--num-workers", str(workers))
        return losses(run("tokens", *words, cwd=tmp_path))

    assert train(1, 0) == train(1, 1) != train(2, 0)


@pytest.mark.slow
def test_fewer_images_than_a_batch_are_refused(tmp_path: Path) -> None:
    assert "fill no batch of 32" in fail("cifar10-mobilenetv2", "--samples", "31", cwd=tmp_path)
