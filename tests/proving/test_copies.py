"""The copy has what a script needs, and nothing written there reaches the user's files."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

import pytest

from loaderdoctor.errors import UsageError
from loaderdoctor.proving import copies
from loaderdoctor.proving.copies import copied, root_of


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    (root / "data").mkdir()
    (root / ".git").mkdir()
    (root / ".git" / "HEAD").write_text("ref")
    (root / "src" / "train.py").write_text("print(1)\n")
    (root / "data" / "samples.bin").write_bytes(b"x" * 1000)
    (root / "latest.bin").symlink_to(root / "data" / "samples.bin")
    return root


def test_the_root_is_the_repository_that_holds_script_and_working_folder(project: Path) -> None:
    script = project / "src" / "train.py"
    assert root_of(script, project) == project
    assert root_of(script, project / "data") == project
    elsewhere = project.parent / "elsewhere"
    elsewhere.mkdir()
    assert root_of(script, elsewhere) == project / "src"
    (project / ".git" / "HEAD").unlink()
    (project / ".git").rmdir()
    assert root_of(script, project) == project  # the working folder, which holds the script


def test_what_is_written_in_the_copy_stays_there(project: Path, tmp_path: Path) -> None:
    tree = copied(project, tmp_path / "copy")
    here = tree.here(project / "src" / "train.py")
    assert here.read_text() == "print(1)\n"
    assert not (tree.copy / ".git").exists()
    here.write_text("print(2)\n")
    (tree.copy / "latest.bin").write_bytes(b"written through a link")
    assert (project / "src" / "train.py").read_text() == "print(1)\n"
    assert (project / "data" / "samples.bin").read_bytes() == b"x" * 1000


def test_a_shared_folder_is_the_users_own(project: Path, tmp_path: Path) -> None:
    tree = copied(project, tmp_path / "copy", shared=[project / "data"])
    assert (tree.copy / "data").resolve() == project / "data"


def test_a_change_is_never_written_into_the_users_own(project: Path, tmp_path: Path) -> None:
    data, outside = project / "data" / "samples.bin", tmp_path / "outside.py"
    outside.write_text("the user's")
    (project / "linked.py").symlink_to(outside)
    (project / "runs").mkdir()
    (project / "runs" / "train.py").write_text("left out")
    tree = copied(project, tmp_path / "copy", shared=[project / "data"])
    for path, words in (
        (data, "the change is in a shared folder"),
        (project / "latest.bin", "the change is in a shared folder"),
        (outside, "the change is outside"),
        (project / "linked.py", "the change is outside"),
        (project / "runs" / "train.py", "left out of the copy"),
    ):
        with pytest.raises(UsageError, match=words):
            tree.write(path, b"changed")
    assert data.read_bytes() == b"x" * 1000
    assert outside.read_text() == "the user's"
    script = project / "src" / "train.py"
    tree.write(script, b"changed")
    assert tree.here(script).read_bytes() == b"changed"
    assert script.read_text() == "print(1)\n"


def test_links_that_lead_out_are_followed_so_that_nothing_is_written_through_them(
    project: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "last.pt").write_text("the user's")
    (project / "checkpoints").symlink_to("../outside")  # relative: dangling in a copy elsewhere
    (project / "best.pt").symlink_to(outside / "last.pt")
    (project / "up").symlink_to("..")
    (project / "gone").symlink_to("nowhere")
    tree = copied(project, tmp_path / "deep" / "er" / "copy")
    for name in ("checkpoints/last.pt", "best.pt"):
        assert (tree.copy / name).read_text() == "the user's"
        (tree.copy / name).write_text("overwritten")
    assert (outside / "last.pt").read_text() == "the user's"
    shared = copied(project, tmp_path / "other", shared=[project / "checkpoints"])
    assert (shared.copy / "checkpoints" / "last.pt").samefile(outside / "last.pt")


def test_what_lies_behind_a_link_counts(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "large.bin").write_bytes(b"x" * 2000)
    (project / "store").symlink_to(outside)
    monkeypatch.setattr(copies, "MAX_COPY_BYTES", 1800)
    with pytest.raises(UsageError, match=r"--share .*store "):
        copied(project, tmp_path / "copy")
    copied(project, tmp_path / "copy", shared=[project / "store"])


def test_too_much_to_copy_names_the_folder_and_what_to_do(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "MAX_COPY_BYTES", 500)
    with pytest.raises(UsageError, match=r"--share .*data "):
        copied(project, tmp_path / "copy")
    copied(project, tmp_path / "copy", shared=[project / "data"])


def test_what_is_shared_is_named_from_the_working_folder_and_lies_within(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    (project / "data" / "more").mkdir()
    tree = copied(project, tmp_path / "copy", shared=[Path("data"), Path("data/more")])
    assert (tree.copy / "data").is_symlink()
    assert sorted(x.name for x in (project / "data").iterdir()) == ["more", "samples.bin"]
    for nowhere in (Path("nowhere"), tmp_path):
        with pytest.raises(UsageError, match="--share"):
            copied(project, tmp_path / "other", shared=[nowhere])


def test_sockets_and_pipes_are_left_out(project: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    for folder in (project, outside):
        os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as one:
        here = Path.cwd()
        os.chdir(project)  # a socket's path may have a hundred bytes
        one.bind("socket")
        os.chdir(here)
        (project / "linked").symlink_to(outside)
        (project / "pipe-outside").symlink_to(outside / "pipe")
        tree = copied(project, tmp_path / "copy")
    assert sorted(p.name for p in tree.copy.iterdir()) == ["data", "latest.bin", "linked", "src"]
    assert list((tree.copy / "linked").iterdir()) == []


def test_what_cannot_be_read_is_named(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(source: str, to: str, **how: bool) -> None:
        raise PermissionError(13, "Permission denied", source)

    monkeypatch.setattr(shutil.copytree, "__defaults__", (False, None, refused, False, False))
    with pytest.raises(UsageError, match=r"can't be copied .*Permission denied"):
        copied(project, tmp_path / "copy")
