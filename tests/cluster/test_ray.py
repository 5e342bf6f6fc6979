"""Real tasks on a real local Ray of several nodes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from loaderdoctor.attribution.ranks import RankTrace
from loaderdoctor.cluster.ray_tasks import Came
from loaderdoctor.commands.job_traces import LocalReader, RayReader
from loaderdoctor.errors import RunError
from tests.cluster.conftest import Nodes
from tests.python_path import python_path

pytestmark = pytest.mark.ray
TRACES = Path(__file__).parents[2] / "traces"
Span = tuple[str, float, float]  # node, began, ended
Tell = Callable[[Any], None]


def nap() -> Callable[[float, Tell], Span]:
    """Work that says where and when it ran. A closure: pickled by value, as nodes lack tests."""

    def work(seconds: float, tell: Tell) -> Span:
        import ray

        began = time.time()
        tell("begun")
        time.sleep(seconds)
        return ray.get_runtime_context().get_node_id(), began, time.time()

    return work


def overlap(one: Span, other: Span) -> bool:
    return one[1] < other[2] and other[1] < one[2]


def test_no_two_exclusive_items_run_on_one_machine_though_nodes_differ_in_size(
    nodes: Nodes,
) -> None:
    nodes.add("small", cpus=1)
    nodes.add("large", cpus=4)
    nodes.add("twin-1", cpus=2, machine="shared")
    nodes.add("twin-2", cpus=2, machine="shared")
    with nodes.connect() as cluster:
        hosts = {place.id: place for place in cluster.wait_places()}
        came = list(cluster.run(nap(), [1.0] * 8, exclusive=True))
    spans = [one.result for one in came if one.result is not None]
    assert len(spans) == 8
    at_once = [(a, b) for a, b in combinations(spans, 2) if overlap(a, b)]
    assert at_once  # the machines did work side by side
    for a, b in at_once:
        assert hosts[a[0]].machine != hosts[b[0]].machine


def test_nodes_of_one_real_machine_take_turns(nodes: Nodes) -> None:
    from loaderdoctor.cluster.ray_cluster import RayCluster

    nodes.add("a", cpus=1)
    nodes.add("b", cpus=2)
    with RayCluster(nodes.address) as cluster:  # no pretending: both are this machine
        assert len({place.machine for place in cluster.wait_places()}) == 1
        came = list(cluster.run(nap(), [0.5] * 4, exclusive=True))
    spans = [one.result for one in came if one.result is not None]
    assert len(spans) == 4
    assert not any(overlap(a, b) for a, b in combinations(spans, 2))


def test_an_item_of_a_lost_node_runs_again_on_another(nodes: Nodes) -> None:
    nodes.add("a")
    nodes.add("b")
    with nodes.connect() as cluster:
        hosts = {place.id: place.host for place in cluster.wait_places()}
        came: list[Came[Span]] = []
        killed = None
        for one in cluster.run(nap(), [4.0, 4.0], exclusive=True):
            came.append(one)
            if one.told == "begun" and killed is None:
                assert one.place is not None
                killed = hosts[one.place.id]
                nodes.kill(killed)
    results = [one.result for one in came if one.result is not None]
    assert len(results) == 2
    assert [one for one in came if one.again]
    (survivor,) = set(hosts.values()) - {killed}
    assert {hosts[node] for node, _, _ in results} == {survivor}


def test_a_node_that_joins_takes_over_where_all_others_are_lost(nodes: Nodes) -> None:
    nodes.add("a")
    with nodes.connect() as cluster:
        cluster.wait_places()
        results, joined = [], False
        for one in cluster.run(nap(), [3.0, 3.0, 3.0], exclusive=True):
            if one.told == "begun" and not joined:
                nodes.kill("a")
                nodes.add("late")
                joined = True
            results += [one.result] if one.result is not None else []
    assert len(results) == 3


def test_an_item_does_not_wait_for_ever_for_a_node_that_others_use(nodes: Nodes) -> None:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    class Holder:
        def ready(self) -> bool:
            return True

    nodes.add("taken")
    nodes.add("free")
    with nodes.connect() as cluster:
        ids = {place.host: place.id for place in cluster.wait_places()}
        there = NodeAffinitySchedulingStrategy(ids["taken"], soft=False)
        holder = ray.remote(Holder).options(num_cpus=1, scheduling_strategy=there).remote()
        assert ray.get(holder.ready.remote())
        came = list(cluster.run(nap(), [0.5, 0.5], exclusive=True))
    moved = [one for one in came if one.again is not None]
    assert [one.place.host for one in moved if one.place] == ["taken"]
    results = [one.result for one in came if one.result is not None]
    assert [node for node, _, _ in results] == [ids["free"]] * 2


def test_an_item_that_kills_its_worker_is_given_up_and_the_others_are_done(nodes: Nodes) -> None:
    nodes.add("a")
    nodes.add("b")

    def work(deadly: bool, tell: Tell) -> int:
        if deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        return os.getpid()

    with nodes.connect() as cluster:
        came = list(cluster.run(work, [False, True, False, False]))
    given_up = [(one.index, one.given_up) for one in came if one.given_up is not None]
    assert [index for index, _ in given_up] == [1]
    assert "lost 3 times" in str(given_up[0][1])
    assert sorted(one.index for one in came if one.result is not None) == [0, 2, 3]


def test_a_fault_of_the_work_itself_is_told_at_once_and_not_tried_three_times(nodes: Nodes) -> None:
    nodes.add("a")

    def work(item: int, tell: Tell) -> int:
        return 1 // item

    with nodes.connect() as cluster:
        came = list(cluster.run(work, [0, 1]))
    (failed,) = [one for one in came if one.given_up is not None]
    assert "failed on a: ZeroDivisionError" in str(failed.given_up)
    assert not any(one.again for one in came)


def test_a_node_without_this_version_takes_no_work_and_says_why(nodes: Nodes) -> None:
    nodes.add("old", version="0.0.1")
    with (
        nodes.connect() as cluster,
        pytest.raises(RunError, match=r"old: has loaderdoctor 0\.0\.1"),
    ):
        cluster.wait_places()


# ---------------------------------------------------------------- traces


def ranks(folder: Path, n_ranks: int) -> list[Path]:
    folder.mkdir()
    sources = sorted(TRACES.glob("*.json.gz"))
    made = [folder / f"rank{n}.pt.trace.json.gz" for n in range(n_ranks)]
    for n, path in enumerate(made):
        shutil.copy(sources[n % 3], path)
    return made


def plain(found: dict[Path, RankTrace | str]) -> dict[str, Any]:
    return {path.name: getattr(one, "facts", one) for path, one in found.items()}


def test_traces_read_on_a_cluster_say_what_they_say_here(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes.add("a")
    nodes.add("b")
    paths = ranks(tmp_path / "job", 5)
    paths[3].write_bytes(paths[3].read_bytes()[:1000])
    monkeypatch.chdir(tmp_path)
    relative = [path.relative_to(tmp_path) for path in paths]
    here = dict(LocalReader().read(relative))
    there = dict(RayReader(connect=nodes.connect).read(relative))
    assert plain(here) == plain(there)
    assert isinstance(here[relative[3]], str)


def test_a_trace_that_no_node_can_see_is_a_clear_line_and_the_others_are_read(
    nodes: Nodes, tmp_path: Path
) -> None:
    nodes.add("a")
    nodes.add("b")
    paths = [*ranks(tmp_path / "job", 2), tmp_path / "job" / "elsewhere.json"]
    found = dict(RayReader(connect=nodes.connect).read(paths))
    assert isinstance(found[paths[0]], RankTrace)
    assert "sees no such file" in str(found[paths[2]])
    assert "same path" in str(found[paths[2]])


def analyze(*args: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "loaderdoctor", "analyze", *map(str, args)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": python_path()},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_the_report_of_a_folder_is_the_same_to_the_byte_from_a_cluster(
    nodes: Nodes, tmp_path: Path
) -> None:
    nodes.add("a", cpus=2)
    ranks(tmp_path / "job", 6)
    here = analyze("job", "--json", "here.json", cwd=tmp_path)
    there = analyze(
        "job",
        "--json",
        "there.json",
        "--engine",
        "ray",
        "--ray-address",
        nodes.address,
        cwd=tmp_path,
    )
    assert (here.returncode, there.returncode) == (0, 0), there.stderr
    assert here.stdout == there.stdout
    assert (tmp_path / "here.json").read_bytes() == (tmp_path / "there.json").read_bytes()
    assert len(json.loads((tmp_path / "here.json").read_bytes())["ranks"]) == 6


def test_an_address_where_no_cluster_answers_is_one_line(tmp_path: Path) -> None:
    ranks(tmp_path / "job", 2)
    address = ("--engine", "ray", "--ray-address", "127.0.0.1:1")
    done = analyze("job", *address, cwd=tmp_path)
    assert done.returncode == 1
    assert "no Ray cluster answers" in done.stderr
    assert "Traceback" not in done.stderr
