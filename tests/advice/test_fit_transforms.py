"""A pipeline of torchvision's that begins with what is drawn: pictures are kept, and drawn anew."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
from PIL import Image

from loaderdoctor.advice.fit_transforms import cached_before
from loaderdoctor.instrument.wire.records import TensorRecord
from tests.advice.printed import applied, blocks, facts_of

PHOTOS = """\
class Photos(Dataset):
    def __init__(self, folder, transform):
        self.files, self.transform = sorted(Path(folder).glob("*/*.png")), transform

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        return self.transform(Image.open(self.files[index])), index


"""
SCRIPT = """\
from pathlib import Path

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import datasets, transforms
from torchvision.transforms import v2

{defined}steps = [{library}.RandomResizedCrop(8), {library}.ToTensor()]
train_set = {dataset}(FOLDER, transform={library}.Compose(steps))
train_loader = DataLoader(train_set, batch_size=8)  # train loader
seen, n_open = [], open_files()
for epoch in range(2):
    for x, y in train_loader:  # train loop
        seen.append((x, y))
"""
N = 16


@pytest.mark.parametrize("library", ["transforms", "v2"])
@pytest.mark.parametrize("dataset", ["datasets.ImageFolder", "Photos"])
@pytest.mark.filterwarnings("ignore:.*ToTensor", "ignore:.*")
def test_pictures_are_kept_where_the_first_transform_is_drawn(
    library: str, dataset: str, tmp_path: Path
) -> None:
    chance = numpy.random.default_rng(0)
    for i in range(N):
        file = tmp_path / f"class{i % 2}" / f"{i}.png"
        file.parent.mkdir(exist_ok=True)
        pixels = chance.integers(0, 255, (12, 12, 3), dtype="uint8")
        Image.fromarray(pixels).save(file)
    own = PHOTOS if dataset == "Photos" else ""
    text = SCRIPT.format(defined=own, library=library, dataset=dataset)
    batch = (
        TensorRecord(path="[0]", shape=(8, 3, 8, 8), dtype="float32", n_bytes=6144),
        TensorRecord(path="[1]", shape=(8,), dtype="int64", n_bytes=64),
    )
    name = dataset.rpartition(".")[2]
    facts = facts_of(Path("train.py"), text=text, loader={"dataset": name, "batch": batch})
    code = cached_before(facts, "RandomResizedCrop")
    assert code is not None
    scope: dict[str, Any] = {"__name__": "__main__", "FOLDER": str(tmp_path)}
    scope["open_files"], before = open_files, open_files()
    exec(compile(applied(text, blocks(code)), "train.py", "exec"), scope)
    assert scope["n_open"] == before  # all are read, or a large dataset has too many open files
    (first, y), _, (again, same_y), _ = scope["seen"]
    assert first.shape == (8, 3, 8, 8) and (y == same_y).all()
    assert not (first == again).all()
    held = [image for image, _ in scope["train_loader"].dataset.samples]
    assert len(held) == N and all(image.size == (12, 12) for image in held)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir())) if sys.platform == "linux" else 0
