"""Recipes are found, described and runnable; a wrong one says what is wrong."""

from __future__ import annotations

import gzip
import importlib.util
import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest
from rich.console import Console

from loaderdoctor.commands import inventory as env_command
from loaderdoctor.commands import inventory as recipes_command
from loaderdoctor.errors import UsageError
from loaderdoctor.instrument.system.machine import look
from loaderdoctor.recipes import all_recipes, find, read

ROOT = Path(__file__).parent.parent
MNIST = ROOT / "recipes" / "mnist"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def write_recipe(folder: Path, **changed: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "loop.py").write_text("raise SystemExit('reading a recipe must not run it')\n")
    described = {"name": "mine", "summary": "My loop.", "script": "loop.py", **changed}
    (folder / "recipe.json").write_text(json.dumps(described))
    return folder


@pytest.fixture
def idx() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mnist_idx", MNIST / "idx.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_mnist_is_found_by_name_and_names_its_licence() -> None:
    recipe = find("mnist")
    assert recipe.script == MNIST / "train.py"
    assert "CC BY-SA 3.0" in recipe.description
    assert (recipe.folder / "data" / "LICENSE.txt").is_file()
    assert "num_workers" in recipe.sweeps


def test_every_recipe_that_comes_with_the_program_can_be_read() -> None:
    assert {"mnist"} <= {recipe.name for recipe in all_recipes()}


def test_a_folder_of_the_users_own_is_a_recipe(tmp_path: Path) -> None:
    folder = write_recipe(tmp_path / "mine", args=["--epochs", "9"], requires=["json"])
    recipe = find(str(folder))
    assert (recipe.name, recipe.args, recipe.missing) == ("mine", ("--epochs", "9"), ())
    assert find(str(folder / "recipe.json")) == recipe


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match="mnist"):
        find("mnits")


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"script": "gone.py"}, "gone.py is not in"),
        ({"sweeps": ["workers"]}, "the axes are num_workers"),
        ({"args": "--epochs 3"}, "args"),
        ({"naem": "x"}, "naem"),
    ],
)
def test_a_wrong_description_names_the_file_and_the_fault(
    tmp_path: Path, changed: dict[str, Any], says: str
) -> None:
    folder = write_recipe(tmp_path / "mine", **changed)
    with pytest.raises(UsageError, match=says) as caught:
        read(folder)
    assert "recipe.json" in str(caught.value)


def test_a_folder_without_a_description_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"recipe\.json: can't be read"):
        find(str(tmp_path))


def test_missing_modules_are_named_with_what_installs_them(tmp_path: Path) -> None:
    folder = write_recipe(tmp_path / "mine", requires=["json", "no_such.module"], extra="recipes")
    with pytest.raises(UsageError, match=r"no_such.module: pip install 'loaderdoctor\[recipes\]'"):
        read(folder).check()


def test_the_list_shows_every_recipe_on_a_narrow_terminal() -> None:
    console = Console(width=60, record=True, file=io.StringIO())
    assert recipes_command.recipes(console) == 0
    assert "mnist" in console.export_text()


def test_the_shipped_digits_are_a_sound_subset(idx: ModuleType) -> None:
    images, labels = idx.load_mnist(MNIST / "data", train=True)
    assert (images.shape, labels.shape) == ((4500, 28, 28), (4500,))
    test_images, test_labels = idx.load_mnist(MNIST / "data", train=False)
    assert (len(test_images), len(test_labels)) == (500, 500)
    assert set(labels.tolist()) == set(range(10))


