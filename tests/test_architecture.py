"""Who may import whom, room by room, and who may import torch: read from the imports themselves."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "loaderdoctor"
PAGE = PACKAGE.parent / "docs" / "architecture.md"

# A room is a folder of `loaderdoctor/` (each of `instrument/`'s folders is one), or a module that
# lies in `loaderdoctor/` itself. Each may import itself and what stands behind its name here.
# `WORDS` are free to all; beyond them each may import what it does import, and nothing else.
# `MEASURED`: what a measuring process sends.
WORDS = {"errors", "settings", "units", "estimate"}
MEASURED = WORDS | {"wire"}
EVIDENCE = MEASURED | {"facts"}
JUDGED = EVIDENCE | {"format", "findings", "advice"}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "intervals": set(),
    "estimate": set(),
    "secrets": set(),
    "units": set(),
    "setting_words": set(),
    "settings": {"errors", "setting_words"},
    "combinations": {"settings"},
    "format": {"estimate", "settings"},  # how figures read: the only place that rounds
    "hazards": {"settings", "wire", "format"},  # what a change of settings would break
    "recipes": {"errors", "settings"},
    # The measuring side, in the order of its rooms.
    "wire": WORDS,
    "system": MEASURED,
    "command": MEASURED | {"system"},
    "workers": MEASURED | {"system"},
    "batches": MEASURED | {"system"},
    "dataset": MEASURED | {"system", "workers", "batches"},
    "trial": MEASURED | {"system", "batches", "dataset", "hazards", "combinations"},
    "handover": MEASURED | {"batches", "dataset", "trial"},
    "session": MEASURED | {"system", "workers", "batches", "dataset", "trial", "handover"},
    "recording": MEASURED | {"system", "batches", "trial", "session", "handover", "tuning"},
    "entry": MEASURED | {"system", "command", "session", "recording"},
    # The pipeline behind it.
    "facts": MEASURED,
    "alerts": MEASURED | {"format"},
    "trace": WORDS,
    "attribution": EVIDENCE | {"trace", "intervals"},
    "findings": EVIDENCE | {"format", "hazards"},
    "advice": EVIDENCE | {"format", "findings", "secrets", "combinations", "setting_words"},
    "report": JUDGED | {"trace", "secrets", "setting_words"},
    # What drives it.
    "proving": MEASURED
    | {"command", "format", "report", "secrets", "combinations", "setting_words"},
    "cluster": WORDS | {"system"},
    "tuning": WORDS,
    "tryout": JUDGED | {"attribution", "command", "report"},
    "diagnosis": JUDGED
    | {"trace", "attribution", "command", "report", "tryout", "combinations", "setting_words"},
    "sweep": JUDGED
    | {"trace", "attribution", "command", "report", "tryout", "combinations", "setting_words"}
    | {"cluster", "recipes"},
}
DRIVERS = {"commands", "cli", "api", "callbacks", "__main__"}  # these may import anything
# Rooms of the measuring process that a command starts without torch.
TORCH_FREE = {"wire", "system", "command"}
# In them, what only the measuring process imports.
TORCH_IN = {"system/memory.py"}


@cache
def modules() -> dict[str, Path]:
    """Every module by its dotted name; a package by its own."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        if "_recipes" not in path.parts:
            parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports(path: Path) -> frozenset[str]:
    """Modules imported anywhere in the file, in functions and for types only too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in modules() else node.module for name in names}
    return frozenset(found)


def room_of(module: str) -> str:
    """`loaderdoctor.instrument.wire.protocol` -> `wire`; `loaderdoctor` itself is "top"."""
    parts = module.split(".")[1:]
    if parts[:1] == ["instrument"] and len(parts) > 1:
        return parts[1]
    return parts[0] if parts else "top"


def arrows() -> dict[tuple[str, str], list[str]]:
    """(room, room that it imports) -> the imports."""
    found: dict[tuple[str, str], list[str]] = {}
    for module, path in modules().items():
        for name in imports(path):
            if name.partition(".")[0] == "loaderdoctor" and room_of(name) != room_of(module):
                found.setdefault((room_of(module), room_of(name)), []).append(
                    f"{module} imports {name}"
                )
    return found


def test_every_room_is_listed_and_no_other() -> None:
    rooms = {room_of(module) for module in modules()} - DRIVERS - {"top", "instrument"}
    assert rooms == set(MAY_IMPORT)


@pytest.mark.parametrize("room", sorted(MAY_IMPORT))
def test_a_room_imports_only_what_it_may(room: str) -> None:
    for (importing, imported), where in arrows().items():
        if importing == room:
            assert imported in MAY_IMPORT[room] | {"top"}, where


@pytest.mark.parametrize("room", sorted(MAY_IMPORT))
def test_what_a_room_may_import_it_does_import(room: str) -> None:
    unused = MAY_IMPORT[room] - {imported for importing, imported in arrows() if importing == room}
    assert unused <= WORDS | {"wire"}, "what is allowed and not used is no wall"


def test_no_two_rooms_import_each_other() -> None:
    circles = {pair for pair in arrows() if pair[::-1] in arrows() and "top" not in pair}
    assert not circles, circles


def test_no_modules_import_one_another_in_a_ring() -> None:
    inner = set(modules()) - {"loaderdoctor"}  # it offers names of `api` to type checkers
    graph = {name: imports(path) & inner for name, path in modules().items()}
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, " -> ".join((*above[above.index(name) :], name))
        if name not in done:
            for imported in sorted(graph[name] - {name}):
                visit(imported, (*above, name))
            done.add(name)

    for name in sorted(graph):
        visit(name, ())


def test_only_the_measuring_side_imports_torch() -> None:
    for module, path in modules().items():
        relative = path.relative_to(PACKAGE)
        inside = "/".join(relative.parts[1:])
        measuring = relative.parts[0] == "instrument" and (
            room_of(module) not in TORCH_FREE or inside in TORCH_IN
        )
        uses = {m for m in imports(path) if m == "torch" or m.startswith("torch.")}
        assert measuring or not uses, f"{relative} imports {uses}"


def test_help_and_analyze_load_no_torch() -> None:
    code = (
        "import sys; sys.argv = ['loaderdoctor', 'analyze', '--help'];"
        "from loaderdoctor.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "import loaderdoctor.commands.analyze, loaderdoctor.commands.diagnose\n"
        "assert 'torch' not in sys.modules, 'torch was imported'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_measuring_process_leaves_torch_to_the_script() -> None:
    code = (
        "import sys, loaderdoctor.instrument.entry.child\n"
        "assert 'torch' not in sys.modules, 'what the script sets before its import counts no more'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_nothing_stands_below_where_a_module_runs_itself() -> None:
    """What does is not defined yet when it runs."""
    above = []
    for path in PACKAGE.rglob("*.py"):
        runs = [isinstance(x, ast.If) and "__main__" in ast.unparse(x.test) for x in body(path)]
        if any(runs[:-1]):
            above.append(path.name)
    assert not above


def body(path: Path) -> list[ast.stmt]:
    return ast.parse(path.read_text(encoding="utf-8")).body


@pytest.mark.parametrize("command", ["analyze", "diagnose", "run.command", "sweep"])
def test_a_command_loads_what_it_writes_with_only_when_it_writes(command: str) -> None:
    code = (
        f"import sys, loaderdoctor.commands.{command}\n"
        "seldom = {'tensorboard', 'jinja2', 'matplotlib'} & set(sys.modules)\n"
        "assert not seldom, seldom"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_page_has_a_line_for_every_room_and_no_other() -> None:
    listed = set(
        re.findall(r"^\| `(?:loaderdoctor/)?([\w/]+)/` \|", PAGE.read_text(), re.MULTILINE)
    )
    tree = {
        path.parent.relative_to(PACKAGE).as_posix()
        for path in modules().values()
        if path.parent != PACKAGE
    }
    assert listed == tree, f"docs/architecture.md lacks {tree - listed}, has {listed - tree}"


def test_every_module_that_the_page_names_is_there() -> None:
    named = set(re.findall(r"`([a-z]\w*(?:/\w+)+(?:\.py|/)?)`", PAGE.read_text()))
    named -= {"loaderdoctor/a/b/name.py", "tests/a/b/test_name.py"}  # how tests are named
    roots = PACKAGE, PACKAGE / "instrument", PACKAGE.parent
    gone = {
        name
        for name in named
        if not any((root / name).exists() or (root / f"{name}.py").exists() for root in roots)
    }
    assert not gone
    assert len(named) > 50


@cache
def defined() -> frozenset[str]:
    """Every name of the package's own: functions, classes, variables, parameters, modules."""
    found = {part for module in modules() for part in module.split(".")}
    for path in modules().values():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Name):
                found.add(node.id)
            elif isinstance(node, ast.arg):
                found.add(node.arg)
    return frozenset(found)


def test_every_name_that_the_page_mentions_is_there() -> None:
    mentioned = set(re.findall(r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:\(\))?`", PAGE.read_text()))
    mentioned -= {"report.json", "CHANGELOG.md", "MAY_IMPORT"}  # two files; the table above
    last = {re.sub(r"\.py$", "", name).rpartition(".")[2] for name in mentioned}
    assert not last - defined()
    assert len(mentioned) > 50


def test_modules_stay_small() -> None:
    long = {
        name: n for name, p in modules().items() if (n := len(p.read_text().splitlines())) > 400
    }
    assert not long, f"over 400 lines, look for a second subject: {long}"
