"""The files that advice is written into: the script and its own modules, as they ran."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from loaderdoctor.instrument.session import script_process
from loaderdoctor.instrument.session.script_process import script_of, with_sources
from loaderdoctor.instrument.wire.channel import LaunchConfig

SCRIPT = """\
import json
import pkg.model, pkg.old
import msgspec
from loaderdoctor.instrument.session.script_process import with_sources
from loaderdoctor.instrument.wire.records import ScriptRecord
print(json.dumps(with_sources(ScriptRecord(given="train.py", args=("-x",))).sources))
"""


def test_the_script_comes_first_then_its_own_modules_and_no_library(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("")
    (tmp_path / "pkg" / "model.py").write_text("ä = 'größer'\n", encoding="utf-8")
    declared = "# -*- coding: latin-1 -*-\nb = 'kleiner, für alle'\n"
    (tmp_path / "pkg" / "old.py").write_text(declared, encoding="latin-1")
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    sources = json.loads(done.stdout)
    names = [str(Path(path).relative_to(tmp_path.resolve())) for path in sources]
    assert names[0] == "train.py" and set(names) == {
        "train.py", "pkg/__init__.py", "pkg/model.py", "pkg/old.py",
    }  # fmt: skip
    assert next(iter(sources.values())) == SCRIPT
    assert {"ä = 'größer'\n", declared} <= set(sources.values())


def test_of_a_library_next_to_the_script_the_files_about_loaders_come_first(tmp_path: Path) -> None:
    (tmp_path / "big").mkdir()
    names = [f"m{i:02}" for i in range(60)]
    (tmp_path / "big" / "__init__.py").write_text("".join(f"import big.{n}\n" for n in names))
    for name in names:
        (tmp_path / "big" / f"{name}.py").write_text("x = 1\n")
    (tmp_path / "big" / "m58.py").write_text("class Dataset: ...\n")
    (tmp_path / "big" / "m59.py").write_text("def loader(num_workers): ...\n")
    (tmp_path / "train.py").write_text(SCRIPT.replace("pkg.model, pkg.old", "big"))
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = [str(Path(x).relative_to(tmp_path.resolve())) for x in json.loads(done.stdout)]
    assert len(found) == 40
    assert found[:3] == ["train.py", "big/m59.py", "big/m58.py"]


ENGINE = """\
import json
import msgspec
from loaderdoctor.instrument.session.script_process import with_sources
from loaderdoctor.instrument.wire.records import ScriptRecord
def loop(places):
    return with_sources(ScriptRecord(given="train.py"), places)
"""
AROUND = """\
import engine, copies, making, big, json, os
print(json.dumps([list(engine.loop(places).sources) for places in [
    [], ["copies.py", os.path.realpath("making.py")]]]))
"""


def test_files_that_the_loop_was_seen_in_come_before_those_that_speak_of_loaders(
    tmp_path: Path,
) -> None:
    (tmp_path / "big").mkdir()
    names = [f"m{i:02}" for i in range(60)]
    (tmp_path / "big" / "__init__.py").write_text("".join(f"import big.{n}\n" for n in names))
    for name in names:
        (tmp_path / "big" / f"{name}.py").write_text("class Dataset: ...  # of a DataLoader\n")
    (tmp_path / "engine.py").write_text(ENGINE)
    (tmp_path / "copies.py").write_text("x = 1\n")
    (tmp_path / "making.py").write_text("x = 1\n")
    (tmp_path / "train.py").write_text(AROUND)
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    unseen, seen = ([Path(x).name for x in files] for files in json.loads(done.stdout))
    assert unseen[:2] == ["train.py", "engine.py"] and "copies.py" not in unseen
    assert seen[:2] == unseen[:2] and set(seen[2:4]) == {"copies.py", "making.py"}
    assert len(seen) == len(unseen) == script_process.MAX_FILES


def test_of_thousands_of_files_some_are_looked_at_and_of_long_ones_the_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    at = script_process._distance

    def look(path: str) -> int:
        looked.append(path)
        return at(path)

    monkeypatch.setattr(script_process, "_distance", look)
    monkeypatch.setattr(script_process, "MAX_LOOKED", 50)
    monkeypatch.setattr(script_process, "MAX_BYTES_LOOKED", 20)
    (tmp_path / "library").mkdir()
    files = [str(tmp_path / "train.py")]
    files += [str(tmp_path / "library" / f"m{i:03}.py") for i in range(150)]
    files += [str(tmp_path / f"n{i:03}.py") for i in range(10)]
    for file in files:
        Path(file).write_text("from DataLoader import x\n")
    long, short = files[-2:]
    Path(long).write_text("#" * 20 + "DataLoader")
    Path(files[-3]).write_text("x = 1")
    found = script_process._in_order(files, ())
    assert sorted(found) == sorted(files) and found[0] == files[0]
    assert len(looked) == 50 and set(files[-10:]) <= set(looked)  # the nearest, all of them
    assert found.index(short) < 50 - 2 and {*found[49:51]} == {long, files[-3]}
    assert found[51:] == files[41:151]


def test_how_it_was_started_is_what_was_typed() -> None:
    launched = LaunchConfig(address="", authkey="", run_dir="", kind="script", target="a/t.py",
                            args=("-j", "4"))  # fmt: skip
    script = script_of(launched, n_ranks=2)
    assert (script.given, script.module, script.args) == ("a/t.py", None, ("-j", "4"))
    assert script.n_ranks == 2
    assert with_sources(None) is None
