"""The axes `augment` and `uint8`: a dataset's transforms left out, or moved to the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchvision import transforms

from loaderdoctor.instrument.dataset.transforms import augmentations
from loaderdoctor.settings import Settings
from tests.instrument.axis_cases import (
    MEAN,
    STD,
    WORKERS,
    Pictures,
    digests,
    plainly,
    taken,
)
from tests.instrument.opening import opened, reason
from tests.instrument.trial_cases import Squares

pytestmark = pytest.mark.usefixtures("nothing_is_left")


def augmented(n: int = 16) -> Pictures:
    return Pictures(
        n,
        transforms.RandomCrop(16, padding=2),
        transforms.RandomHorizontalFlip(1.0),
        transforms.ColorJitter(0.4),
    )


def test_augmentation_off_leaves_conversion_and_shape() -> None:
    dataset = augmented()
    assert augmentations(dataset) == ("RandomCrop", "RandomHorizontalFlip", "ColorJitter")
    plain = Pictures(16, transforms.CenterCrop(16))
    expected = plainly(DataLoader(plain, batch_size=4), 4)
    for workers in (Settings(), Settings(num_workers=2)):
        loader = DataLoader(dataset, batch_size=4)
        assert digests(taken(loader, Settings(augment="off").over(workers), 4)) == expected
    assert len(dataset.transform.transforms) == 5


def test_one_transform_is_left_out_by_name() -> None:
    dataset = Pictures(16, transforms.RandomHorizontalFlip(1.0), transforms.RandomVerticalFlip(1.0))
    loader = DataLoader(dataset, batch_size=4)
    kept = Pictures(16, transforms.RandomHorizontalFlip(1.0))
    expected = plainly(DataLoader(kept, batch_size=4), 4)
    settings = Settings(augment="no-RandomVerticalFlip")
    assert digests(taken(loader, settings, 4)) == expected


def test_what_cannot_be_left_out_says_why() -> None:
    loader = DataLoader(augmented(), batch_size=4)
    assert "no Rotate among" in reason(loader, Settings(augment="no-Rotate"))
    assert "can't be left out" in reason(loader, Settings(augment="no-ToTensor"))
    assert "no Compose" in reason(DataLoader(Squares()), Settings(augment="off"))


@pytest.mark.parametrize("workers", WORKERS, ids=Settings.label)
@pytest.mark.parametrize("normalise", [True, False])
def test_bytes_become_the_same_floats(normalise: bool, workers: Settings) -> None:
    loader = DataLoader(Pictures(16, normalise=normalise), batch_size=4)
    batches = taken(loader, Settings(uint8=True).over(workers), 4)
    for (images, ids), (expected, own_ids) in zip(batches, loader, strict=True):
        assert images.dtype == expected.dtype
        assert torch.equal(ids, own_ids)
        assert (images - expected).abs().max() <= 1e-6


def test_workers_send_a_quarter_of_the_bytes() -> None:
    source: Any = opened(DataLoader(Pictures(16), batch_size=4), Settings(uint8=True))
    images, _ = source.inner.next_batch()
    assert images.dtype == torch.uint8
    assert source.next_batch()[0].dtype == torch.float32
    source.close()


def test_the_second_generation_of_transforms_is_understood() -> None:
    from torchvision.transforms import v2

    dataset = Pictures(16)
    dataset.transform = v2.Compose(
        [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    )
    loader = DataLoader(dataset, batch_size=4)
    for (images, _), (expected, _) in zip(
        taken(loader, Settings(uint8=True), 4), loader, strict=True
    ):
        assert (images - expected).abs().max() <= 1e-6


def test_floats_that_are_not_made_last_stay_floats() -> None:
    dataset = Pictures(16)
    dataset.transform.transforms.append(transforms.RandomErasing())
    assert "ends in ToTensor" in reason(DataLoader(dataset), Settings(uint8=True))
    assert "ends in ToTensor" in reason(DataLoader(Squares()), Settings(uint8=True))
