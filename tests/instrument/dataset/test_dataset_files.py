"""The storage axis: files cold at the start of each epoch, or read from a copy elsewhere."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from loaderdoctor.instrument.dataset import dataset_files
from loaderdoctor.instrument.system import memory
from loaderdoctor.settings import Settings
from tests.instrument.axis_cases import (
    InFolder,
    Listed,
    Pictures,
    digests,
    plainly,
    taken,
)
from tests.instrument.opening import opened, reason

pytestmark = pytest.mark.usefixtures("nothing_is_left")


def test_cold_files_are_out_of_memory_when_an_epoch_begins(tmp_path: Path) -> None:
    dataset = Listed(tmp_path)
    files = [Path(path) for path, _ in dataset.samples]
    assert memory.pages_in_memory(files).share == 1.0
    source = opened(DataLoader(dataset, batch_size=4), Settings(storage="cold"))
    assert memory.pages_in_memory(files[4:]).n_in_memory == 0
    source.drop(4)
    assert memory.pages_in_memory(files).share == 1.0
    source.drop(1)  # the next epoch has begun
    assert memory.pages_in_memory(files[4:]).n_in_memory == 0
    source.close()


def test_pages_that_stay_in_memory_are_counted_and_the_trial_withheld(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = memory.Cached(n_pages=40, n_in_memory=30)
    monkeypatch.setattr(memory, "drop_pages", lambda paths: stuck)
    loader = DataLoader(Listed(tmp_path))
    assert "30 of 40 pages" in reason(loader, Settings(storage="cold"))


def test_a_dataset_in_memory_has_no_storage() -> None:
    assert "in memory" in reason(DataLoader(Pictures(8)), Settings(storage="cold"))
    assert "in memory" in reason(DataLoader(Pictures(8)), Settings(storage="tmpfs"))


def test_a_text_too_long_to_be_a_path_is_none() -> None:
    dataset = Pictures(8)
    dataset.caption = "x" * 300  # type: ignore[attr-defined]
    assert "in memory" in reason(DataLoader(dataset), Settings(storage="cold"))


def copies(place: Path) -> list[Path]:
    return list(place.glob("loaderdoctor-*"))


def test_the_copy_is_read_instead_of_the_original_and_removed(tmp_path: Path) -> None:
    place = tmp_path / "other"
    place.mkdir()
    dataset = InFolder(tmp_path / "data")
    loader = DataLoader(dataset, batch_size=2)
    expected = plainly(loader, 4)
    settings = Settings(storage=str(place))
    source = opened(loader, settings)
    (copy,) = copies(place)
    assert len(list(copy.glob("*.npy"))) == 8
    for path in dataset.folder.glob("*.npy"):
        path.rename(path.with_suffix(".gone"))
    assert digests(source.next_batch() for _ in range(4)) == expected
    source.close()
    assert digests(taken(loader, settings, 4)) == expected  # copied once only
    assert copies(place) == [copy]
    assert dataset.folder == tmp_path / "data"
    del loader, dataset, source
    gc.collect()
    assert copies(place) == []


def test_no_room_and_no_folder_withhold_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = DataLoader(Listed(tmp_path))
    assert "no such folder" in reason(loader, Settings(storage=str(tmp_path / "nowhere")))
    monkeypatch.setattr(dataset_files, "available_bytes", lambda: 1000)
    before = copies(Path("/dev/shm"))
    assert "may be used" in reason(loader, Settings(storage="tmpfs"))
    assert copies(Path("/dev/shm")) == before


def test_a_copy_is_removed_even_if_the_run_is_killed(tmp_path: Path) -> None:
    place = tmp_path / "other"
    place.mkdir()
    script = (
        "import sys, os, signal\n"
        "from pathlib import Path\n"
        "from loaderdoctor.instrument.dataset.dataset_files import DatasetFiles\n"
        "from loaderdoctor.instrument.dataset.dataset_files import DiskCopy\n"
        "data = Path(sys.argv[1]) / 'x.bin'\n"
        "data.write_bytes(b'1' * 1000)\n"
        "copy = DiskCopy(DatasetFiles(data.parent, (data,)), Path(sys.argv[2]))\n"
        "assert copy.files[0].read_bytes() == data.read_bytes()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path), str(place)], check=False)
    assert done.returncode == -9
    deadline = time.monotonic() + 20
    while copies(place) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert copies(place) == []
