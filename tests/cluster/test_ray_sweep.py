"""The real `sweep --engine ray` over a local Ray: nodes on one machine that pretend, or don't."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from loaderdoctor.cluster import ray_tasks
from loaderdoctor.commands.sweep import cluster as sweep_cluster
from loaderdoctor.commands.sweep import sweep
from loaderdoctor.commands.sweep.cluster import GroupsOnNodes, NodeWork
from loaderdoctor.commands.sweep.plan import SweepOptions
from loaderdoctor.sweep.groups import TrialUpdate
from tests.cluster.conftest import Nodes
from tests.python_path import python_path

pytestmark = pytest.mark.ray

# Samples that wait, as from storage. Each process leaves word of when it ran.
SCRIPT = """\
import os
import time
import torch
from torch.utils.data import DataLoader, Dataset


class Waiting(Dataset):
    def __len__(self):
        return 80

    def __getitem__(self, index):
        time.sleep(0.005)
        return torch.full((8,), float(index)), index % 2


def main():
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Waiting(), batch_size=4, shuffle=True)
    with open(f"ran-{os.getpid()}.txt", "w") as beats:
        for epoch in range(100_000):
            for x, y in loader:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                print(time.time(), file=beats, flush=True)


if __name__ == "__main__":
    main()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train_waiting.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


def swept(nodes: Nodes, monkeypatch: pytest.MonkeyPatch, **options: Any) -> dict[str, Any]:
    """The whole command here, on nodes that pretend to be machines; its report."""
    monkeypatch.setattr(sweep_cluster, "RayCluster", nodes.connect)
    chosen: dict[str, Any] = {
        "target": ("train_waiting.py",),
        "engine": "ray",
        "grid": ("num_workers=1,2,3,4",),
        "budget_s": 60.0,  # room on a busy machine; one round takes a few seconds of it
        "rounds": 1,
        "output": Path("run"),
        **options,
    }
    assert sweep(SweepOptions(**chosen)) == 0
    report: dict[str, Any] = json.loads(Path("run/report.json").read_bytes())
    return report


def lifetimes(folder: Path) -> list[tuple[float, float]]:
    """When each process that trained made its first and last step."""
    found = []
    for path in folder.glob("ran-*.txt"):
        beats = [float(line) for line in path.read_text().split()]
        if beats:
            found.append((beats[0], beats[-1]))
    return found


def still_running(folder: Path) -> list[int]:
    """Processes that trained and are still there."""
    pids = [int(path.stem.removeprefix("ran-")) for path in folder.glob("ran-*.txt")]
    assert pids
    return [pid for pid in pids if psutil.pid_exists(pid) and not is_zombie(pid)]


