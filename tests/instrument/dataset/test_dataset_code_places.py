"""Where a dataset's data lies: by paths in its attributes, of datasets that it wraps too."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from torch.utils.data import Dataset, Subset

from loaderdoctor.instrument.dataset import dataset_code


class Files(Dataset[int]):
    def __init__(self, **attributes: object) -> None:
        vars(self).update(attributes)


@pytest.fixture(autouse=True)
def by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kind is the folder's own name here."""
    monkeypatch.setattr(dataset_code, "file_system", lambda path: Path(path).name)


def test_paths_are_found_as_they_stand_and_in_lists(tmp_path: Path) -> None:
    for name in ("nfs4", "tmpfs", "ext4"):
        (tmp_path / name).mkdir()
    dataset = Files(
        root=str(tmp_path / "nfs4"),
        samples=[(str(tmp_path / "tmpfs"), 3), (str(tmp_path / "ext4"), 4)],
        missing=str(tmp_path / "none"),
        words="a text / of words",
        empty=[],
    )
    assert dataset_code.file_systems(dataset) == ("nfs4", "tmpfs")
    assert dataset_code.file_systems(Subset(dataset, [0])) == ("nfs4", "tmpfs")
    assert dataset_code.file_systems(object()) == ()


def test_a_text_too_long_to_be_a_path_is_none() -> None:
    assert dataset_code.file_systems(Files(texts=["/imagine " + "x" * 300])) == ()


def test_only_loaded_clients_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", sys)
    monkeypatch.delitem(sys.modules, "gcsfs", raising=False)
    named = dataset_code.clients()
    assert "S3 (s3fs)" in named
    assert not any("gcsfs" in x for x in named)
