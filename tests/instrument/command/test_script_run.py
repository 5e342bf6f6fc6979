"""Whole scripts measured in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from loaderdoctor.errors import RunError
from loaderdoctor.instrument.command import MessagePipe
from loaderdoctor.instrument.command.launch_config import Target
from loaderdoctor.instrument.command.launched_run import Heard
from loaderdoctor.instrument.command.script_run import RanksSpawnedError, ScriptRun
from loaderdoctor.instrument.wire.protocol import (
    LOADER_CHANGED,
    Ended,
    FromRun,
    Hello,
    Note,
    Observed,
    Progress,
    Spawned,
)
from tests.attribution.builders import observed
from tests.descent import DESCENT
from tests.instrument.watched import request

HEAD = (
    f"""
import hashlib, os, sys, time
import torch
from torch.utils.data import DataLoader, Dataset
{DESCENT}"""
    + """

class Noise(Dataset):
    def __len__(self):
        return 48
    def __getitem__(self, index):
        return torch.randn(4) + index, index

class Batch:
    def __init__(self, samples):
        self.x = torch.stack([s[0] for s in samples])

def collate(samples):
    return Batch(samples)

def train(n_epochs, n_workers=0, method=None, cls=DataLoader, sleep=0.0, optimizer=Descent):
    torch.manual_seed(3)
    loader = cls(Noise(), 4, shuffle=True, num_workers=n_workers, collate_fn=collate,
                 multiprocessing_context=method)
    model = torch.nn.Linear(4, 4)
    optimizer = optimizer(model.parameters())
    losses = []
    for _ in range(n_epochs):
        for n, batch in enumerate(loader):
            loss = model(batch.x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            time.sleep(sleep)
        assert n + 1 == len(loader)
    data = str(losses) + str([p.tolist() for p in model.parameters()])
    print("result", len(losses), hashlib.sha256(data.encode()).hexdigest(), flush=True)
"""
)


def script(folder: Path, body: str) -> Target:
    path = folder / "train.py"
    path.write_text(HEAD + textwrap.dedent(body))
    return Target(script=str(path))


def started_unwatched(target: Target) -> subprocess.Popen[str]:
    """The same script without us, at the same time: what it says depends on no clock."""
    return subprocess.Popen(
        [sys.executable, str(target.script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def no_process_left(pids: list[int]) -> bool:
    end = time.monotonic() + 5.0
    while any(psutil.pid_exists(p) for p in pids) and time.monotonic() < end:
        time.sleep(0.05)
    alive = [p for p in pids if psutil.pid_exists(p)]
    return all(psutil.Process(p).status() == psutil.STATUS_ZOMBIE for p in alive)


@dataclass(frozen=True)
class OneRun:
    """What one watched script told: before its windows, of them, and of what it was doing."""

    observed: Observed
    modes: Sequence[str]
    progress: Sequence[str]


@pytest.fixture(scope="module")
def one_run(tmp_path_factory: pytest.TempPathFactory) -> OneRun:
    """A script that sets its own number of threads, measured in two windows of one number."""
    folder = tmp_path_factory.mktemp("one-run")
    target = script(folder, "train(1000)")
    path = folder / "train.py"
    path.write_text("import os; os.environ['OMP_NUM_THREADS'] = '1'\n" + path.read_text())
    texts: list[str] = []

    def told(event: object) -> None:
        if isinstance(event, Progress):
            texts.append(event.text)

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("OMP_NUM_THREADS", raising=False)
        patch.delenv("MKL_NUM_THREADS", raising=False)
        with ScriptRun(target, folder / "run") as script_run:
            observed = script_run.wait_observed(180.0, on_event=told)
            asked = [request(1, mode, 3) for mode in ("plain", "no_input")]
            modes = [script_run.measure([one])[0].mode for one in asked]
            script_run.stop()
    return OneRun(observed, modes, texts)


def tree(script_run: ScriptRun) -> list[int]:
    process = script_run._process
    assert process is not None
    return [process.pid, *(p.pid for p in process.descendants())]


@pytest.mark.slow
@pytest.mark.parametrize("n_workers", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_a_run_to_the_end_is_bit_for_bit_the_unwatched_run(
    n_workers: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    method = "'fork'" if n_workers else None
    target = script(tmp_path, f"train(8, {n_workers}, {method}, optimizer=torch.optim.Adam)")
    unwatched = started_unwatched(target)
    capfd.readouterr()
    with ScriptRun(target, tmp_path / "run") as script_run:
        script_run.wait_observed(180)
        done = script_run.measure(
            [
                request(1, "plain", drop_batches=False),
                request(2, "profiled", trace_path=str(tmp_path / "trace.json")),
                request(3, "plain"),
            ],
            timeout_s=180,
        )
        script_run.stop(to_end=True)
        ended = script_run.ended
    assert [w.status for w in done] == ["ok"] * 3
    assert (tmp_path / "trace.json").stat().st_size > 1000
    assert ended is not None
    assert (ended.how, ended.exit_code) == ("script-ended", 0)
    said, _ = unwatched.communicate()
    assert said.startswith("result 96 ")
    assert capfd.readouterr().out == said


def test_a_window_of_a_number_used_before_is_measured_anew(one_run: OneRun) -> None:
    """Else it is answered by the earlier one: a trial passed for a window without input."""
    assert one_run.modes == ["plain", "no_input"]


def test_the_environment_a_script_sets_before_torch_counts(one_run: OneRun) -> None:
    assert one_run.observed.environment.n_threads == 1


def test_progress_is_told_while_it_runs(one_run: OneRun) -> None:
    assert one_run.progress


@pytest.mark.parametrize("method", ["spawn", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_classes_of_the_script_reach_workers_of_every_start_method(
    method: str, tmp_path: Path
) -> None:
    body = f"""
    if __name__ == "__main__":
        train(60, 1, "{method}")
    """
    with ScriptRun(script(tmp_path, body), tmp_path / "run") as script_run:
        observed = script_run.wait_observed(90)
        pids = tree(script_run)
        script_run.stop()
    assert observed.loaders[0].settings.start_method == method
    assert script_run.ended is not None
    assert (script_run.ended.how, script_run.ended.exit_code) == ("stopped", 0)
    assert no_process_left(pids)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(
            """
            while True:
                try:
                    train(1000)
                except Exception:
                    pass
            """,
            marks=pytest.mark.slow,
        ),
        """
        while True:
            try:
                train(1000, 1, "fork")
            except:
                pass
        """,
        """
        try:
            train(1000)
        finally:
            time.sleep(60)
        """,
    ],
)
def test_stop_ends_a_script_that_catches_everything(body: str, tmp_path: Path) -> None:
    with ScriptRun(script(tmp_path, body), tmp_path / "run") as script_run:
        script_run.wait_observed(180)
        script_run.measure([request(1, "no_input")], timeout_s=180)
        pids = tree(script_run)
        script_run.stop()
    assert script_run.ended is not None
    assert script_run.ended.how == "stopped"
    assert no_process_left(pids)


def test_a_script_that_cleans_up_after_stop_may_finish_it(tmp_path: Path) -> None:
    body = f"""
    try:
        train(1000)
    finally:
        open({str(tmp_path / "cleaned")!r}, "w").close()
    """
    with ScriptRun(script(tmp_path, body), tmp_path / "run") as script_run:
        script_run.wait_observed(180)
        script_run.stop()
    assert (tmp_path / "cleaned").exists()


def test_os_exit_in_the_middle_of_a_window_loses_no_finished_window(tmp_path: Path) -> None:
    body = """
    import threading
    class Counted(DataLoader):
        def __iter__(self):
            for n, batch in enumerate(super().__iter__()):
                if EPOCH[0] * 12 + n > 60:
                    os._exit(4)
                yield batch
            EPOCH[0] += 1
    EPOCH = [0]
    train(100, cls=Counted)
    """
    with ScriptRun(script(tmp_path, body), tmp_path / "run") as script_run:
        script_run.wait_observed(180)
        done = script_run.measure([request(1, "plain"), request(2, "plain", 500)], timeout_s=180)
        ended = script_run.ended
    assert [w.id for w in done] == [1]
    assert ended is not None
    assert (ended.how, ended.exit_code) == ("script-ended", 4)


def test_a_script_that_fails_in_a_window_shows_its_own_traceback(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    body = """
    class Breaks(Noise):
        def __getitem__(self, index):
            COUNT[0] += 1
            if COUNT[0] > 250:
                raise OSError("disk is gone")
            return super().__getitem__(index)
    COUNT = [0]
    Noise_, Noise = Noise, Breaks
    train(100)
    """
    body = body.replace("super().", "Noise_.").replace("__(index)", "__(self, index)", 2)
    body = body.replace("def __getitem__(self, self, index)", "def __getitem__(self, index)")
    target = script(tmp_path, body)
    unwatched = started_unwatched(target)
    capfd.readouterr()
    with ScriptRun(target, tmp_path / "run") as script_run:
        script_run.wait_observed(180)
        done = script_run.measure([request(1, "plain", 500)], timeout_s=180)
        ended = script_run.ended
    assert ended is not None
    assert (ended.how, ended.exit_code) == ("script-failed", 1)
    assert [w.status for w in done] == ["short"]
    _, said = unwatched.communicate()
    assert "disk is gone" in said
    assert capfd.readouterr().err == said


def test_a_killed_run_is_told_with_its_signal(tmp_path: Path) -> None:
    body = "os.kill(os.getpid(), 9)"
    with (
        ScriptRun(script(tmp_path, body), tmp_path / "run") as script_run,
        pytest.raises(RunError, match="SIGKILL"),
    ):
        script_run.wait_observed(180)


def test_a_script_that_never_trains_is_given_up_in_time(tmp_path: Path) -> None:
    body = "time.sleep(600)"
    began = time.monotonic()
    with ScriptRun(script(tmp_path, body), tmp_path / "run") as script_run:
        pids = tree(script_run)
        with pytest.raises(RunError, match="no training step"):
            script_run.wait_observed(1.0)
    assert no_process_left(pids)
    assert time.monotonic() - began < 60.0


COMMAND = """
import sys
from pathlib import Path
from loaderdoctor.instrument.command.script_run import ScriptRun
from loaderdoctor.instrument.command.launch_config import Target
with ScriptRun(Target(script=sys.argv[1]), Path(sys.argv[2])) as script_run:
    script_run.wait_observed(180)
    process = script_run._process
    print("ready", process.pid, *(p.pid for p in process.descendants()), flush=True)
    script_run._pump(60)
    while True:
        script_run._pump(1)
"""


@pytest.mark.parametrize(
    "number",
    [
        *(pytest.param(n, marks=pytest.mark.slow) for n in (signal.SIGINT, signal.SIGTERM)),
        signal.SIGKILL,
    ],
)
def test_no_process_outlives_the_command(number: signal.Signals, tmp_path: Path) -> None:
    target = script(tmp_path, "train(100000, 1, 'fork', sleep=0.01)")
    command = subprocess.Popen(
        [sys.executable, "-c", COMMAND, str(target.script), str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert command.stdout is not None
    words = command.stdout.readline().split()
    assert words[0] == "ready"
    pids = [int(w) for w in words[1:]]
    assert len(pids) >= 2
    os.kill(command.pid, number)
    command.wait(30)
    command.stdout.close()
    assert no_process_left(pids)


@dataclass
class Callers:
    """In place of the listener: who calls, as real connections of this process."""

    waiting: list[MessagePipe] = field(default_factory=list)

    def wait(self, timeout_s: float) -> MessagePipe | None:
        return self.waiting.pop(0) if self.waiting else None

    def close(self) -> None:
        pass

    def call(self, *messages: FromRun) -> Connection:
        """One more caller, which says this; its end of the connection."""
        ours, theirs = Pipe()
        self.waiting.append(MessagePipe(ours))
        say(theirs, *messages)
        return theirs

    def train(self, number: int, *messages: FromRun, ranks: int = 0) -> Connection:
        """A child calls whose loop is warm: one of so many ranks, or none."""
        rank, n_ranks = (number, ranks) if ranks else (0, 1)
        hello = Hello(rank=rank, n_ranks=n_ranks, host="here", run_dir=str(number), alone=not ranks)
        return self.call(hello, observed(), *messages)


def say(connection: Connection, *messages: FromRun) -> None:
    for message in messages:
        connection.send_bytes(msgspec.json.encode(message))


def let_go(connection: Connection) -> bool:
    """Whether the command has closed its end."""
    try:
        return connection.poll(0.0) and not connection.recv_bytes()
    except (EOFError, OSError):
        return True


ENDED = Ended(how="script-ended", exit_code=0, n_steps=90)


def with_callers(*, takes_lone: bool = True) -> tuple[ScriptRun, Callers]:
    callers = Callers()
    listener: Any = callers
    target = Target(script="train.py")
    run = ScriptRun(target, Path("run"), takes_lone=takes_lone, _listener=listener)
    return run, callers


def heard(run: ScriptRun) -> list[str]:
    """Folders of those that train in the script's place; none where it is waited for."""
    try:
        run._raise_if_unsuited()
    except RanksSpawnedError:
        return [one.hello.run_dir for one in run._callers if one.hello is not None]
    return []


@pytest.mark.parametrize("leaves", ["says so", "is killed"])
def test_children_that_train_one_after_the_other_leave_the_script_its_own_loop(
    leaves: str,
) -> None:
    run, callers = with_callers()
    callers.call(Spawned())
    for number in range(3):
        child = callers.train(number)
        assert heard(run) == []
        assert heard(run) == []
        if leaves == "says so":
            say(child, ENDED)
        else:
            child.close()
    run.hear(observed())
    assert run.wait_observed(0.0) is run.observed
    assert not run.notes


def test_of_children_that_train_at_once_the_first_is_kept() -> None:
    run, callers = with_callers()
    spawner = callers.call(Spawned())
    callers.train(0, ENDED)
    assert heard(run) == []
    note = Note(kind="second-profiler", text="It has one.")
    first, second = callers.train(1, note), callers.train(2)
    assert heard(run) == ["1"]
    assert [let_go(one) for one in (spawner, first, second)] == [False, False, True]
    assert run.notes == [note]  # said before anyone went on with it


def test_children_that_are_not_asked_for_run_unwatched() -> None:
    run, callers = with_callers(takes_lone=False)
    children = [callers.train(0), callers.train(1)]
    assert heard(run) == []
    assert all(map(let_go, children))
    callers.train(0, ranks=2)
    assert heard(run) == ["0"]


def test_children_are_let_be_once_the_script_has_a_loop_of_its_own() -> None:
    run, callers = with_callers()
    script_process = callers.call(Progress(text="watching the first steps"))
    run._pump(0.0)  # lets it in
    run._pump(0.0)
    callers.train(0)
    callers.train(1)
    assert heard(run) == []
    assert not let_go(script_process)


def test_a_child_that_trains_by_itself_is_no_peer_of_ranks() -> None:
    run, callers = with_callers()
    lone = callers.train(7)
    assert heard(run) == []
    rank = callers.train(0, ranks=2)
    assert heard(run) == ["0"]
    assert [let_go(one) for one in (lone, rank)] == [True, False]


def test_of_notes_that_training_left_a_loader_only_the_last_is_kept() -> None:
    heard = Heard()
    for text in ("a fed the first, b those that followed", "b fed the first, a those"):
        heard.hear(Note(kind=LOADER_CHANGED, text=text))
        heard.hear(Note(kind="slow-start", text=text))
    assert [note.kind for note in heard.notes] == ["slow-start", LOADER_CHANGED, "slow-start"]
    assert heard.notes[1].text == "b fed the first, a those"
