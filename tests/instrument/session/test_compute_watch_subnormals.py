"""Subnormal numbers in what is trained are found by their bits, and nothing is changed."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch

from loaderdoctor.instrument.session.compute_watch import subnormals

TINY = 1e-40


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """Without optimizers that other tests have left to be collected."""
    gc.collect()
    yield
    gc.collect()


def trained(share: float) -> torch.optim.Optimizer:
    """Weights of which this share is subnormal."""
    weights = torch.ones(1000)
    weights[: int(1000 * share)] = TINY
    return torch.optim.SGD([torch.nn.Parameter(weights)], lr=0.1)


def test_their_share_and_where_they_are() -> None:
    kept = trained(0.25)
    found = subnormals()
    assert found is not None
    assert (found.where, found.n_looked_at) == ("parameters", 1000)
    assert found.share == pytest.approx(0.25)
    assert found.slowdown > 0
    (weights,) = kept.param_groups[0]["params"]
    assert weights.grad is None
    assert int((weights == TINY).sum()) == 250


def test_the_state_of_an_optimizer_is_looked_at_too() -> None:
    parameter = torch.nn.Parameter(torch.ones(1000))
    adam = torch.optim.Adam([parameter], lr=0.1)
    parameter.grad = torch.full((1000,), 1e-20)  # its square, a thousandth of it, is subnormal
    adam.step()
    found = subnormals()
    assert found is not None
    assert found.where == "optimizer state"
    assert found.share > 0.3


def test_normal_numbers_and_zeros_are_none() -> None:
    kept = [trained(0.0), torch.optim.SGD([torch.nn.Parameter(torch.zeros(100))], lr=0.1)]
    assert subnormals() is None
    assert len(kept) == 2


def test_without_an_optimizer_nothing_is_looked_at() -> None:
    assert subnormals() is None
