"""Trees as they come: a real diagnosis, its advice written, and nothing else in them changed."""

from __future__ import annotations

import ast
import difflib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.python_path import python_path

pytestmark = [pytest.mark.slow, pytest.mark.scripts]

DATA = """import time
import torch
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __len__(self):
        return 2000

    def __getitem__(self, i):
        time.sleep(0.004)  # a read from far away
        return torch.full((8,), float(i)), i % 3
"""
LOOP = """
model = torch.nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(1000):
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""
ODD = (
    DATA.replace("    ", "\t")
    + """

loader = DataLoader(\t# the one loader
\tSlow() ,
\tbatch_size = 8,   # small; "quoted", (bracketed
\t shuffle=True
\t#num_workers=8,
)  ;  n_epochs = 3
"""
    + LOOP.replace("    ", "\t")
    + "\x0c\n# the end, without a line end"
)
KWARGS = DATA + "\noptions = {'batch_size': 8}\nloader = DataLoader(Slow(), **options)\n" + LOOP
TWICE = (
    DATA
    + """
def make(split="train", **kwargs):
    kwargs.setdefault('batch_size', 8)
    return DataLoader(Slow(), shuffle=split == "train", **kwargs)

loader = make()
held_out = make("test", batch_size=16)
"""
    + LOOP
)
CALLED = (
    "from mine.loading import build\nimport torch\n\nloader = build(8)\n" + LOOP,
    DATA + "\n\ndef build(size):\n    return DataLoader(Slow(), batch_size=size)\n",
)


@dataclass(frozen=True)
class Tree:
    """Files by name, which of them the advice is written into, and lines that it may touch."""

    files: dict[str, str]
    written: str | None  # None: nothing is
    touched: str = "DataLoader("
    outside: bool = False  # `mine` lies in site-packages


TREES = {
    "tabs, comments, no last line end": Tree({"train.py": ODD}, "train.py"),
    "CRLF": Tree(
        {"train.py": (DATA + "\nloader = DataLoader(Slow(), 8)\n" + LOOP).replace("\n", "\r\n")},
        "train.py",
    ),
    "kwargs": Tree({"train.py": KWARGS}, "train.py"),
    "kwargs of a function": Tree({"train.py": TWICE}, "train.py"),
    "a called module": Tree(
        {"train.py": CALLED[0], "mine/__init__.py": "", "mine/loading.py": CALLED[1]},
        "mine/loading.py",
    ),
    "an installed package": Tree(
        {"train.py": CALLED[0], "mine/__init__.py": "", "mine/loading.py": CALLED[1]},
        None,
        outside=True,
    ),
}


def ours(folder: Path, *words: str, path: Path) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ, PYTHONPATH=python_path(path))
    return subprocess.run(
        [sys.executable, "-m", "loaderdoctor", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def added(diff: str) -> str:
    return "".join(x for x in diff.splitlines() if x[:1] == "+").replace("#num_workers", "")


@pytest.mark.parametrize("name", TREES)
def test_advice_is_written_where_it_belongs_and_nowhere_else(name: str, tmp_path: Path) -> None:
    tree = TREES[name]
    project, installed = tmp_path / "project", tmp_path / "lib" / "site-packages"
    for file, text in tree.files.items():
        at = (installed if tree.outside and "/" in file else project) / file
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_bytes(text.encode())
    before = contents(tmp_path)
    done = ours(
        project, "diagnose", "--budget", "15", "--output", "run", "train.py", path=installed
    )
    assert (project / "run" / "report.json").exists(), done.stderr[-2000:]
    report = json.loads((project / "run" / "report.json").read_text())
    # Samples kept in memory may be much faster, and come first: here it is the workers that count.
    diffs = {n: ours(project, "apply", "run", n, path=installed).stdout for n in ("1", "2", "3")}
    number = next((n for n, diff in diffs.items() if "num_workers" in added(diff)), "1")
    applied = ours(project, "apply", "--write", "run", number, path=installed)
    after = contents(tmp_path)
    changed = {file for file in before if after[file] != before[file]}
    if tree.written is None:
        assert applied.returncode == 2, applied.stdout
        assert "belongs to an installed package" in applied.stderr
        assert not changed
        return
    assert applied.returncode == 0, (applied.stderr, report["recommendations"])
    assert changed == {f"project/{tree.written}"}
    (file,) = changed
    compile(after[file], file, "exec")
    assert b"num_workers" in after[file].replace(b"#num_workers", b"")
    lines = [x.decode().splitlines(keepends=True) for x in (before[file], after[file])]
    diff = [x for x in difflib.ndiff(lines[0], lines[1]) if x[:1] in "+-"]
    assert len(diff) <= 4, "".join(diff)
    ends = {line[-2:] == "\r\n" for line in lines[1][:-1]}
    assert ends == {name == "CRLF"}
    assert len(ast.parse(after[file]).body) - len(ast.parse(before[file]).body) in (0, 1)
    undone = ours(project, "apply", "--undo", "run", path=installed)
    assert undone.returncode == 0, undone.stderr
    assert contents(tmp_path) == before


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*.py")
        if "run" not in file.parts
    }
