"""`device_decode`: files travel as they are; the batch is the loader's own but for a few levels."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Subset
from torchvision import datasets, transforms
from torchvision.transforms import v2

from loaderdoctor.instrument.dataset import states
from loaderdoctor.instrument.dataset.cached import MAX_MEAN_DIFFERENCE
from loaderdoctor.instrument.trial.open_trial import measure_boundary
from loaderdoctor.settings import Settings
from tests.instrument.opening import opened, reason

pytestmark = pytest.mark.usefixtures("nothing_is_left")
ON_CPU: dict[str, Any] = {"device": torch.device("cpu")}  # as if it were an accelerator
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
N = 12
LAST = (transforms.ToTensor(), transforms.Normalize(MEAN, STD))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JPEG files of smooth pictures, of several sizes, in two classes."""
    root = tmp_path_factory.mktemp("photos")
    draw = np.random.default_rng(0)
    for i in range(N):
        path = root / f"class{i % 2}" / f"{i:02}.jpg"
        path.parent.mkdir(exist_ok=True)
        small = Image.fromarray(draw.integers(0, 256, (5, 7, 3), dtype=np.uint8))
        small.resize((60 + i, 50 + 2 * i), Image.Resampling.BICUBIC).save(path, quality=90)
    return root


def loader_of(folder: Path, *first: Any, **given: Any) -> DataLoader[Any]:
    dataset = datasets.ImageFolder(str(folder), transforms.Compose([*first, *LAST]))
    return DataLoader(dataset, **{"batch_size": 4, **given})


def test_transforms_of_the_second_set_and_those_that_begin_with_tensors(folder: Path) -> None:
    for steps in (
        [transforms.PILToTensor(), transforms.Resize((16, 16)), v2.ToDtype(torch.float32)],
        [v2.ToImage(), v2.RandomCrop(16), v2.ToDtype(torch.float32, scale=True)],
    ):
        dataset = datasets.ImageFolder(str(folder), v2.Compose(steps))
        loader = DataLoader(dataset, batch_size=4)
        source = opened(loader, Settings(device_decode=True), **ON_CPU)
        ours, own = source.next_batch()[0], next(iter(loader))[0]
        assert (ours.shape, ours.dtype) == (own.shape, own.dtype)
        source.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_the_loaders_within_a_few_levels(folder: Path, workers: int) -> None:
    loader = loader_of(folder, transforms.Resize((32, 32)), num_workers=workers)
    own = list(loader)
    said: list[str] = []
    settings = Settings(device_decode=True, num_workers=2)
    source = opened(loader, settings, note=lambda kind, _: said.append(kind), **ON_CPU)
    for _ in range(2):
        for pictures, labels in own:
            ours, named = source.next_batch()
            assert torch.equal(named, labels)
            assert (ours.shape, ours.dtype) == (pictures.shape, pictures.dtype)
            range_ = (pictures.max() - pictures.min()).item()
            assert (ours - pictures).abs().mean().item() / range_ < MAX_MEAN_DIFFERENCE
    assert source.startup_ns is not None and measure_boundary(source) >= 0
    source.close()
    assert said == ["device-decode-differs"]


def test_random_crops_are_compared_by_the_same_draws_and_nothing_is_drawn(folder: Path) -> None:
    crops = (transforms.RandomResizedCrop(24), transforms.RandomHorizontalFlip())
    loader = loader_of(folder, *crops, num_workers=1)
    before = states()
    settings = Settings(device_decode=True)
    source = opened(loader, settings, **{**ON_CPU, "device": torch.device("cpu")})
    own_iterator_draws = states()
    source.close()
    assert own_iterator_draws[:2] == before[:2]  # torch's: the seed of its workers
    assert loader.dataset.transform.transforms[0] is crops[0]  # type: ignore[attr-defined]


def test_a_part_of_the_dataset_and_labels_that_are_changed(folder: Path) -> None:
    whole = datasets.ImageFolder(
        str(folder),
        transforms.Compose([transforms.Resize((16, 16)), transforms.ToTensor()]),
        target_transform=lambda label: 10 * label,
    )
    loader: DataLoader[Any] = DataLoader(Subset(whole, [11, 0, 5]), batch_size=3)
    source = opened(loader, Settings(device_decode=True), **ON_CPU)
    pictures, labels = source.next_batch()
    source.close()
    assert labels.tolist() == [10, 0, 0] and pictures.shape == (3, 3, 16, 16)
    assert (pictures - next(iter(loader))[0]).abs().mean() < 0.02


def test_labels_of_several_numbers_are_compared_too(folder: Path) -> None:
    whole = datasets.ImageFolder(
        str(folder),
        transforms.Compose([transforms.Resize((16, 16)), transforms.ToTensor()]),
        target_transform=lambda label: torch.eye(3)[label],
    )
    source = opened(DataLoader(whole, batch_size=3), Settings(device_decode=True), **ON_CPU)
    assert torch.equal(source.next_batch()[1], torch.eye(3)[[0, 0, 0]])
    source.close()


class Inverting:
    """A transform that takes pictures of PIL only."""

    def __call__(self, picture: Any) -> Any:
        return picture.point(lambda value: 255 - value)


class Drawn:
    """A transform that does another thing to a tensor."""

    def __call__(self, picture: Any) -> Any:
        return picture if isinstance(picture, Image.Image) else 1 - picture / 255


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (Inverting(), "can't be decoded and transformed there: AttributeError"),
        (Drawn(), "of their range on average"),
        (transforms.Grayscale(), None),
    ],
)
def test_what_does_not_do_the_same_to_tensors_is_refused(
    folder: Path, first: Any, why: str | None
) -> None:
    steps = (transforms.Resize((16, 16)), first)
    loader = loader_of(folder, *steps)
    loader.dataset.transform.transforms[-1:] = []  # type: ignore[attr-defined]
    if why is None:
        opened(loader, Settings(device_decode=True), **ON_CPU).close()
    else:
        assert why in reason(loader, Settings(device_decode=True), **ON_CPU)


def test_other_datasets_files_and_ways_are_refused(folder: Path, tmp_path: Path) -> None:
    decode = Settings(device_decode=True)
    assert "needs an accelerator" in reason(loader_of(folder), decode)
    own = loader_of(folder, collate_fn=lambda samples: samples)
    assert "of its own" in reason(own, decode, **ON_CPU)
    plain: DataLoader[Any] = DataLoader([torch.ones(3)] * 8, batch_size=4)  # type: ignore[arg-type]
    assert "list is no ImageFolder" in reason(plain, decode, **ON_CPU)
    (tmp_path / "a").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "a" / "x.png")
    assert "no JPEG files" in reason(loader_of(tmp_path), decode, **ON_CPU)
    for i in range(20):  # eight files are compared, and this one is none of them
        Image.new("RGB", (8, 8)).save(tmp_path / "a" / f"w{i:02}.{'webp' if i == 1 else 'jpg'}")
    (tmp_path / "a" / "x.png").unlink()
    assert "not all of them" in reason(loader_of(tmp_path), decode, **ON_CPU)
    none = DataLoader(datasets.ImageFolder(str(folder)), batch_size=4)
    assert "no Compose" in reason(none, decode, **ON_CPU)


def test_seeds_of_the_comparison_are_put_back(folder: Path) -> None:
    random.seed(5)
    expected = random.random()
    random.seed(5)
    loader = loader_of(folder, transforms.RandomCrop(16))
    opened(loader, Settings(device_decode=True), **ON_CPU).close()
    assert random.random() == expected
