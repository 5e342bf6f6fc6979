"""Ranks that the script starts itself: all of them are measured, in step, and stop together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import psutil
import pytest

from loaderdoctor.errors import RunError
from loaderdoctor.instrument.command.launch_config import LaunchOptions, Target
from loaderdoctor.instrument.command.rank_group import RankGroup
from loaderdoctor.instrument.command.script_run import RanksSpawnedError, ScriptRun
from loaderdoctor.instrument.entry.spawned import RankLink, WatchedTarget
from loaderdoctor.instrument.system.processes import is_resource_tracker
from loaderdoctor.instrument.wire.channel import Channel, LaunchConfig
from loaderdoctor.instrument.wire.protocol import (
    Ended,
    FromRun,
    Hello,
    Observed,
    Progress,
    WindowRequest,
)
from tests.attribution.builders import observed
from tests.instrument.ranks import TRAIN, diagnosis_at_step_20, wait_until_gone
from tests.instrument.watched import QueuedChannel

SCRIPT = (
    TRAIN.replace("def train(", "def train_here(")
    + """
import multiprocessing, os, subprocess
import torch.multiprocessing as mp

def train(rank, how, port, *arguments):
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=port, RANK=str(rank), WORLD_SIZE="2")
    failing = lambda rank, n: exec("raise KeyError('no data')") if rank == 1 and n == 40 else None
    saying = lambda rank, n: print("step", n, flush=True)
    print("rank", rank, __name__, arguments, flush=True)
    train_here(
        n_epochs=1 if how == "short" else 50,
        after_step={"failing": failing, "saying": saying}.get(how),
        how="ddp" if how == "ddp" else "by hand",
    )

