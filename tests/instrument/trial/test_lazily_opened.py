"""Files that a dataset opens at its first sample: not opened here for a loop that has workers."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

from loaderdoctor.settings import Settings
from tests.instrument.axis_cases import digests, plainly, taken
from tests.instrument.on_meta import META
from tests.instrument.opening import reason
from tests.instrument.trial_cases import moved

pytestmark = pytest.mark.usefixtures("nothing_is_left")
N = 64


class Archive(Dataset[tuple[Tensor, int]]):
    """Samples in an archive, opened where the first is read; and rows that look like those."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = torch.arange(N * 3, dtype=torch.float32).reshape(N, 3)
        self.file: Any = None
        with zipfile.ZipFile(path, "w") as made:
            for i in range(N):
                made.writestr(str(i), self.rows[i].numpy().tobytes())

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if self.file is None:
            self.file = zipfile.ZipFile(self.path)
        read = bytearray(self.file.read(str(index)))
        return torch.frombuffer(read, dtype=torch.float32), index


@pytest.mark.parametrize("axis", ["packed", "reuse_buffers"])
def test_a_first_batch_is_made_in_a_worker(axis: str, tmp_path: Path) -> None:
    inner = Archive(tmp_path / "a.zip")
    loader = DataLoader(Subset(inner, range(N)), batch_size=4, num_workers=4)
    own = plainly(loader, 16)
    more = {"device": META, "transfers": (moved("0", (4, 3), "float32"),)}
    settings = Settings(packed=True) if axis == "packed" else Settings(reuse_buffers=True)
    assert len(taken(loader, settings, 16, **(more if axis == "packed" else {}))) == 16
    assert inner.file is None
    assert plainly(loader, 16) == own  # forked after the trial: not from one file


@pytest.mark.parametrize("subset", [False, True])
def test_threads_and_rows_are_tried_on_a_copy(subset: bool, tmp_path: Path) -> None:
    inner = Archive(tmp_path / "a.zip")
    dataset: Dataset[Any] = Subset(inner, range(N)) if subset else inner
    loader = DataLoader(dataset, batch_size=4, num_workers=4)
    own = plainly(loader, 16)
    assert "opens files" in reason(loader, Settings(threads=2, num_workers=0))
    assert "opens files" in reason(loader, Settings(batched=True))
    assert inner.file is None
    assert plainly(loader, 16) == own


def test_a_sampler_and_a_generator_of_the_loops_are_not_asked(tmp_path: Path) -> None:
    draws = torch.Generator().manual_seed(3)
    loader = DataLoader(
        Archive(tmp_path / "a.zip"), 4, shuffle=True, num_workers=1, generator=draws
    )
    own = plainly(loader, 16)
    draws.manual_seed(3)
    assert digests(taken(loader, Settings(reuse_buffers=True), 16)) == own


def test_a_dataset_that_cannot_be_copied_is_refused() -> None:
    class Stuck(Dataset[int]):
        def __len__(self) -> int:
            return N

        def __getitem__(self, index: int) -> int:
            raise AssertionError("never asked")

        def __getstate__(self) -> Any:
            raise RuntimeError("not this one")

    loader = DataLoader(Stuck(), batch_size=4, num_workers=1)
    assert "can't be copied" in reason(loader, Settings(threads=2, num_workers=0))
