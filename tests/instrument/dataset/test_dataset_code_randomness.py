"""Which functions of a dataset's code draw at random, without a sample being made."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset, random_split

from loaderdoctor.instrument.dataset.dataset_code import randomness_of_dataset


def shifted(x: np.ndarray) -> np.ndarray:
    return np.roll(x, np.random.randint(3))  # noqa: NPY002  # as users write it


class Base(Dataset[Any]):
    def __init__(self, transform: Any = None) -> None:
        self.x = torch.randn(8, 3).numpy()  # drawn once, whoever keeps the samples
        self.transform = transform
        self.rng = np.random.default_rng(0)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return self.x[index] if self.transform is None else self.transform(self.x[index])


class Augmented(Base):
    def augment(self, x: Any) -> Any:
        return x + 0.1 * self.rng.standard_normal(3)

    def __getitem__(self, index: int) -> Any:
        return self.augment(self.x[index])


class ByHelper(Base):
    def __getitem__(self, index: int) -> Any:
        return shifted(self.x[index])


class Decorated(Base):
    @torch.no_grad()
    def __getitem__(self, index: int) -> Any:
        return torch.randn(3)


class Flip:
    def __call__(self, x: Any) -> Any:
        return x[::-1] if random.random() < 0.5 else x


class Seeded(Base):
    def __getitem__(self, index: int) -> Any:
        return torch.randn(3, generator=torch.Generator().manual_seed(index))


class Chosen(Base):
    def choice(self, index: int) -> Any:
        return self.x[index]

    def __getitem__(self, index: int) -> Any:
        return self.choice(index)


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (Base(), ()),
        (Augmented(), ("Augmented.augment",)),
        (ByHelper(), ("shifted",)),
        (Decorated(), ("Decorated.__getitem__",)),
        (Base(transform=Flip()), ("Flip.__call__",)),
        (random_split(Augmented(), [4, 4])[0], ("Augmented.augment",)),
        (Seeded(), ()),
        (Chosen(), ()),
        (TensorDataset(torch.ones(4)), ()),
        ([1, 2, 3], ()),
    ],
)
def test_what_draws_is_named_and_what_only_looks_like_it_is_not(
    dataset: object, expected: tuple[str, ...]
) -> None:
    before = torch.get_rng_state(), random.getstate()
    assert randomness_of_dataset(dataset) == expected
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[1]