def is_zombie(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def test_the_command_sweeps_on_a_cluster_and_no_two_loops_run_on_this_machine_at_once(
    nodes: Nodes, folder: Path
) -> None:
    nodes.add("a", cpus=1)
    nodes.add("b", cpus=2)
    done = subprocess.run(
        [
            sys.executable, "-m", "loaderdoctor", "sweep", "--engine", "ray",
            "--ray-address", nodes.address, "--grid", "num_workers=1,2",
            "--rounds", "1", "--budget", "60",
            "--output", "run", "--json", "report.json", "train_waiting.py",
        ],
        env={**os.environ, "PYTHONPATH": python_path()},
        capture_output=True,
        text=True,
        timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(Path("report.json").read_bytes())
    assert [trial["status"] for trial in report["trials"]] == ["ok"] * 3
    assert {group["purpose"] for group in report["cluster"]["groups"]} >= {"rank"}
    assert len(report["cluster"]["hardware"]) == 1
    assert report["environment"]["usable_cpus"] > 0
    assert report["shares"]["input"] > 0.2  # the loop's own trace came back from the node
    assert Path("run/report.html").is_file()
    assert list(Path("run/tensorboard/baseline").glob("*.pt.trace.json.gz"))
    assert list(Path("run/tensorboard/trial-01").glob("*.pt.trace.json.gz"))
    ran = lifetimes(folder)
    assert len(ran) >= 2  # one to look at the loop, one to measure
    assert not any(a[0] < b[1] and b[0] < a[1] for a, b in combinations(ran, 2))
    assert not still_running(folder)


def test_unlike_machines_are_ranked_apart_and_the_report_says_so(
    nodes: Nodes, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes.add("old", cpu="Old CPU")
    nodes.add("new", cpu="New CPU")
    report = swept(nodes, monkeypatch)
    kinds = {kind["cpu"]: kind for kind in report["cluster"]["hardware"]}
    assert set(kinds) == {"Old CPU", "New CPU"}
    hardware = [trial["hardware"] for trial in report["trials"]]
    for kind in kinds.values():
        assert [i for i, name in enumerate(hardware) if name == kind["name"] and i] == kind[
            "trials"
        ]
        assert kind["baseline_ms"] > 0
        assert {kind["best"]["trial"], *kind["best"]["tied_with"]} <= {0, *kind["trials"]}
    main = kinds["Old CPU" if hardware[0] == kinds["Old CPU"]["name"] else "New CPU"]
    assert {report["best"]["trial"], *report["best"]["tied_with"]} <= {0, *main["trials"]}
    (warning,) = [w for w in report["warnings"] if w["kind"] == "unlike-hardware"]
    assert "Old CPU" in warning["text"] and "New CPU" in warning["text"]
    shown = capsys.readouterr().out
    assert "Hardware A" in shown and "Hardware B" in shown
    with np.load("run/samples.npz") as samples:
        groups = set(samples["group"][samples["trial"] == 0].tolist())
    assert {0, 1} <= groups  # each node's own baseline is kept


def test_a_published_experiment_has_each_group_of_rows_on_one_machine_and_its_claims(
    nodes: Nodes, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes.add("a")
    nodes.add("b")
    report = swept(nodes, monkeypatch, grid=(), preset="who-is-faster")
    rows = report["trials"][1:]
    assert len(rows) == 11 * 6  # as published: portions, and their control groups
    ranked = [group for group in report["cluster"]["groups"] if group["purpose"] == "rank"]
    assert {group["node"] for group in ranked} == {"a", "b"}
    dealt = {index: group["node"] for group in ranked for index in group["trials"]}
    machines: dict[str, set[str]] = {}
    for index, row in enumerate(rows, 1):
        if index in dealt:
            machines.setdefault(row["group"], set()).add(dealt[index])
            assert row["node"] in (None, dealt[index])
        else:  # never silently
            assert row["same_as"] is not None or row["reason"]
    assert len(machines) == 6
    assert all(len(one) == 1 for one in machines.values())
    assert any(row["status"] == "ok" and row["time_ratio"] for row in rows)
    assert {claim["preset"] for claim in report["claims"]} == {"who-is-faster"}
    assert Path("run/report.html").is_file()


def test_the_trials_of_a_lost_node_are_measured_on_another_and_no_process_is_left(
    nodes: Nodes, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes.add("a")
    nodes.add("b")
    take = GroupsOnNodes._take
    killed: list[str] = []

    def kill_first(self: Any, group: Any, came: Any) -> None:
        take(self, group, came)
        if isinstance(came.told, TrialUpdate) and not killed:
            killed.append(came.place.host)
            nodes.kill(came.place.host)

    monkeypatch.setattr(GroupsOnNodes, "_take", kill_first)
    report = swept(nodes, monkeypatch)
    assert [trial["status"] for trial in report["trials"]] == ["ok"] * 5
    ranked = [g for g in report["cluster"]["groups"] if g["purpose"] == "rank"]
    assert sorted(group["n_lost"] for group in ranked) == [0, 1]
    assert all(group["node"] not in killed for group in ranked)
    end = time.monotonic() + 60.0
    while still_running(folder) and time.monotonic() < end:
        time.sleep(0.5)
    assert not still_running(folder)


def test_trials_that_no_node_is_left_for_fail_with_the_reason_and_the_others_are_reported(
    nodes: Nodes, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes.add("a")
    nodes.add("b")
    monkeypatch.setattr(ray_tasks, "NO_NODE_S", 2.0)
    doomed: list[tuple[int, str]] = []
    take = GroupsOnNodes._take

    def follow_and_kill(self: Any, group: Any, came: Any) -> None:
        take(self, group, came)
        if isinstance(came.told, TrialUpdate) and (not doomed or doomed[0][0] == group.index):
            at = (group.index, came.place.host)
            if at not in doomed:
                doomed.append(at)
                nodes.kill(came.place.host)

    monkeypatch.setattr(GroupsOnNodes, "_take", follow_and_kill)
    report = swept(nodes, monkeypatch)
    assert {host for _, host in doomed} == {"a", "b"}
    failed, done = sorted(
        (g for g in report["cluster"]["groups"] if g["purpose"] == "rank"),
        key=lambda group: group["status"] == "ok",
    )
    assert failed["status"] == "failed" and done["status"] == "ok"
    for index in failed["trials"]:
        assert report["trials"][index]["status"] == "failed"
        assert "no node of the cluster is left" in report["trials"][index]["reason"]
    assert all(report["trials"][index]["status"] == "ok" for index in done["trials"])
    assert report["best"]["trial"] in (0, *done["trials"])
    assert any(warning["kind"] == "group-lost" for warning in report["warnings"])


def test_an_interrupted_sweep_goes_on_with_the_groups_that_are_missing(
    nodes: Nodes, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes.add("a")
    nodes.add("b")
    take = GroupsOnNodes._take

    def stop_after_one(self: Any, group: Any, came: Any) -> None:
        take(self, group, came)
        if came.result is not None:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(GroupsOnNodes, "_take", stop_after_one)
        patched.setattr(sweep_cluster, "RayCluster", nodes.connect)
        options = SweepOptions(
            target=("train_waiting.py",),
            engine="ray",
            grid=("num_workers=1,2,3,4",),
            budget_s=60.0,
            rounds=1,
            output=Path("run"),
        )
        assert sweep(options) == 130
    first = json.loads(Path("run/report.json").read_bytes())
    (done,) = [g for g in first["cluster"]["groups"] if g["status"] == "ok"]
    kept = {i: first["trials"][i]["step_ms"] for i in done["trials"]}
    monkeypatch.setattr(sweep_cluster, "RayCluster", nodes.connect)
    assert sweep(SweepOptions(resume=Path("run"), engine="ray")) == 0
    report = json.loads(Path("run/report.json").read_bytes())
    assert [trial["status"] for trial in report["trials"]] == ["ok"] * 5
    assert {i: report["trials"][i]["step_ms"] for i in kept} == kept  # measured once
    ranked = [g for g in report["cluster"]["groups"] if g["purpose"] == "rank"]
    assert sorted(i for group in ranked for i in group["trials"]) == [1, 2, 3, 4]
    assert {group["status"] for group in ranked} == {"ok"}
    assert report["shares"]["input"] > 0.2  # the loop as it is was traced on the new node


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_sweep_reports_what_nodes_have_told_and_leaves_no_process(
    nodes: Nodes, folder: Path, number: signal.Signals
) -> None:
    nodes.add("a")
    command = subprocess.Popen(
        [
            *(sys.executable, "-m", "loaderdoctor", "sweep", "--engine", "ray"),
            *("--ray-address", nodes.address, "--grid", "num_workers=1,2", "--budget", "600"),
            *("--output", "run", "train_waiting.py"),
        ],
        env={**os.environ, "PYTHONPATH": python_path()},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    end = time.monotonic() + 200.0
    while len(list(folder.glob("ran-*.txt"))) < 2 and time.monotonic() < end:
        time.sleep(0.5)  # the first looked at the loop, the second measures
    measuring = max(folder.glob("ran-*.txt"), key=lambda path: path.stat().st_mtime)
    while measuring.read_text().count("\n") < 600 and time.monotonic() < end:
        time.sleep(0.5)  # several windows
    command.send_signal(number)
    shown, said = command.communicate(timeout=120)
    assert command.returncode == 128 + number, said
    assert "interrupted" in shown
    report = json.loads(Path("run/report.json").read_bytes())
    assert report["trials"][0]["step_ms"] > 0
    assert not still_running(folder)


def test_a_script_that_nodes_cannot_see_is_one_clear_line(
    nodes: Nodes, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes.add("a")
    here = NodeWork.of

    def elsewhere(asked: Any) -> NodeWork:
        return replace(here(asked), cwd="/no/such/shared/folder")

    monkeypatch.setattr(NodeWork, "of", elsewhere)
    with pytest.raises(Exception, match="every node of the cluster has under the same path"):
        swept(nodes, monkeypatch)


def test_a_script_that_fails_on_every_node_is_the_scripts_fault_in_one_line(
    nodes: Nodes, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes.add("a")
    nodes.add("b")
    Path("broken.py").write_text("raise ValueError('no data here')\n")
    with pytest.raises(Exception, match="ValueError: no data here"):
        swept(nodes, monkeypatch, target=("broken.py",))
