"""Trials of a loop that has workers: nothing that its next workers inherit is changed.

No file stays open here, nothing is kept in its dataset, and nothing is drawn of its generators.
"""

from __future__ import annotations

import gc
import random
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset
from torchvision import transforms

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.dataset import states
from loaderdoctor.settings import Settings
from tests.instrument.axis_cases import digests, plainly, taken
from tests.instrument.on_meta import META
from tests.instrument.opening import opened, reason
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


# Trials that make samples in the training process, to look at them or by what they are.
HERE = (
    Settings(cache=True),
    Settings(cache=True, batched=True, num_workers=0),
    Settings(fields="0"),
    Settings(uint8=True),
    Settings(augment="off"),
    Settings(storage="cold"),
    Settings(storage="tmpfs"),
    Settings(num_workers=0),
    Settings(num_workers=0, fields="0"),
    Settings(num_workers=0, background="host"),
)


class Pixels(Dataset[Any]):
    """Pictures in a file that the first sample opens; `made` are kept, each drew something."""

    def __init__(self, path: Path, *, draws: bool) -> None:
        self.path, self.draws = str(path), draws
        self.made: list[int] = []
        self.file: Any = None
        pixels = np.random.default_rng(0).integers(0, 256, (N, 8, 8, 3), dtype=np.uint8)
        path.write_bytes(pixels.tobytes())
        self.transform = transforms.Compose([_Doing(), transforms.ToTensor()])

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        if self.file is None:
            self.file = open(self.path, "rb")  # noqa: SIM115, PTH123 - as datasets do
        if self.draws:
            random.random(), np.random.rand(), torch.rand(1)  # noqa: NPY002 - the global ones
        self.made.append(index)
        self.file.seek(index * 192)
        picture = np.frombuffer(self.file.read(192), dtype=np.uint8).reshape(8, 8, 3)
        return self.transform(picture), index


class _Doing:
    """A transform that may be left out."""

    def __call__(self, picture: Any) -> Any:
        return picture


@pytest.mark.parametrize("settings", HERE, ids=lambda s: str(s.changed()))
def test_nothing_that_the_next_workers_inherit_is_changed(
    settings: Settings, tmp_path: Path
) -> None:
    inner = Pixels(tmp_path / "pixels", draws=not settings.cache)
    generator = torch.Generator().manual_seed(0)
    loader = DataLoader(Subset(inner, range(N)), 4, num_workers=2, generator=generator)
    own, n_open = plainly(loader, 16), _n_open()
    before, answered = states(), []
    try:
        source = opened(loader, settings)
        answered.append(digests([source.next_batch()]))
        # What makes its batches here draws here: no longer while it is looked at.
        drawn = states()
        source.close()
        del source
    except TrialRefused as refused:  # no page of a file in memory can be dropped here
        if "stayed in memory" not in refused.reason:
            raise
        drawn = states()
    if settings.num_workers != 0:
        assert drawn == before
    assert answered == [own[:1]] or settings.fields or settings.uint8 or not answered
    assert inner.made == [] and inner.file is None
    assert plainly(loader, 16) == own
    gc.collect()
    assert _n_open() <= n_open


def _n_open() -> int:
    return sum("pixels" in one.path for one in psutil.Process().open_files())


_KEPT: dict[str, Any] = {}


class InModule(Archive):
    """Its file is kept by the module, where no copy of the dataset reaches it."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.file = _KEPT.setdefault("file", self.file or zipfile.ZipFile(self.path))
        sample = super().__getitem__(index)
        self.file = None
        return sample


@pytest.mark.parametrize(
    "settings", [Settings(cache=True), Settings(num_workers=0)], ids=["cache", "no workers"]
)
def test_what_a_module_would_keep_open_is_seen_in_a_worker(
    settings: Settings, tmp_path: Path
) -> None:
    loader = DataLoader(InModule(tmp_path / "a.zip"), batch_size=4, num_workers=2)
    assert "a.zip open outside of the dataset" in reason(loader, settings)
    assert not _KEPT
    assert plainly(loader, 4) == plainly(loader, 4)


def test_a_loop_without_workers_makes_its_samples_itself(tmp_path: Path) -> None:
    inner = Pixels(tmp_path / "pixels", draws=True)
    loader = DataLoader(inner, batch_size=4)
    before = states()
    taken(loader, Settings(uint8=True), 2)
    assert inner.made and inner.file is not None
    inner.file.close()
    assert states() != before  # its batches; the looks at it drew nothing


class Seen(Dataset[int]):
    """Prepared by what each worker calls, which looks for it in its worker's info."""

    ready = False

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> int:
        assert self.ready
        return index


def prepare(worker_id: int) -> None:
    """As scripts seed and open in their workers."""
    info: Any = torch.utils.data.get_worker_info()
    if not isinstance(info.dataset, Seen):
        raise TypeError(info.dataset)
    info.dataset.ready = True


def unprepared(worker_id: int) -> None:
    """As where each worker's part is for so many workers."""
    raise ValueError("made for 4 workers")


def test_what_could_not_be_asked_in_a_worker_is_refused_in_words() -> None:
    loader = DataLoader(Seen(), batch_size=4, num_workers=1, worker_init_fn=unprepared)
    found = reason(loader, Settings(cache=True))
    assert "could not be asked in a worker: ValueError" in found and "made for 4" in found


def test_workers_are_prepared_before_they_are_asked() -> None:
    loader = DataLoader(Seen(), batch_size=4, num_workers=1, worker_init_fn=prepare)
    with pytest.raises(AssertionError):  # of this process, where nothing prepares it
        opened(loader, Settings(cache=True))
