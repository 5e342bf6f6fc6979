"""Without the extra: one line; and Ray is nobody else's business."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from loaderdoctor.cluster.ray_cluster import RayCluster
from loaderdoctor.commands.sweep.plan import SweepOptions, resolve
from loaderdoctor.errors import RunError, UsageError
from tests.test_architecture import PACKAGE, imports, modules

TRACES = Path(__file__).parents[2] / "traces"
WITHOUT_RAY = "import sys; sys.modules['ray'] = None; from loaderdoctor.cli import main; main()"


def test_without_the_extra_the_engine_says_how_to_get_it() -> None:
    names = ("enough_workers", "pinned_same_stream")
    traces = [str(TRACES / f"{name}.pt.trace.json.gz") for name in names]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_RAY, "analyze", *traces, "--engine", "ray"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert done.stderr == (
        "loaderdoctor: --engine ray needs Ray: pip install 'loaderdoctor[ray]'\n"
    )
    assert done.stdout == ""


def test_what_compares_within_one_loop_is_refused_before_anything_runs() -> None:
    with pytest.raises(UsageError, match="--search auto"):
        resolve(SweepOptions(target=(__file__,), engine="ray", search="auto"))


def test_an_address_without_the_engine_is_a_mistake() -> None:
    with pytest.raises(UsageError, match="--engine ray"):
        resolve(SweepOptions(target=(__file__,), ray_address="127.0.0.1:6379"))


@pytest.mark.parametrize("address", ["ray://head:10001", "http://head:8265", "head", ":6379"])
def test_an_address_of_another_form_says_what_is_taken(address: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"), RayCluster(address):
        pass


def test_an_address_where_nobody_listens_is_told_without_waiting_for_ray() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(RunError, match="no Ray cluster answers"), RayCluster(f"127.0.0.1:{port}"):
        pass


def test_only_the_cluster_package_imports_ray() -> None:
    for path in modules().values():
        uses = {name for name in imports(path) if name.split(".")[0] == "ray"}
        assert not uses or path.relative_to(PACKAGE).parts[0] == "cluster", f"{path}: {uses}"


def test_loading_the_commands_loads_no_ray() -> None:
    code = (
        "import sys, loaderdoctor.commands.analyze, loaderdoctor.commands.sweep\n"
        "assert 'ray' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
