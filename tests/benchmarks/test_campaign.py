"""Parts side by side: room, time and what is left behind."""

from __future__ import annotations

import ast
import importlib
import os
import re
import sys
import time
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import psutil
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
parts = importlib.import_module("campaign_parts")
campaign = importlib.import_module("campaign")
sys.path.remove(str(BENCHMARKS))

CPUS = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
TIMES = "date +%s.%N > $PART/began; sleep 0.5; date +%s.%N > $PART/ended"


def part(name: str, *commands: str, **changes: Any) -> Any:
    return parts.Part(**{"name": name, "seconds": 5, "cpus": 1, "commands": commands} | changes)


def ends(folder: Path, *waiting: Any, seconds: float = 60.0, **changes: Any) -> dict[str, str]:
    room: dict[str, Any] = {"cpus": CPUS[:1], "gpus": [], "clones": ""} | changes
    return {
        one.name: how
        for one, how in campaign.campaign(list(waiting), folder=folder, seconds=seconds, **room)
    }


def time_of(folder: Path, what: str) -> float:
    return float((folder / what).read_text())


def test_a_part_waits_for_the_cpus_of_another_and_sees_no_gpu(tmp_path: Path) -> None:
    look = "python3 -c 'import os; print(os.sched_getaffinity(0))'; echo =$CUDA_VISIBLE_DEVICES="
    how = ends(tmp_path, part("a", TIMES), part("b", TIMES, look))
    assert [text.split()[0] for text in how.values()] == ["done", "done"]
    assert time_of(tmp_path / "a", "ended") <= time_of(tmp_path / "b", "began")
    assert (tmp_path / "b" / "out.txt").read_text().split("\n") == [f"{{{CPUS[0]}}}", "==", ""]


@pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")
def test_one_without_a_gpu_leaves_room_for_the_next_that_waits_for_one(tmp_path: Path) -> None:
    waiting = (part("a", TIMES, gpus=1), part("b", TIMES, gpus=1), part("c", TIMES))
    ends(tmp_path, *waiting, cpus=CPUS[:2], gpus=["0"])
    assert time_of(tmp_path / "c", "began") >= time_of(tmp_path / "a", "ended")
    apart = {one: time_of(tmp_path / one, "began") for one in "bc"}
    assert abs(apart["b"] - apart["c"]) < 0.5  # both, when the GPU is free


def test_one_that_fails_runs_its_other_commands_and_says_its_exit_code(tmp_path: Path) -> None:
    how = ends(tmp_path, part("a", "exit 3", "echo after"), part("b", "true"))
    assert how["a"].startswith("exit code 1 after")
    assert how["b"].startswith("done")
    assert (tmp_path / "a" / "out.txt").read_text() == "after\n"


def test_what_runs_when_time_is_over_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    command = "sleep 300 & echo $!; wait"
    began = time.monotonic()
    how = ends(tmp_path, part("a", command, seconds=2), part("b", "true"), seconds=1.5)
    assert how["a"].startswith("stopped")
    assert time.monotonic() - began < 60.0
    assert not psutil.pid_exists(int((tmp_path / "a" / "out.txt").read_text()))
    assert how["b"] == "no time"


def test_temporary_files_of_a_part_go_with_it(tmp_path: Path) -> None:
    ends(tmp_path, part("a", "echo $TMPDIR; touch $TMPDIR/left"))
    assert not Path((tmp_path / "a" / "out.txt").read_text().strip()).exists()


def test_what_can_never_start_is_said_at_once(tmp_path: Path) -> None:
    public = part("public", "ls $CLONES")
    how = ends(tmp_path, part("gpu", "true", gpus=1), part("wide", "true", cpus=2), public)
    assert how["gpu"] == "no room: it needs 1 CPUs and 1 GPUs"
    assert how["wide"].startswith("no room")
    assert how["public"] == "needs --clones"
    assert not any(tmp_path.iterdir())


def test_every_loop_with_a_truth_is_in_one_part() -> None:
    # Read, not imported: its third-party packages needn't be there.
    (loops,) = (
        node.value
        for node in ast.parse((BENCHMARKS / "loops.py").read_text()).body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "LOOPS"
    )
    assert isinstance(loops, ast.Dict)
    known = [ast.literal_eval(key) for key in loops.keys if key is not None]
    assert len(known) > 30
    measured = [
        name
        for one in parts.PARTS
        for command in one.commands
        if "truth.py" in command
        for name in command.partition("--only ")[2].split(",")
    ]
    assert sorted(measured) == sorted(known)


def test_programs_and_options_of_all_parts_are_there() -> None:
    names = [one.name for one in parts.PARTS]
    assert len(set(names)) == len(names)
    for command in (command for one in parts.PARTS for command in one.commands):
        for script in re.findall(r"benchmarks/(\w+\.py)", command):
            source = (BENCHMARKS / script).read_text()
            imported = re.findall(r"^from (\w+) import", source, re.M)
            for name in imported:  # options that programs share
                if (BENCHMARKS / f"{name}.py").is_file():
                    source += (BENCHMARKS / f"{name}.py").read_text()
            for option in re.findall(r" (--[\w-]+)", command):
                assert f'"{option}"' in source, (script, option)
        for where in re.findall(r" (tests\S*)", command):
            assert list(BENCHMARKS.parent.glob(where)), where


def test_every_slow_test_is_in_one_part() -> None:
    tests = BENCHMARKS.parent / "tests"
    wheres = [
        where
        for one in parts.PARTS
        for command in one.commands
        if "-m slow" in command
        for where in re.findall(r" (tests\S*)", command)
    ]
    for path in tests.rglob("test_*.py"):
        if "mark.slow" in path.read_text():
            name = path.relative_to(tests.parent).as_posix()
            found = [x for x in wheres if fnmatch(name, x) or name.startswith(f"{x}/")]
            assert len(found) == 1 or path == Path(__file__), (name, found)
