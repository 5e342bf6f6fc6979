"""What is seen of a dataset that the loop changes in place, and what is said to be out of sight."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from loaderdoctor.instrument.dataset.changes import MAX_BYTES, MAX_MARKS, Marks, marks


class Held(Dataset[Any]):
    """Holds whatever it is given."""

    def __init__(self, **held: Any) -> None:
        vars(self).update(held)


class Private:
    __slots__ = ("__epoch",)

    def __init__(self) -> None:
        self.__epoch = 0

    def advance(self) -> None:
        self.__epoch += 1


CHANGES: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "shuffled list": (list(range(1000)), random.Random(1).shuffle),
    "list of pairs": ([(f"{i}.png", i % 3) for i in range(900)], list.reverse),
    "nested list": ([[i] for i in range(100)], lambda x: x[70].append(1)),
    "dict entry": ({"a": 1, "b": [2]}, lambda x: x.update(a=2)),
    "inside a dict": ({"a": 1, "b": [2]}, lambda x: x["b"].__setitem__(0, 3)),
    "array element": (np.zeros((50, 50)), lambda x: x.__setitem__((7, 7), 1)),
    "tensor": (torch.zeros(5), lambda x: x.add_(1)),
    "set": ({1, 2}, lambda x: (x.remove(1), x.add(3))),
    "bytes": (bytearray(b"ab"), lambda x: x.reverse()),
    "attribute": (
        SimpleNamespace(stage=SimpleNamespace(at=1)),
        lambda x: vars(x.stage).update(at=2),
    ),
    "private slot": (Private(), Private.advance),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_in_place_is_seen(name: str) -> None:
    held, change = CHANGES[name]
    dataset = Subset(Held(it=held, root=Path("data")), [0])
    before = marks(dataset)
    assert before.whole
    assert marks(dataset) == before
    change(held)
    assert marks(dataset) != before


class Table:
    """Hides its content, as one in C does."""

    def __setitem__(self, key: str, value: int) -> None: ...


@pytest.mark.parametrize(
    "held",
    [
        np.zeros(MAX_BYTES // 8 + 1),
        [0] * (MAX_BYTES // 8 + 1),
        [np.zeros(MAX_BYTES // 16), np.ones(MAX_BYTES // 16 + 1)],
        [[i] for i in range(MAX_MARKS)],
        Table(),
    ],
    ids=["array", "list", "in total", "marks", "table"],
)
def test_what_can_not_be_compared_whole_is_said(held: Any) -> None:
    assert not marks(Held(it=held)).whole


def test_what_can_not_be_changed_here_needs_no_comparison() -> None:
    fixed = np.zeros(MAX_BYTES)
    fixed.flags.writeable = False
    assert marks(Held(it=fixed)).whole
    assert marks(TensorDataset(torch.zeros(MAX_BYTES))).whole


def test_one_that_objects_to_being_looked_at_is_no_error() -> None:
    class Objects(Dataset[Any]):
        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            raise ValueError("no")

    dataset = Objects()
    assert marks(dataset) == Marks(id(dataset), whole=False)
