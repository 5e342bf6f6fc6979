"""What is given by mistake: one line says what it is and what to type, and the exit code is 2."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from loaderdoctor.cli import main

TRACE = '{"traceEvents": []}'
PACKAGE = "from . import other\n"
UNGUARDED = """
from torch.utils.data import DataLoader
loader = DataLoader(data, num_workers=2, multiprocessing_context="spawn")
"""

Said = Callable[..., str]


@pytest.fixture
def said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Said:
    """Runs a command in an empty folder with one file, and gives its one line."""
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_USE_AGENT_STORE"):
        monkeypatch.delenv(name, raising=False)

    def run(*words: str, name: str = "", text: str = "") -> str:
        if name:
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text(text, encoding="utf-8")
        monkeypatch.setattr("sys.argv", ["loaderdoctor", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        out, err = capsys.readouterr()
        assert out == ""
        (line,) = err.splitlines()
        return line

    return run


@pytest.mark.parametrize("command", ["analyze", "report"])
def test_an_empty_path_is_not_the_current_folder(said: Said, command: str) -> None:
    assert "A path is empty" in said(command, "")


@pytest.mark.parametrize("command", ["diagnose", "sweep", "run"])
@pytest.mark.parametrize(
    ("name", "text", "way_out"),
    [
        ("a.ipynb", '{"cells": []}', "a notebook. Measure its loop where it runs"),
        ("pkg/train.py", PACKAGE, "loaderdoctor {command} -m pkg.train"),
        ("train.py", UNGUARDED, 'under `if __name__ == "__main__":`'),
        ("go.sh", "python train.py --lr 1\n", "loaderdoctor {command} train.py --lr 1"),
        ("conf.yaml", "lr: 1\n", "loaderdoctor {command} train.py --config conf.yaml"),
        ("trace.json", TRACE, "a trace. To read it: loaderdoctor analyze trace.json"),
        ("model.pt", "PK", "a model's weights. Give the script that trains it."),
    ],
)
def test_in_place_of_a_script(command: str, name: str, text: str, way_out: str, said: Said) -> None:
    line = said(command, name, name=name, text=text)
    assert line.startswith(f"loaderdoctor: {name}: ")
    assert way_out.format(command=command) in line


@pytest.mark.parametrize("command", ["diagnose", "sweep", "run"])
def test_a_folder_or_nothing_in_place_of_a_script(command: str, said: Said) -> None:
    assert "no such file. Give the path of the training script" in said(command, "missing.py")
    assert "Did you mean src/fit.py?" in said(command, "src", name="src/fit.py", text="pass\n")


@pytest.mark.parametrize("command", ["diagnose", "run"])
def test_one_rank_without_its_peers(
    command: str, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    line = said(command, "train.py", name="train.py", text="pass\n")
    assert "one rank of several, but not under torchrun" in line
    assert "--nproc-per-node N SCRIPT" in line


@pytest.mark.parametrize(
    ("name", "text", "way_out"),
    [
        ("train.py", "pass\n", "a script, not a trace. To measure it: loaderdoctor diagnose"),
        ("a.ipynb", '{"cells": []}', "a notebook, not a trace"),
        ("go.sh", "echo hi\n", "a shell script, not a trace. Give what torch.profiler exported"),
        ("conf.yaml", "lr: 1\n", "a configuration, not a trace"),
        ("model.pt", "PK", "a model's weights, not a trace"),
        ("memory.pickle", "x", "a pickle, not a trace, and is not opened"),
        ("empty.json", "", "is empty. Export the trace again"),
        ("text.json", "hello", "is not a torch.profiler trace: it starts with neither"),
        ("nsys.json", '{"Type": 48}\n{"id": 1}\n', "it holds an object in each line"),
        ("run.nsys-rep", "x", "a recording of NVIDIA's tools, not a trace of torch.profiler"),
        ("run.pftrace", "x", "Perfetto's own format"),
        ("list.json", "[1, 2]", "no events that can be read"),
    ],
)
def test_in_place_of_a_trace(name: str, text: str, way_out: str, said: Said) -> None:
    line = said("analyze", name, name=name, text=text)
    assert line.startswith(f"loaderdoctor: {name}: ")
    assert way_out in line


def test_a_folder_or_nothing_in_place_of_a_trace(said: Said) -> None:
    assert "missing.json: no such file" in said("analyze", "missing.json")
    assert "src: holds no trace" in said("analyze", "src", name="src/fit.py", text="pass\n")


@pytest.mark.parametrize("command", ["apply", "report", "view", "prove"])
def test_in_place_of_a_run_folder(command: str, said: Said) -> None:
    for name, text in (("train.py", "pass\n"), ("trace.json", TRACE), ("src/fit.py", "pass\n")):
        if command == "prove" and name == "train.py":
            continue  # a script is what `prove --changed` is given
        given = "src" if name.startswith("src") else name
        line = said(command, given, name=name, text=text)
        assert line.startswith(f"loaderdoctor: {given}")
        assert "run folder of" in line, line
    assert "missing" in said(command, "missing")


@pytest.mark.parametrize("command", ["compare", "report", "apply", "prove", "analyze", "view"])
def test_a_path_that_the_system_refuses_to_look_at(command: str, said: Said) -> None:
    two = ["a" * 300] * (2 if command == "compare" else 1)
    assert said(command, *two).endswith("aa: File name too long. Check the path.")
