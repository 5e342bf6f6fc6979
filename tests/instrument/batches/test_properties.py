"""Batches alike have one signature, and what code may branch on makes another."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from loaderdoctor.instrument.batches import integers
from loaderdoctor.instrument.batches.properties import Shapes, signature

X = torch.zeros(4, 3)


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        (X, X + 1.0, True),
        ([X, torch.tensor([1, 0])], [X, torch.tensor([0, 1])], True),  # labels are data
        ({"x": X, "n": 3}, {"x": X, "n": 4}, False),
        ({"x": X, "n": torch.tensor(3)}, {"x": X, "n": torch.tensor(4)}, False),
        ([X, torch.tensor(0.5)], [X, torch.tensor(0.7)], True),
        (X, X[:2], False),
        ([{"boxes": X}, {"boxes": X.clone()}], [{"boxes": X}], False),
        (X, X.double(), False),
        ({"x": X, "name": "a"}, {"x": X, "name": "b"}, True),
    ],
)
def test_alike(one: Any, other: Any, alike: bool) -> None:
    assert (signature(one) == signature(other)) is alike


def test_long_lists_of_numbers_are_looked_at_in_part() -> None:
    assert integers({"ids": list(range(10_000))}, 5) == (0, 1, 2, 3, 4)


def test_shapes_vary_only_where_recent_ones_do() -> None:
    shapes = Shapes()
    for n in (1, 2, 3):
        shapes.see(torch.zeros(n))
    assert shapes.vary and shapes.novel
    for _ in range(40):
        shapes.see(X)
    assert not shapes.vary and not shapes.novel


def test_a_set_of_shapes_seen_often_is_not_novel() -> None:
    shapes = Shapes()
    for i in range(40):
        shapes.see(torch.zeros(1 + i % 4))
    assert shapes.vary and not shapes.novel


def test_a_type_that_objects_to_being_looked_at_is_left_alone() -> None:
    class Odd:
        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            raise TypeError("no")

    shapes = Shapes()
    assert not shapes.see(Odd())
    assert shapes.last is None