if __name__ == "__main__":
    means, how, port = sys.argv[1:4]
    if means == "spawn":
        mp.spawn(train, args=(how, port, "own argument"), nprocs=2)
    elif means == "not-joined":
        context = mp.start_processes(train, (how, port), nprocs=2, join=False, start_method="fork")
        while not context.join(timeout=0.1):
            pass
    elif means == "process":
        context = multiprocessing.get_context("spawn")
        ranks = [context.Process(target=train, args=(rank, how, port)) for rank in range(2)]
        [rank.start() for rank in ranks]
        [rank.join() for rank in ranks]
    elif means == "subprocess":
        command = [sys.executable, "-u", __file__, "rank", how, port]
        ranks = [
            subprocess.Popen(command, env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"})
            for rank in range(2)
        ]
        [rank.wait() for rank in ranks]
    elif means == "rank":
        train(int(os.environ["RANK"]), how, port)
    print("behind the ranks", flush=True)
"""
)
MEANS = ("spawn", "not-joined", "process", "subprocess")

pytestmark = pytest.mark.usefixtures("no_process_is_left")


def script(folder: Path) -> Path:
    path = folder / "train.py"
    path.write_text(SCRIPT)
    return path


def free_port() -> str:
    import socket

    with socket.socket() as found:
        found.bind(("localhost", 0))
        return str(found.getsockname()[1])


def target(folder: Path, means: str, how: str = "") -> Target:
    return Target(script=str(script(folder)), args=(means, how, free_port()))


def opened(script_run: ScriptRun) -> RankGroup:
    """What the command does when it hears that the script's children train."""
    with pytest.raises(RanksSpawnedError, match="only `loaderdoctor diagnose`"):
        script_run.wait_observed(120.0)
    return RankGroup.of_spawned(script_run)


@pytest.mark.parametrize(
    "means", [pytest.param(m, marks=[pytest.mark.slow] if m != "spawn" else []) for m in MEANS]
)
def test_spawned_ranks_are_measured_in_step_and_stop_together(
    means: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with ScriptRun(
        target(tmp_path, means), tmp_path / "run", LaunchOptions(record_workers=False)
    ) as script_run:
        job = opened(script_run)
    with job:
        observed = job.wait_observed(120.0)
        assert observed.environment.n_ranks == 2
        assert [m.rank for m in job.measured] == [0, 1]
        done = job.measure(
            [
                WindowRequest(id=1, mode="plain", n_steps=6, limit_s=60.0),
                WindowRequest(id=2, mode="no_input", n_steps=6, limit_s=60.0),
            ]
        )
        assert [w.status for w in done] == ["ok"] * 2
        for connection in job.measured:
            step = {i: median(w.host_step_ns) for i, w in connection.done.items()}
            assert step[2] < 0.5 * step[1]
        job.stop()
    assert job.ended is not None
    assert (job.ended.how, job.ended.exit_code) == ("stopped", 0)
    assert len({m.ended.n_steps for m in job.connections if m.ended is not None}) == 1
    assert not job.notes
    out, err = capfd.readouterr()
    # The script does not go on behind the ranks that we ended.
    assert "behind the ranks" not in out
    assert "Traceback" not in err
    if means == "spawn":
        assert "rank 1 __mp_main__ ('own argument',)" in out


@pytest.mark.slow
@pytest.mark.parametrize("means", ["spawn", "subprocess"])
def test_ranks_that_end_by_themselves_leave_the_script_to_go_on(
    means: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with ScriptRun(
        target(tmp_path, means, "short"), tmp_path / "run", LaunchOptions(record_workers=False)
    ) as script_run:
        job = opened(script_run)
    with job:
        job.wait_observed(120.0)
        job.stop(to_end=True)
        assert job.ended is not None
        assert (job.ended.how, job.ended.exit_code) == ("script-ended", 0)
    assert capfd.readouterr().out.endswith("behind the ranks\n")


@pytest.mark.parametrize(("value", "code"), [(None, 0), (0, 0), (3, 3), ("a text", 1)])
def test_a_process_that_leaves_by_sys_exit_has_ended_by_itself(
    value: object, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[FromRun] = []
    monkeypatch.setattr(RankLink, "send", lambda _, message: sent.append(message))
    config = LaunchConfig(
        address="",
        authkey="",
        run_dir=str(tmp_path),
        kind="script",
        target="train.py",
        args=(),
        watch=True,
    )
    with pytest.raises(SystemExit):
        WatchedTarget(lambda: sys.exit(value), config)()  # type: ignore[arg-type]
    (ended,) = sent
    assert isinstance(ended, Ended)
    assert (ended.how, ended.exit_code, ended.reason) == ("no-loader", code, None)


@pytest.mark.slow
def test_a_spawned_rank_that_fails_fails_as_it_would_unwatched(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    one = target(tmp_path, "spawn", "failing")
    plain = subprocess.run([sys.executable, str(one.script), *one.args], timeout=120)
    expected = capfd.readouterr().err
    with ScriptRun(one, tmp_path / "run", LaunchOptions(record_workers=False)) as script_run:
        job = opened(script_run)
    with job:
        job.wait_observed(120.0)
        job.measure([WindowRequest(id=1, mode="plain", n_steps=500, limit_s=60.0)])
    assert job.ended is not None
    assert (job.ended.how, job.ended.exit_code) == ("script-failed", plain.returncode)
    # As unwatched, but for one line of ours between torch's and the script's.
    said = capfd.readouterr().err
    assert "KeyError: 'no data'" in expected
    assert "KeyError: 'no data'" in said
    assert sum("loaderdoctor" in x for x in said.splitlines() if "File" in x) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("means", MEANS)
def test_diagnose_names_the_slow_one_of_spawned_ranks(means: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "loaderdoctor", "diagnose", "--budget", "8", "--no-verify",
         "--json", "report.json", str(script(tmp_path)), means, "ddp", free_port()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads((tmp_path / "report.json").read_text())
    slow = next(f for f in found["findings"] if f["kind"] == "slow-rank")
    assert slow["evidence"]["rank"] == 1
    fast, late = found["ranks"]
    assert late["peer_wait_ms"] < 0.5 * fast["peer_wait_ms"]
    assert found["verdict"]["bound"] == "input"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("means", ["spawn", "subprocess"])
def test_spawned_ranks_do_not_outlive_the_command(means: str, number: int, tmp_path: Path) -> None:
    command = diagnosis_at_step_20(
        "--output", str(tmp_path / "out"), str(script(tmp_path)), means, "saying", free_port()
    )
    os.kill(command.pid, number)
    command.communicate(timeout=60)
    assert command.returncode == (-number if number == signal.SIGKILL else 128 + number)
    wait_until_gone(tmp_path, within_s=40.0 if number == signal.SIGKILL else 0.0)


def test_processes_that_only_help_a_script_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        """
import multiprocessing, subprocess, sys, time
import torch
from torch.utils.data import DataLoader

def helper(queue):
    queue.put(sum(1 for _ in DataLoader(range(64), 4)))

queue = multiprocessing.Queue()
one = multiprocessing.Process(target=helper, args=(queue,))
one.start()
print("helper", queue.get(), subprocess.check_output([sys.executable, "-c", "print(7)"]))
one.join()
weight = torch.nn.Parameter(torch.zeros(1))
while True:
    for x in DataLoader(range(64), 4):
        (weight * x).sum().backward()
        time.sleep(0.001)
"""
    )
    with ScriptRun(Target(script=str(path)), tmp_path / "run", LaunchOptions()) as script_run:
        observed = script_run.wait_observed(60.0)
        assert observed.environment.n_ranks is None
        (done,) = script_run.measure([WindowRequest(id=1, mode="plain", n_steps=5, limit_s=30.0)])
        assert done.status == "ok"
        script_run.stop()
    assert script_run.ended is not None
    assert script_run.ended.how == "stopped"


APART = """
import multiprocessing, sys, time
import torch
from torch.utils.data import DataLoader

def train(n_epochs):
    weight = torch.nn.Parameter(torch.zeros(1))
    for _ in range(n_epochs):
        for x in DataLoader(range(256), 4):
            (weight * x).sum().backward()
            time.sleep(0.002)

def student():
    weight = torch.nn.Parameter(torch.zeros(1))
    while True:
        for x in DataLoader(range(64), 4):
            (weight * x).sum().backward()
            time.sleep(0.002)

n_children, n_epochs = map(int, sys.argv[1:])
children = [multiprocessing.Process(target=train, args=(n_epochs,)) for _ in range(n_children)]
[child.start() for child in children]
[child.join() for child in children]
student()
"""


def apart(folder: Path, n_children: int, n_epochs: int) -> ScriptRun:
    path = folder / "train.py"
    path.write_text(APART)
    one = Target(script=str(path), args=(str(n_children), str(n_epochs)))
    return ScriptRun(one, folder / "run", LaunchOptions(record_workers=False), takes_lone=True)


@pytest.mark.slow
def test_a_script_that_trains_behind_a_child_that_did_is_measured_itself(tmp_path: Path) -> None:
    with apart(tmp_path, 1, 20) as script_run:
        observed = script_run.wait_observed(120.0)
        (loader,) = observed.loaders
        assert loader.id == f"train.py:{line_of('range(64)')}"
        (done,) = script_run.measure([WindowRequest(id=1, mode="plain", n_steps=5, limit_s=30.0)])
        assert done.status == "ok"
        script_run.stop()
    assert not [note for note in script_run.notes if note.kind == "process-alone"]


@pytest.mark.slow
def test_of_children_that_train_at_once_each_by_itself_one_is_measured(tmp_path: Path) -> None:
    with apart(tmp_path, 2, 1000) as script_run:
        job = opened(script_run)
    with job:
        observed = job.wait_observed(120.0)
        (loader,) = observed.loaders
        assert loader.id == f"train.py:{line_of('range(256)')}"
        assert len(job.measured) == 1
        (done,) = job.measure([WindowRequest(id=1, mode="plain", n_steps=5, limit_s=30.0)])
        assert done.status == "ok"
        job.stop()
    (note,) = job.notes
    assert note.kind == "process-alone"
    assert "of several at once" in note.text


def line_of(text: str) -> int:
    return 1 + next(n for n, line in enumerate(APART.splitlines()) if text in line)


@pytest.mark.slow
def test_a_script_whose_ranks_never_train_is_told_so(tmp_path: Path) -> None:
    others = set(psutil.Process().children())  # workers of earlier tests, not collected yet
    path = tmp_path / "train.py"
    path.write_text(
        "import torch.multiprocessing as mp\n"
        "def fn(rank): print('rank', rank)\n"
        "if __name__ == '__main__': mp.spawn(fn, nprocs=1)\n"
    )
    with (
        pytest.raises(RunError, match="no torch DataLoader was iterated"),
        ScriptRun(Target(script=str(path)), tmp_path / "run", LaunchOptions()) as script_run,
    ):
        script_run.wait_observed(60.0)
    own = set(psutil.Process().children()) - others
    assert [p for p in own if not is_resource_tracker(p)] == []


def called(monkeypatch: pytest.MonkeyPatch, folder: Path, *, watch: bool = False) -> RankLink:
    """A connection of a process that is no rank, and what it would say to the command."""
    monkeypatch.setattr(Channel, "open", lambda launch_config: QueuedChannel())
    launch_config = LaunchConfig(
        address="", authkey="", run_dir=str(folder), kind="script", target="x", args=(),
        watch=watch,
    )  # fmt: skip
    return RankLink(launch_config, "process1", None)


def said(link: RankLink) -> list[object]:
    channel: Any = link._channel
    return [] if channel is None else channel.sent


def test_a_process_that_trains_by_itself_calls_once_its_loop_is_warm(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    link = called(monkeypatch, tmp_path)
    link.send(Progress(text="", n_steps=3))
    link.send(msgspec.structs.replace(observed(), trains=False))
    assert said(link) == []
    assert not link.lost  # it may train yet
    link.send(observed())
    hello, loop = said(link)
    assert isinstance(hello, Hello)
    assert (hello.rank, hello.n_ranks, hello.alone) == (0, 1, True)
    assert isinstance(loop, Observed)


def test_a_process_that_is_recorded_to_its_end_never_calls_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    link = called(monkeypatch, tmp_path, watch=True)
    link.send(observed())
    assert said(link) == []
    assert link.lost


def test_no_more_than_the_script_is_above_a_rank_of_a_recorded_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It took the command's place; what started it is the user's shell."""
    found = [called(monkeypatch, tmp_path, watch=watch).n_above for watch in (False, True)]
    assert found == [2, 1]
