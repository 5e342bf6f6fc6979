"""The arrows between the stages, and who may import torch: read from the imports themselves."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "loaderdoctor"
PAGE = PACKAGE.parent / "docs" / "architecture.md"
# What commands import: their end of the connection, what both ends say, and readers of records.
TORCH_FREE_INSTRUMENT = {
    "__init__",
    "bench",
    "cgroups",
    "channel",
    "counters",
    "cpu_use",
    "endings",
    "group_bench",
    "handing_over",
    "job_bench",
    "listening",
    "machine",
    "measuring",
    "member",
    "processes",
    "protocol",
    "ranks",
    "record_file",
    "signals",
    "target",
    "worker_log",
    "worker_records",
}
# Each stage may import the stages to its left, and itself.
STAGES = ("instrument", "trace", "attribution", "findings", "report")
# Of `instrument`, the stages to the right may read only its records.
RECORDS = {f"loaderdoctor.instrument.{name}" for name in ("protocol", "counters", "worker_records")}


def imports(path: Path) -> set[str]:
    """Modules imported anywhere in the file, functions included."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def modules() -> list[Path]:
    return sorted(p for p in PACKAGE.rglob("*.py") if "_recipes" not in p.parts)


def test_only_the_measuring_side_imports_torch() -> None:
    for path in modules():
        relative = path.relative_to(PACKAGE)
        measuring = relative.parts[0] == "instrument" and path.stem not in TORCH_FREE_INSTRUMENT
        if not measuring:
            uses = {m for m in imports(path) if m == "torch" or m.startswith("torch.")}
            assert not uses, f"{relative} imports {uses}"


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_imports_only_from_its_left(stage: str) -> None:
    right = STAGES[STAGES.index(stage) + 1 :]
    drivers = ("diagnosis", "sweep", "commands", "cli")
    for path in (PACKAGE / stage).rglob("*.py"):
        for name in imports(path):
            top = name.split(".")[1] if name.startswith("loaderdoctor.") else ""
            assert top not in right, f"{path.name} ({stage}) imports {name}"
            assert top not in drivers, f"{path.name} ({stage}) imports the driver {name}"
            if top == "instrument" and stage != "instrument":
                assert name == "loaderdoctor.instrument" or any(
                    name == r or name.startswith(r + ".") for r in RECORDS
                ), f"{path.name} ({stage}) imports {name}: records only"


def test_help_and_analyze_load_no_torch() -> None:
    code = (
        "import sys; sys.argv = ['loaderdoctor', 'analyze', '--help'];"
        "from loaderdoctor.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "import loaderdoctor.commands.analyze.command, loaderdoctor.commands.diagnose.command\n"
        "assert 'torch' not in sys.modules, 'torch was imported'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", ["analyze", "diagnose", "sweep"])
def test_a_command_loads_what_it_writes_with_only_when_it_writes(command: str) -> None:
    code = (
        f"import sys, loaderdoctor.commands.{command}\n"
        "seldom = {'tensorboard', 'jinja2', 'matplotlib'} & set(sys.modules)\n"
        "assert not seldom, seldom"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_page_lists_every_module_with_its_package_and_no_other() -> None:
    parts = re.split(r"^### (loaderdoctor/\S*)$", PAGE.read_text(), flags=re.MULTILINE)
    listed = {
        f"{package}{name}.py"
        for package, text in zip(parts[1::2], parts[2::2], strict=True)
        for name in re.findall(r"`(\w+)`", text.partition("\n## ")[0])
    }
    tree = {p.relative_to(PACKAGE.parent).as_posix() for p in modules() if p.stem != "__init__"}
    assert listed == tree, f"docs/architecture.md lacks {tree - listed}, has {listed - tree}"


def test_modules_stay_small() -> None:
    long = {
        str(p.relative_to(PACKAGE)): n
        for p in modules()
        if (n := len(p.read_text().splitlines())) > 400
    }
    assert not long, f"over 400 lines, look for a second subject: {long}"
