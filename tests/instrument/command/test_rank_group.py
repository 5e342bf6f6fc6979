"""Two gloo ranks under torch's launcher: in step in every window, together at the stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from loaderdoctor.commands.launch import Launch
from loaderdoctor.errors import RunError
from loaderdoctor.instrument.command.launch_config import LaunchOptions, Target
from loaderdoctor.instrument.command.rank_group import RankGroup
from loaderdoctor.instrument.wire.protocol import WindowRequest
from tests.instrument.ranks import TRAIN, children_of_test, diagnosis_at_step_20, wait_until_gone

TWO = ("--nproc-per-node", "2")
SAYING = "train(after_step=lambda rank, n: print('step', n, flush=True))"


def script(folder: Path, body: str = "train()") -> Path:
    path = folder / "train.py"
    path.write_text(TRAIN + textwrap.dedent(body))
    return path


def script_run(folder: Path, body: str = "train()") -> RankGroup:
    options = LaunchOptions(record_workers=False)
    found = Launch(torchrun=TWO).script_run(
        Target(script=str(script(folder, body))), folder / "run", options
    )
    assert isinstance(found, RankGroup)
    return found


pytestmark = pytest.mark.usefixtures("no_process_is_left")


def test_every_rank_measures_every_window_and_all_stop_at_one_step(tmp_path: Path) -> None:
    with script_run(tmp_path, "train(how='ddp')") as job:
        observed = job.wait_observed(120.0)
        assert observed.environment.n_ranks == 2
        assert [m.rank for m in job.measured] == [0, 1]
        requests = [
            WindowRequest(id=1, mode="plain", n_steps=6, limit_s=60.0),
            WindowRequest(id=2, mode="profiled", n_steps=6, trace_path="any/baseline.json"),
            WindowRequest(id=3, mode="no_input", n_steps=6, limit_s=60.0),
            WindowRequest(id=4, mode="plain", n_steps=6, limit_s=60.0),
        ]
        done = job.measure(requests)
        assert [w.status for w in done] == ["ok"] * 4
        for connection in job.measured:
            assert sorted(connection.done) == [1, 2, 3, 4]
            trace = connection.done[2].trace_path
            assert trace is not None
            assert Path(trace).parent.name == f"rank{connection.rank}"
            assert Path(trace).is_file()
            step = {i: median(w.host_step_ns) for i, w in connection.done.items()}
            # Ready batches on every rank: neither waits for its loader, nor for the other's.
            assert step[3] < 0.5 * step[1]
            assert step[3] < 0.5 * step[4]
        # In step: both ranks' windows lasted equally long though one's loader is four times slower.
        one, two = (m.done[1] for m in job.measured)
        assert (one.end_ns - one.start_ns) / (two.end_ns - two.start_ns) == pytest.approx(
            1, abs=0.4
        )
        job.stop()
    assert job.ended is not None
    assert (job.ended.how, job.ended.exit_code) == ("stopped", 0)
    assert len({m.ended.n_steps for m in job.connections if m.ended is not None}) == 1
    assert not job.notes


@pytest.mark.slow
def test_windows_are_of_the_same_steps_though_one_host_runs_ahead(tmp_path: Path) -> None:
    """As with collectives on a device: nothing on the host holds the faster rank back."""
    body = """
    from pathlib import Path
    def profiled_step(rank, n, active=[]):
        if torch.autograd.profiler._is_profiler_enabled:
            active.append(n)
            Path(__file__).with_name(f"profiled{rank}").write_text(" ".join(map(str, active)))
    def reduce_some_steps_later(rank, n, under_way=[], values=torch.ones(4)):
        under_way.append(dist.all_reduce(values.clone(), async_op=True))
        if len(under_way) > 30:
            under_way.pop(0).wait()
        profiled_step(rank, n)
    train(sample_s=(0.0003, 0.002), after_step=reduce_some_steps_later, how="apart")
    """
    with script_run(tmp_path, body) as job:
        job.wait_observed(120.0)
        plain = WindowRequest(id=1, mode="plain", n_steps=6, limit_s=60.0)
        profile = WindowRequest(id=2, mode="profiled", n_steps=6, trace_path="any/baseline.json")
        job.measure([plain, profile])
        far_apart = job.measured[0].n_steps - job.measured[1].n_steps
        job.stop()
    one, two = ((tmp_path / f"profiled{rank}").read_text() for rank in (0, 1))
    assert one == two, far_apart
    assert len(one.split()) >= 6


@pytest.mark.slow
def test_a_rank_that_fails_ends_the_run_with_its_exit_code(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    body = """
    def after_step(rank, n):
        if rank == 1 and n == 40:
            sys.exit(7)
    train((0.001, 0.001), after_step=after_step)
    """
    with script_run(tmp_path, body) as job:
        job.wait_observed(120.0)
        job.measure([WindowRequest(id=1, mode="plain", n_steps=500, limit_s=60.0)])
        end = time.monotonic() + 20.0
        while job.ended is None and time.monotonic() < end:
            job.measure([WindowRequest(id=2, mode="plain", n_steps=5, limit_s=5.0)])
    assert job.ended is not None
    assert job.ended.exit_code == 7


@pytest.mark.slow
def test_a_rank_without_a_loader_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loaderdoctor.instrument.command.rank_group.MISSING_S", 1.0)
    body = """
    import os
    if os.environ["RANK"] == "1":
        time.sleep(60)
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_PORT="0", TORCHELASTIC_USE_AGENT_STORE="")
    train((0.001, 0.001))
    """
    with script_run(tmp_path, body) as job:
        job.wait_observed(120.0)
        (note,) = [n for n in job.notes if n.kind == "ranks-missing"]
        assert note.text.startswith("1 of 2 ranks were not measured (rank 1)")
        (done,) = job.measure([WindowRequest(id=1, mode="plain", n_steps=5, limit_s=30.0)])
        assert done.status == "ok"


@pytest.mark.slow
def test_a_script_that_never_trains_is_an_error_of_one_line(tmp_path: Path) -> None:
    job = script_run(tmp_path, "raise KeyError('no data')")
    with pytest.raises(RunError, match="failed before its loop was warm: KeyError: 'no data'"), job:
        job.wait_observed(120.0)


def diagnosed(folder: Path, *command: str) -> dict[str, Any]:
    done = subprocess.run(
        [*command, "--budget", "8", "--no-verify", "--output", str(folder / "out"), "--json",
         str(folder / "report.json"), str(script(folder, "train(how='ddp')"))],
        capture_output=True,
        text=True,
        timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ("-m", "loaderdoctor", "diagnose", *TWO),
        ("-m", "torch.distributed.run", *TWO, "-m", "loaderdoctor", "diagnose"),
        ("-m", "loaderdoctor", "diagnose", *TWO, "--nnodes", "1:2", "--rdzv-backend", "c10d",
         "--rdzv-conf", "last_call_timeout=1", "--rdzv-endpoint", "localhost:0"),
    ],
    ids=["diagnose-starts-torchrun", "torchrun-starts-diagnose", "several-machines"],
)  # fmt: skip
def test_a_rank_with_a_slow_dataset_is_named_and_its_peers_wait_is_no_communication(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    found = diagnosed(tmp_path, sys.executable, *command)
    slow = next(f for f in found["findings"] if f["kind"] == "slow-rank")
    assert slow["evidence"]["rank"] == 1
    assert slow["evidence"]["cause"] == "input"
    assert found["verdict"]["bound"] == "input"
    assert found["environment"]["rank"] == 1
    fast, late = found["ranks"]
    written = tmp_path / "out"
    assert {p.name for p in (written / "perfetto").iterdir()} == {
        "baseline.json.gz",
        "rank-0.json.gz",
        "rank-1.json.gz",
    }
    # Two workers of one run: the plugin shows them side by side.
    workers = {p.name.split(".")[0] for p in (written / "tensorboard" / "ranks").iterdir()}
    assert {w.rpartition("_")[2] for w in workers} == {"0", "1"}
    # Rank 0 fetches for a quarter of the time and waits for the rest of it.
    assert fast["peer_wait_ms"] > 0.4 * fast["step"]["wall_ms"]
    assert late["peer_wait_ms"] < 0.2 * fast["peer_wait_ms"]
    for rank in (fast, late):
        communication_ms = rank["shares"]["communication"] * rank["own_ms"]
        # On two shared cores gloo itself waits for a CPU now and then, some milliseconds.
        assert communication_ms < 0.5 * fast["peer_wait_ms"]
        assert max(rank["shares"], key=lambda k: rank["shares"][k] or 0.0) == "input"


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_an_interrupted_run_leaves_no_process_behind(tmp_path: Path, number: int) -> None:
    path = script(tmp_path, SAYING)
    command = diagnosis_at_step_20(*TWO, "--output", str(tmp_path / "out"), str(path))
    os.kill(command.pid, number)
    command.communicate(timeout=60)
    assert command.returncode != 0
    assert children_of_test(tmp_path) == []


@pytest.mark.slow
def test_a_killed_command_takes_its_ranks_along(tmp_path: Path) -> None:
    path = script(tmp_path, SAYING)
    command = diagnosis_at_step_20(*TWO, "--output", str(tmp_path / "out"), str(path))
    command.kill()
    command.communicate(timeout=60)
    wait_until_gone(tmp_path, within_s=40.0)
