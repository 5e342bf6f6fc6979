"""In a copy of a folder its own modules are imported, also past an editable install."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# What setuptools writes for `pip install -e`: a finder with a mapping, or a `.pth` line.
FINDER = """
import sys
from importlib.machinery import PathFinder
from importlib.util import spec_from_file_location


class _EditableFinder:
    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        if fullname == "mine":
            return spec_from_file_location(fullname, {init!r})
        return None


sys.meta_path.append(_EditableFinder)
"""
ASK = """
import json, sys
from loaderdoctor.instrument.entry import CopyFirst
{before}
first = CopyFirst({root!r}, {copy!r})
first.install()
import mine, mine.data
print(json.dumps([mine.__file__, mine.data.__file__, mine.data.NAME, first.missed(), sys.path]))
"""


@pytest.fixture
def trees(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("root", "copy"):
        package = tmp_path / name / "src" / "mine"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "data.py").write_text(f"NAME = {name!r}\n")
    return tmp_path / "root", tmp_path / "copy"


def ask(root: Path, copy: Path, before: str, **environment: str) -> list[object]:
    here = str(Path(__file__).parents[3])
    code = ASK.format(before=before, root=str(root), copy=str(copy))
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.append({here!r})\n{code}"],
        capture_output=True,
        text=True,
        env={"PATH": "", **environment},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


@pytest.mark.parametrize("how", ["finder", "sys.path", "PYTHONPATH"])
def test_the_copy_is_imported_however_the_original_is_found(
    trees: tuple[Path, Path], how: str
) -> None:
    root, copy = trees
    before = {
        "finder": FINDER.format(init=str(root / "src" / "mine" / "__init__.py")),
        "sys.path": f"sys.path.append({str(root / 'src')!r})",
        "PYTHONPATH": "",
    }[how]
    environment = {"PYTHONPATH": str(root / "src")} if how == "PYTHONPATH" else {}
    package, module, name, missed, path = ask(root, copy, before, **environment)
    assert package == str(copy / "src" / "mine" / "__init__.py")
    assert module == str(copy / "src" / "mine" / "data.py")
    assert name == "copy"
    assert missed == []
    assert isinstance(path, list)
    assert str(copy / "src") in path  # where spawned workers look


def test_what_the_copy_has_not_stays_where_it_is(trees: tuple[Path, Path]) -> None:
    root, copy = trees
    (root / "venv").mkdir()
    (root / "venv" / "other.py").write_text("")  # left out of copies
    before = f"sys.path += [{str(root / 'src')!r}, {str(root / 'venv')!r}]"
    found = ask(root, copy, f"{before}\nimport other")
    assert str(root / "venv") in found[4]  # type: ignore[operator]
    assert found[3] == []


def test_modules_in_a_shared_folder_are_not_named(trees: tuple[Path, Path]) -> None:
    root, copy = trees
    shutil.rmtree(copy / "src")
    (copy / "src").symlink_to(root / "src")
    found = ask(root, copy, f"sys.path.append({str(root / 'src')!r})\nimport mine.data")
    assert found[2] == "root"
    assert found[3] == []


def test_a_module_that_was_loaded_from_the_original_is_named(trees: tuple[Path, Path]) -> None:
    root, copy = trees
    found = ask(root, copy, f"sys.path.append({str(root / 'src')!r})\nimport mine.data")
    assert found[3] == ["mine", "mine.data"]
