"""The memory history of one window: bounded, saved, and switched off however the window ends.

Without a GPU torch's own functions are stood in for; the `gpu` tests use them as they are.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from loaderdoctor.instrument.session import ScriptOverError
from loaderdoctor.instrument.session.profiling import Timed, with_history
from loaderdoctor.instrument.session.sources import SourceRefusedError
from loaderdoctor.instrument.wire.measured import SnapshotRecord
from loaderdoctor.instrument.wire.protocol import WindowDone, WindowRequest

CUDA = torch.device("cuda", 0)
SNAPSHOT = {"segments": [], "device_traces": [[{"action": "alloc"}] * 5, [{"action": "free"}]]}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is asked of torch, in order."""
    asked: list[Any] = []

    def record(enabled: str | None, **options: Any) -> None:
        asked.append((enabled, options))

    def snapshot() -> dict[str, Any]:
        asked.append("snapshot")
        return SNAPSHOT

    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", record)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", snapshot)
    monkeypatch.setattr(torch._C, "_cuda_isHistoryEnabled", lambda: False, raising=False)
    return asked


def recorded(
    asked: WindowRequest,
    timed: Timed,
    device: torch.device | None = CUDA,
    *,
    in_group: bool = False,
) -> Timed:
    return with_history(device, asked, timed, in_group=in_group)


def request(entries: int = 100, path: Path | None = None) -> WindowRequest:
    return WindowRequest(
        id=7,
        mode="plain",
        n_steps=2,
        memory_entries=entries,
        snapshot_path=str(path) if path is not None else None,
    )


def window(calls: list[Any]) -> Timed:
    """A window of two steps."""
    for _ in range(2):
        calls.append("step")
        yield
    return WindowDone(id=7, mode="plain", status="ok", n_steps=2)


def run(timed: Timed) -> WindowDone:
    try:
        next(timed)
        while True:
            timed.send(0)
    except StopIteration as stop:
        done: WindowDone = stop.value
        return done


START = ("all", {"context": "all", "stacks": "python", "max_entries": 100})
END: tuple[None, dict[str, Any]] = (None, {})


def test_history_is_bounded_saved_after_the_steps_and_ended(
    calls: list[Any], tmp_path: Path
) -> None:
    path = tmp_path / "new" / "snapshot.pickle"
    done = run(recorded(request(path=path), window(calls)))
    assert calls == [START, "step", "step", "snapshot", END]
    assert done.snapshot == SnapshotRecord(path=str(path), n_entries=6)
    assert done.n_steps == 2
    assert pickle.loads(path.read_bytes()) == SNAPSHOT
    assert [p.name for p in path.parent.iterdir()] == ["snapshot.pickle"]


def test_a_window_for_the_cost_alone_saves_nothing(calls: list[Any]) -> None:
    done = run(recorded(request(), window(calls)))
    assert calls == [START, "step", "step", END]
    assert done.snapshot is None


def test_a_window_that_asks_for_none_touches_nothing(calls: list[Any]) -> None:
    done = run(recorded(request(entries=0), window(calls), None))
    assert calls == ["step", "step"]
    assert done.n_steps == 2


@pytest.mark.parametrize("error", [ScriptOverError(), RuntimeError("the loop failed")])
def test_history_is_ended_where_the_window_is_cut_short(calls: list[Any], error: Exception) -> None:
    timed = recorded(request(path=Path("unused")), window(calls))
    next(timed)
    with pytest.raises(type(error)):
        timed.throw(error)
    assert calls == [START, "step", END]


