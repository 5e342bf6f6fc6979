"""What the package's own source may not do: run what it reads, or unpickle it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "loaderdoctor"

# Modules that turn data into objects or code of any kind, and calls that do.
FORBIDDEN_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve"}
FORBIDDEN_MODULES |= {"joblib", "yaml", "code"}
FORBIDDEN_CALLS = {"eval", "exec", "__import__", "compile"}
# Each with the reason for which it is none of that.
ALLOWED = {
    ("trace/parts.py", "pickle"): "rows from our own forked process, over an anonymous pipe",
    ("instrument/dataset/pickling.py", "pickle"): "the user's own objects, to nowhere",
    (
        "instrument/dataset/safety.py",
        "pickle",
    ): "the user's own objects, from memory of this process to it",
    ("advice/writing.py", "compile"): "whether advice compiles in the script; it is not run",
    ("advice/patch.py", "compile"): "the same",
    ("proving/edits.py", "compile"): "the same, of changes together",
    ("instrument/batches/__init__.py", "pickle"): "of plain values of a batch, for their hash",
    (
        "instrument/dataset/__init__.py",
        "pickle",
    ): "of a generator's state, to see whether it changed",
    (
        "instrument/session/profiling.py",
        "pickle",
    ): "a snapshot, for torch's own viewer",
    (
        "instrument/dataset/dataset_tree.py",
        "exec",
    ): "a method of the user's running dataset, its AST changed",
    ("instrument/dataset/dataset_tree.py", "compile"): "the same",
    ("instrument/entry/__init__.py", "exec"): "the script that the user named",
    ("instrument/entry/__init__.py", "compile"): "the same",
}
# What unpickles, or may where it is not told otherwise.
LOADERS = {"load", "loads", "Unpickler", "unpack_archive"}


@cache
def sources() -> tuple[tuple[str, ast.Module], ...]:
    return tuple(
        (path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text()))
        for path in sorted(PACKAGE.rglob("*.py"))
        if "_recipes" not in path.parts
    )


def uses(tree: ast.Module) -> Iterator[str]:
    """Forbidden modules imported and built-ins called, by name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id


def test_nothing_that_is_read_is_unpickled_or_run() -> None:
    found = {
        (where, name)
        for where, tree in sources()
        for name in uses(tree)
        if name in FORBIDDEN_MODULES | FORBIDDEN_CALLS
    }
    assert found <= set(ALLOWED), found - set(ALLOWED)


def test_every_exception_to_that_is_still_one() -> None:
    """No entry of the list outlives its reason."""
    now = {(where, name) for where, tree in sources() for name in uses(tree)}
    assert set(ALLOWED) <= now | {("instrument/entry/__init__.py", "exec")}, set(ALLOWED) - now


def test_modules_that_pickle_unpickle_nothing() -> None:
    """But for parts of a trace, from a process that we forked, and a copy within the process."""
    writers = {where for where, name in ALLOWED if name == "pickle"} - {
        "trace/parts.py",
        "instrument/dataset/safety.py",
    }
    for where, tree in sources():
        if where in writers:
            named = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
            assert not named & LOADERS, where


def test_arrays_are_loaded_without_pickles() -> None:
    for where, tree in sources():
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            of = node.func.value.id if isinstance(node.func.value, ast.Name) else None
            if of in ("np", "numpy") and node.func.attr == "load":
                given = {word.arg: word.value for word in node.keywords}
                allowed = given.get("allow_pickle")
                assert isinstance(allowed, ast.Constant), where
                assert allowed.value is False, where
            assert not (of == "torch" and node.func.attr in LOADERS), f"{where}: torch.load"
            assert not (of in ("msgspec", "pickle") and node.func.attr == "Unpickler"), where


def test_connections_carry_bytes_never_objects() -> None:
    """`multiprocessing` connections pickle in `send` and `recv`; ours use the bytes methods."""
    asked: set[str] = set()
    for where, tree in sources():
        if not where.startswith("instrument/"):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                of = ast.unparse(node.func.value)
                if of.rpartition(".")[2].strip("_") == "connection":
                    asked.add(node.func.attr)
                    assert node.func.attr not in ("send", "recv"), f"{where}: {of}"
    assert {"send_bytes", "recv_bytes"} <= asked  # else this looks in the wrong place


def test_no_shell_is_started() -> None:
    for where, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                assert name not in ("os.system", "os.popen"), where
                shell = [word for word in node.keywords if word.arg == "shell"]
                assert not shell, where
