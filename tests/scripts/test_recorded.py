"""`run`: the script's output, files and exit code are its own, and there is a report."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.scripts.recorded import recorded, unwatched
from tests.scripts.running import SHAPES

pytestmark = pytest.mark.scripts


@pytest.mark.parametrize("n_workers", ["0", pytest.param("2", marks=pytest.mark.slow)])
def test_a_recorded_run_is_the_unwatched_run_with_a_report(n_workers: str, tmp_path: Path) -> None:
    script, alone_dir, watched_dir = SHAPES / "saves.py", tmp_path / "a", tmp_path / "b"
    alone_dir.mkdir()
    watched_dir.mkdir()
    alone = unwatched(script, "weights.txt", n_workers, cwd=alone_dir)
    done = recorded(script, "weights.txt", n_workers, cwd=watched_dir)
    assert alone.returncode == done.code == 5
    assert done.stdout.startswith(alone.stdout)
    assert alone.stderr in done.stderr
    saved = (watched_dir / "weights.txt").read_text()
    assert saved == (alone_dir / "weights.txt").read_text()
    assert {p.name for p in watched_dir.iterdir()} == {"weights.txt", "run"}
    run = done.run
    assert done.report.command == "run"
    assert run.complete and run.how == "script-ended" and run.exit_code == 5
    assert run.n_steps == 600
    parts = ("step_s", "input_s", "starts_s", "validation_s", "saving_s", "other_s")
    assert sum(getattr(run.time, p) for p in parts) == pytest.approx(run.time.recorded_s)
    assert not (done.folder / ".recorded").exists()


def test_a_script_that_fails_keeps_its_traceback_and_exit_code(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text("import torch\nraise RuntimeError('mine')\n")
    alone, done = unwatched(script, cwd=tmp_path), recorded(script, cwd=tmp_path)
    assert alone.returncode == done.code == 1
    assert done.stderr.startswith(alone.stderr)


def test_stdin_and_signals_are_the_scripts(tmp_path: Path) -> None:
    """It asks itself for SIGTERM, as a scheduler would, and reads what is piped into it."""
    script = tmp_path / "asks.py"
    script.write_text(
        "import os, signal, sys\n"
        "came = []\n"
        "signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "print(len(came), os.getppid() == int(sys.argv[1]), sys.stdin.read())\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "loaderdoctor", "run", str(script), str(os.getpid())],
        cwd=tmp_path,
        input="piped",
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.startswith("1 True piped\n"), done.stderr


@pytest.mark.parametrize("n_signals", [1, 2])
def test_a_run_ends_by_ctrl_c_as_the_script_does(n_signals: int, tmp_path: Path) -> None:
    """The second one comes while the report is awaited."""
    script = tmp_path / "waits.py"
    script.write_text(
        "import sys, time, torch\n"
        "from torch.utils.data import DataLoader\n"
        "model = torch.nn.Linear(1, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)\n"
        "for i, x in enumerate(DataLoader(torch.ones(100_000, 1))):\n"
        "    model(x).sum().backward()\n"
        "    optimizer.step()\n"
        "    if i == 600:\n"
        "        print('warm', flush=True)\n"
        "    time.sleep(0.002)\n"
    )
    ends = []
    for command in ([], ["-m", "loaderdoctor", "run", "--output", "run"]):
        process = subprocess.Popen(
            [sys.executable, *command, str(script)],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "warm\n"
        process.send_signal(signal.SIGINT)
        said = ""
        while "KeyboardInterrupt" not in said:
            said += process.stderr.readline()
        if n_signals == 2 and command:
            time.sleep(0.3)
            process.send_signal(signal.SIGINT)
        said += process.communicate(timeout=120)[1]
        ends.append((process.returncode, said.count("Traceback")))
    assert ends == [(-signal.SIGINT, 1)] * 2, said


@pytest.mark.slow
def test_a_share_is_not_passed_where_no_loop_was_seen(tmp_path: Path) -> None:
    script = tmp_path / "no_loop.py"
    script.write_text("print('done')\n")
    done = recorded(script, cwd=tmp_path, options=["--fail-on", "input>20%"])
    assert done.code == 1
    assert "--fail-on was not judged" in done.stderr
    assert recorded(script, cwd=tmp_path).code == 0


@pytest.mark.slow
def test_ranks_that_the_script_spawns_are_each_recorded_and_train_the_same(tmp_path: Path) -> None:
    script, n_steps = SHAPES / "spawns_group.py", 150
    hashes = []
    for name in ("alone", "watched"):
        (tmp_path / name).mkdir()
        words = (str(n_steps), str(tmp_path / name))
        if name == "alone":
            alone = unwatched(script, *words, cwd=tmp_path)
            assert alone.returncode == 0, alone.stderr
        else:
            done = recorded(script, *words, cwd=tmp_path)
            assert done.code == 0, done.stderr
            assert done.stdout.startswith("trained")
        hashes.append([(tmp_path / name / f"rank{rank}").read_text() for rank in (0, 1)])
    assert hashes[0] == hashes[1]
    run = done.run
    assert run.complete and run.how == "script-ended"
    assert [(rank.rank, rank.n_steps) for rank in run.ranks] == [(0, n_steps), (1, n_steps)]
    assert done.report.command == "run"