def test_history_is_ended_where_the_snapshot_cannot_be_written(
    calls: list[Any], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        run(recorded(request(path=tmp_path / "file" / "s.pickle"), window(calls)))
    assert calls[-1] == END


def test_a_snapshot_that_fails_midway_leaves_no_part_of_it(
    calls: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = {"device_traces": [], "segments": lambda: None}  # can't be pickled
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: broken)
    with pytest.raises((pickle.PicklingError, AttributeError)):
        run(recorded(request(path=tmp_path / "s.pickle"), window(calls)))
    assert list(tmp_path.iterdir()) == []
    assert calls[-1] == END


@pytest.mark.parametrize("device", [None, torch.device("cpu"), torch.device("xpu", 0)])
def test_other_devices_are_refused_with_the_reason(calls: list[Any], device: Any) -> None:
    with pytest.raises(SourceRefusedError, match="CUDA and ROCm"):
        run(recorded(request(), window(calls), device))
    assert calls == []


def test_a_history_of_the_scripts_own_is_neither_restarted_nor_ended(
    calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch._C, "_cuda_isHistoryEnabled", lambda: True, raising=False)
    with pytest.raises(SourceRefusedError, match="itself"):
        run(recorded(request(), window(calls)))
    assert calls == []


def test_ranks_that_share_a_folder_write_files_of_their_own(
    calls: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in ("0", "3"):
        monkeypatch.setenv("RANK", rank)
        run(recorded(request(path=tmp_path / "s.pickle"), window(calls), in_group=True))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["s-rank0.pickle", "s-rank3.pickle"]


@pytest.fixture
def _history_off() -> Iterator[None]:
    yield
    torch.cuda.memory._record_memory_history(None)


@pytest.mark.gpu
@pytest.mark.usefixtures("_history_off")
def test_torchs_own_history_is_recorded_bounded_and_off_again(tmp_path: Path) -> None:
    model = torch.nn.Linear(64, 64, device=CUDA)

    def steps() -> Timed:
        for _ in range(50):
            model(torch.ones(8, 64, device=CUDA)).sum().backward()
            yield
        return WindowDone(id=7, mode="plain", status="ok", n_steps=50)

    path = tmp_path / "snapshot.pickle"
    done = run(recorded(request(path=path), steps()))
    assert done.snapshot is not None
    assert 0 < done.snapshot.n_entries <= 100
    assert not torch._C._cuda_isHistoryEnabled()
    snapshot = pickle.loads(path.read_bytes())
    frames = [f for trace in snapshot["device_traces"] for e in trace for f in e["frames"]]
    assert any(f["filename"].endswith("test_profiling_window_memory.py") for f in frames)
    torch.cuda.memory._record_memory_history("state")
    with pytest.raises(SourceRefusedError):
        run(recorded(request(), steps()))
    assert torch._C._cuda_isHistoryEnabled()


SCRIPT = """
import torch
from torch.profiler import record_function
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(20000, 512), torch.randint(0, 10, (20000,)))
model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.Linear(2048, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(1000):
    for x, y in DataLoader(data, batch_size=256, num_workers=2, pin_memory=True):
        with record_function("my forward"):
            loss = torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.gpu
def test_a_diagnosis_reports_peaks_efficiency_ranges_and_the_snapshot(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [
        sys.executable, "-m", "loaderdoctor", "diagnose", "--budget", "25", "--no-verify",
        "--memory-history", "--output", str(tmp_path / "run"), str(script),
    ]  # fmt: skip
    root = Path(__file__).parents[3]
    done = subprocess.run(
        command, cwd=root, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True,
        text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    gpu = report["gpu"]
    parameters = 4 * (512 * 2048 + 2048 + 2048 * 10 + 10)
    assert 2 * parameters < gpu["peak_allocated_bytes"] <= gpu["peak_reserved_bytes"] < 4 << 30
    (device,) = gpu["devices"]
    for name in ("utilization_share", "sm_efficiency_share", "occupancy_share"):
        assert 0 < device[name] <= 1
    assert gpu["busy"]["shares"]
    (found,) = [r for r in report["ranges"] if r["name"] == "my forward"]
    assert found["gpu_ms_per_step"] > 0
    history = report["memory_history"]
    assert history["overhead"] > 0.5
    saved = tmp_path / "run" / history["path"]
    assert saved.stat().st_size == history["n_bytes"]
    assert 0 < history["n_entries"] <= history["max_entries"]
    snapshot = pickle.loads(saved.read_bytes())
    assert sum(map(len, snapshot["device_traces"])) == history["n_entries"]


@pytest.mark.slow
def test_without_a_gpu_the_command_says_that_it_does_not_apply(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace(".cuda()", "").replace(", pin_memory=True", ""))
    command = [
        sys.executable, "-m", "loaderdoctor", "diagnose", "--budget", "8", "--no-verify",
        "--memory-history", "--output", str(tmp_path / "run"), str(script),
    ]  # fmt: skip
    root = Path(__file__).parents[3]
    done = subprocess.run(
        command, cwd=root, env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "--memory-history does not apply" in " ".join(done.stdout.split())
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["memory_history"] is None
    assert "memory-history" in {w["kind"] for w in report["warnings"]}
    (found,) = [r for r in report["ranges"] if r["name"] == "my forward"]
    assert found["host_ms_per_step"] > 0
    assert found["gpu_ms_per_step"] is None
    assert not list((tmp_path / "run").glob("*.pickle"))
