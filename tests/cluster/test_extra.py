"""Without the extra: one line; and Ray is nobody else's business."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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


def test_only_the_cluster_package_imports_ray() -> None:
    for path in modules():
        uses = {name for name in imports(path) if name.split(".")[0] == "ray"}
        assert not uses or path.relative_to(PACKAGE).parts[0] == "cluster", f"{path}: {uses}"


def test_loading_the_commands_loads_no_ray() -> None:
    code = (
        "import sys, loaderdoctor.commands.analyze, loaderdoctor.commands.sweep\n"
        "assert 'ray' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
