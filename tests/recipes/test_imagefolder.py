"""The JPEG files of `imagefolder` are real, made once, and never where they do not belong."""

from __future__ import annotations

import importlib.util
import subprocess
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from tests.recipes.running import RECIPES, THREE_STEPS, finish, losses, run, start

pytest.importorskip("torchvision")
Image = pytest.importorskip("PIL.Image")


@pytest.fixture
def cutouts() -> ModuleType:
    path = RECIPES / "imagefolder" / "cutouts.py"
    spec = importlib.util.spec_from_file_location("imagefolder_cutouts", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def files(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file below, hidden ones too: its inode and time of change."""
    return {
        str(path.relative_to(folder)): (path.stat().st_ino, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_the_files_are_jpegs_of_imagenets_size_in_ten_classes(
    cutouts: ModuleType, tmp_path: Path
) -> None:
    root = cutouts.make_cutouts(tmp_path / "new" / "place", 20)
    made = sorted(root.glob("*/*.jpg"))
    assert set(Counter(path.parent.name for path in made).values()) == {2}
    assert len({path.read_bytes() for path in made}) == len(made) == 20
    for path in made:
        with Image.open(path) as image:
            assert (image.format, image.size, image.mode) == ("JPEG", (500, 375), "RGB")
    mean_bytes = sum(path.stat().st_size for path in made) / len(made)
    assert 60_000 < mean_bytes < 140_000
    assert "creative commons" in (root / "ATTRIBUTION.txt").read_text()


def test_they_are_made_once_and_the_same_anywhere(cutouts: ModuleType, tmp_path: Path) -> None:
    root = cutouts.make_cutouts(tmp_path / "a", 10)
    before = files(tmp_path / "a")
    assert cutouts.make_cutouts(tmp_path / "a", 10) == root
    assert files(tmp_path / "a") == before
    other = cutouts.make_cutouts(tmp_path / "b", 10)
    for path in root.rglob("*.jpg"):
        assert path.read_bytes() == (other / path.relative_to(root)).read_bytes()


def test_a_run_that_dies_while_making_them_leaves_no_half_folder(
    cutouts: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill_the_disk(self: object, path: Path, **how: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Image.Image, "save", fill_the_disk)
        with pytest.raises(cutouts.DataError, match="No space left on device"):
            cutouts.make_cutouts(tmp_path, 10)
    assert not any(tmp_path.iterdir())
    assert len(list(cutouts.make_cutouts(tmp_path, 10).rglob("*.jpg"))) == 10


def test_a_folder_that_cannot_be_made_is_named(cutouts: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(cutouts.DataError, match="file"):
        cutouts.make_cutouts(tmp_path / "file", 10)


def test_cutouts_made_in_a_folder_are_not_taken_for_the_users_own(
    cutouts: ModuleType, tmp_path: Path
) -> None:
    cutouts.make_cutouts(tmp_path, 10)
    assert not cutouts.has_classes(tmp_path)
    assert not cutouts.has_classes(tmp_path / "missing")
    (tmp_path / "cats").mkdir()
    assert cutouts.has_classes(tmp_path)


@pytest.mark.slow
@pytest.mark.scripts
def test_two_runs_at_once_share_one_folder_and_a_third_makes_nothing(tmp_path: Path) -> None:
    def begin() -> subprocess.Popen[str]:
        return start("imagefolder", *THREE_STEPS["imagefolder"], cwd=tmp_path)

    both = [finish(process) for process in [begin(), begin()]]
    before = files(tmp_path)
    assert sum(name.endswith(".jpg") for name in before) == 12
    assert all(name.startswith("imagefolder-recipe-") for name in before)
    third = finish(begin())
    assert files(tmp_path) == before
    assert losses(both[0]) == losses(both[1]) == losses(third)


@pytest.mark.slow
@pytest.mark.scripts
def test_the_users_own_class_folders_are_used_as_they_are(
    cutouts: ModuleType, tmp_path: Path
) -> None:
    cutouts.make_cutouts(tmp_path, 10).rename(tmp_path / "mine")
    before = files(tmp_path)
    options = (*THREE_STEPS["imagefolder"], "--data-dir", str(tmp_path / "mine"))
    out = run("imagefolder", *options, cwd=tmp_path)
    assert "10 JPEG files, in" in out
    assert files(tmp_path) == before
