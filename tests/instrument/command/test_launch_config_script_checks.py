"""What is no training script is told at once, with what to give instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from loaderdoctor.errors import UsageError
from loaderdoctor.instrument.command.launch_config import check_script

SPAWNED = """
from torch.utils.data import DataLoader
loader = DataLoader(data, batch_size=8, num_workers=2, multiprocessing_context="spawn")
for x in loader:
    pass
"""
GUARDED = SPAWNED.replace("for x in loader:", 'if __name__ == "__main__":')
IN_A_FUNCTION = "\ndef main():" + SPAWNED.replace("\n", "\n    ") + "\nmain()\n"


def refusal(path: Path) -> str:
    with pytest.raises(UsageError) as error:
        check_script(path)
    said = str(error.value)
    assert "\n" not in said
    return said


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.ipynb", '{"cells": []}', "jupyter nbconvert --to script"),
        ("c.yaml", "lr: 1\n", "a configuration"),
        ("c.json", '{"lr": 1}', "a configuration"),
        ("t.json", '{"traceEvents": []}', "loaderdoctor analyze"),
        ("model.pt", "PK", "a model's weights"),
        ("run.sh", "echo hi\n", "loaderdoctor diagnose train.py …"),
        ("go", "#!/usr/bin/env bash\npython train.py --lr 1 # now\n",
         "loaderdoctor diagnose train.py --lr 1"),
        ("run.sh", "export A=1\npython3.11 -m pkg.train \\\n  --epochs 3\n",
         "loaderdoctor diagnose -m pkg.train --epochs 3"),
        ("train.txt", "it's a text\n", "not Python"),
    ],
)  # fmt: skip
def test_files_of_other_kinds_name_their_way_out(
    name: str, text: str, said: str, tmp_path: Path
) -> None:
    path = written(tmp_path, name, text)
    assert said in refusal(path)


def test_the_command_that_was_asked_for_is_the_one_to_type(tmp_path: Path) -> None:
    for name, text in (
        ("c.yaml", "lr: 1\n"),
        ("go.sh", "python t.py\n"),
        ("p/t.py", "from . import x"),
    ):
        path = written(tmp_path, name, text)
        with pytest.raises(UsageError, match="loaderdoctor run "):
            check_script(path, "run")


def test_a_folder_with_one_script_names_it(tmp_path: Path) -> None:
    path = written(tmp_path, "fit.py", "pass\n")
    assert f"Did you mean {path}?" in refusal(tmp_path)
    written(tmp_path, "model.py", "pass\n")
    assert "Give the script in it" in refusal(tmp_path)


def test_a_folder_names_the_script_in_it(tmp_path: Path) -> None:
    assert "Give the script in it" in refusal(tmp_path)
    path = written(tmp_path, "train.py", "pass\n")
    assert f"Did you mean {path}?" in refusal(tmp_path)


def test_a_file_of_a_package_is_to_be_run_as_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, "pkg/__init__.py", "")
    written(tmp_path, "pkg/sub/__init__.py", "")
    path = written(tmp_path, "pkg/sub/train.py", "from ..model import Net\n")
    assert refusal(path).endswith(f"cd {tmp_path} && loaderdoctor diagnose -m pkg.sub.train")
    monkeypatch.chdir(tmp_path)
    assert refusal(path).endswith("as a module: loaderdoctor diagnose -m pkg.sub.train")


def test_a_package_without_init_files_is_one_too(tmp_path: Path) -> None:
    path = written(tmp_path, "pkg/train.py", "from .model import Net\n")
    assert "-m pkg.train" in refusal(path)


@pytest.mark.parametrize(
    "text",
    [
        "pass\n",
        "try:\n    from .model import Net\nexcept ImportError:\n    from model import Net\n",
        "def later():\n    from .model import Net\n",
        "def broken(:\n",  # Python shows the line itself
        GUARDED,
        IN_A_FUNCTION,  # whether it is called in a worker is not known
        SPAWNED.replace('"spawn"', '"fork"'),
        SPAWNED.replace("num_workers=2", "num_workers=n"),
        SPAWNED.replace("num_workers=2", "num_workers=0"),
    ],
)
def test_what_may_run_is_never_refused(text: str, tmp_path: Path) -> None:
    check_script(written(tmp_path, "train.py", text))


def test_spawned_workers_without_a_main_guard_are_told(tmp_path: Path) -> None:
    path = written(tmp_path, "train.py", SPAWNED)
    assert 'if __name__ == "__main__":' in refusal(path)
