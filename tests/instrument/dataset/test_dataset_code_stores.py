"""What samples are made from is read off a dataset's attributes, without making a sample."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, Subset, TensorDataset
from torchvision import transforms

from loaderdoctor.instrument.dataset.dataset_code import normalisation, stores
from loaderdoctor.instrument.wire.records import Normalisation, StoreRecord


class Holding(Dataset[Any]):
    def __init__(self, n: int = 6, **attributes: Any) -> None:
        self.n = n
        self.__dict__.update(attributes)

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("a sample was made")


def test_an_array_with_an_entry_for_each_sample_is_a_store() -> None:
    pixels = np.zeros((6, 4, 4, 3), dtype=np.uint8)
    found = stores(Holding(data=pixels, classes=["a", "b"], targets=[0, 1, 0, 1, 0, 1]))
    assert found == (
        StoreRecord(path="data", kind="array", shape=(6, 4, 4, 3), dtype="uint8", n_bytes=288),
        StoreRecord(path="targets", kind="list", entry="int"),
    )


def test_entries_of_lists_are_told_by_the_first() -> None:
    found = stores(Holding(rows=[[1.0, 2.0]] * 6, files=[("a.jpg", 1)] * 6, ragged=[[]] * 6))
    assert [s.entry for s in found] == ["list of 2 float", "tuple of str, int", "list"]


def test_a_subset_is_looked_through_to_the_whole() -> None:
    inner = Holding(data=torch.zeros(6, 28, 28, dtype=torch.uint8))
    found = stores(Subset(inner, [0, 1]))
    assert [(s.path, s.kind, s.shape) for s in found if s.path != "indices"] == [
        ("dataset.data", "tensor", (6, 28, 28))
    ]


def test_what_has_no_length_or_no_attributes_has_no_stores() -> None:
    class Endless(torch.utils.data.IterableDataset[Any]):
        data = torch.zeros(6)

        def __iter__(self) -> Any:
            raise AssertionError("the stream was read")

    assert stores(Endless()) == ()
    assert stores([1, 2, 3]) == ()
    assert stores(TensorDataset(torch.zeros(3))) == ()  # a tuple of them: no name to write


def test_one_normalize_is_found_and_two_are_not_confused() -> None:
    once = transforms.Compose([transforms.ToTensor(), transforms.Normalize(0.5, 0.25)])
    assert normalisation(Holding(transform=once)) == Normalisation(mean=(0.5,), std=(0.25,))
    other = transforms.Compose([transforms.Normalize((0.1, 0.2, 0.3), (1, 1, 1))])
    assert normalisation(Holding(transform=once, target_transform=other)) is None
    assert normalisation(Holding(transform=transforms.Compose([transforms.ToTensor()]))) is None


def test_a_normalize_of_another_make_is_no_error() -> None:
    class Normalize:
        mean = object()
        std = None

        def __call__(self, x: Any) -> Any:
            return x

    assert normalisation(Holding(transform=transforms.Compose([Normalize()]))) is None