@pytest.mark.parametrize("layout", [".", "raw", "MNIST/raw"])
def test_a_data_set_is_found_in_torchvisions_layout_too(
    idx: ModuleType, tmp_path: Path, layout: str
) -> None:
    folder = tmp_path / layout
    folder.mkdir(parents=True, exist_ok=True)
    for source in (MNIST / "data").glob("*.gz"):
        (folder / source.stem).write_bytes(gzip.decompress(source.read_bytes()))
    images, _ = idx.load_mnist(tmp_path, train=False)
    assert images.shape == (500, 28, 28)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"<html>", "not an IDX file"),
        (b"\0\0\x08\x03\0\0", "ends inside its header"),
        (b"\0\0\x08\x01\0\0\0\x05abc", "3 bytes of data where its header says 5"),
        (b"\x1f\x8bbroken", "can't be read"),
        (b"\0\0\x08\xff" + bytes(255 * 4), "255 dimensions where 1 or 3 belong"),
        (b"\0\0\x08\x04" + 4 * b"\0\1\0\0", "its header says 18,446,744,073,709,551,616 bytes"),
        (b"\0\0\x08\x02" + b"\xff\xff\xff\xff" + bytes(4), "its header says 0 bytes"),
        (gzip.compress(b"\0\0\x08\x01\0\0\0\x05" + bytes(1 << 24)), "more bytes of data"),
    ],
)
def test_a_broken_data_file_says_what_is_wrong(
    idx: ModuleType, tmp_path: Path, content: bytes, says: str
) -> None:
    path = tmp_path / "train-labels-idx1-ubyte"
    path.write_bytes(content)
    with pytest.raises(idx.DataError, match=says):
        idx.read_idx(path)


def test_a_folder_without_data_says_what_it_looked_for(idx: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(idx.DataError, match=r"no train-images-idx3-ubyte or .*--data-dir"):
        idx.load_mnist(tmp_path, train=True)


@pytest.mark.scripts
def test_mnist_runs_as_a_plain_script_from_anywhere_and_learns(tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    done = subprocess.run(
        [sys.executable, str(MNIST / "train.py"), "--epochs", "1", "--device", "cpu"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=True,
    )
    accuracy = float(done.stdout.split("accuracy ")[1].split("%")[0])
    assert accuracy > 70  # chance is 10
    assert "loaderdoctor" not in (MNIST / "train.py").read_text()


def test_env_prints_usable_cpus_and_survives_a_broken_torch() -> None:
    broken = env_command.ask_torch((sys.executable, "-c", "raise ImportError('libcuda')"))
    assert env_command.torch_rows(broken) == [("torch", "can't be used: ImportError: libcuda")]
    rows = dict(env_command.machine_rows(look()))
    assert float(rows["usable CPUs"].split()[0]) > 0
    assert rows["load"] == "what other programs use is not known"
    facts = env_command.TorchFacts(
        version="2.14.1", cuda=None, hip="6.4", gpus=(), n_threads=1, start_method="fork"
    )
    assert dict(env_command.torch_rows(facts))["torch"] == "2.14.1 (ROCm 6.4)"


@pytest.mark.parametrize(
    ("built", "locked", "said"),
    [
        (0, True, ""),
        (1, False, ", free-threaded"),
        (1, True, ", free-threaded with the lock on"),
    ],
)
def test_env_tells_an_interpreter_without_its_lock(
    built: int, locked: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = "loaderdoctor.commands.inventory.sysconfig.get_config_var"
    monkeypatch.setattr(known, lambda name: built)
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: locked, raising=False)
    row = dict(env_command.machine_rows(look()))["loaderdoctor"]
    assert row.partition(" on Python ")[2] == sys.version.split()[0] + said


def test_env_tells_what_other_programs_use() -> None:
    machine = replace(look(), usable_cpus=8.0)
    busy = env_command.Load(other_cores=3.2, averages=(4.0, 3.0, 2.5))
    row = dict(env_command.machine_rows(machine, busy))["load"]
    assert row.startswith("other programs use 3.2 of the usable CPUs: busy")
    assert row.endswith("load average 4.00, 3.00, 2.50 (1, 5, 15 minutes)")
    quiet = env_command.Load(other_cores=0.1, averages=None)
    row = dict(env_command.machine_rows(machine, quiet))["load"]
    assert row == "other programs use 0.1 of the usable CPUs"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_env_sees_a_program_that_is_busy_now() -> None:
    code = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'while True: "
    code += "pass'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid)"
    started = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    hog = psutil.Process(int(started.stdout))
    try:
        before = hog.cpu_times().user
        load = env_command.look_at_load(1.0)
        used = hog.cpu_times().user - before
    finally:
        hog.kill()
    assert load.other_cores is not None
    assert load.other_cores >= 0.7 * used
