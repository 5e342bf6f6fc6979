"""Watching how a loop computes: what is seen, and that nothing of the loop changes."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module

from loaderdoctor.instrument.session.compute_watch import ComputeWatch
from loaderdoctor.instrument.wire.records import ComputeRecord
from tests.instrument.watched import Trainer, loader_of, watch


def watched(step: Callable[[], object], n_steps: int = 2) -> ComputeRecord:
    observer = ComputeWatch(None, acting=lambda: True)
    assert observer.install()
    try:
        for _ in range(n_steps):
            step()
            observer.stepped()
    finally:
        observer.remove()
    return observer.record()


class Block(nn.Module):
    """A bias that matters (an activation lies between) and one that does not."""

    def __init__(self, *, inplace: bool, bias: bool = True) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(4)  # declared before what comes before it in the forward pass
        self.conv = nn.Conv2d(3, 4, 3, bias=bias)
        self.activation = nn.ReLU(inplace=inplace)
        self.second = nn.Conv2d(4, 4, 3)
        self.last = nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.conv(x))
        result: torch.Tensor = self.last(self.activation(self.second(x)))
        return result


@pytest.mark.parametrize("inplace", [True, False])
def test_biases_are_found_by_the_order_of_calls_unless_something_lies_between(
    inplace: bool,
) -> None:
    model = Block(inplace=inplace)
    record = watched(lambda: model(torch.rand(2, 3, 8, 8)).sum().backward())
    assert record.biased == ("conv -> norm",)
    assert record.n_batch_norms == 2
    assert not watched(lambda: Block(inplace=inplace, bias=False)(torch.rand(2, 3, 8, 8))).biased


def test_frozen_batch_norms_need_the_bias() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    record = watched(lambda: model(torch.rand(2, 4)))
    assert (record.biased, record.n_batch_norms) == ((), 0)


def test_layers_that_the_loop_itself_calls_one_by_one_are_seen_too() -> None:
    layer, norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
    assert watched(lambda: norm(layer(torch.rand(2, 4)))).biased == ("Linear -> BatchNorm1d",)


class Wrapping(torch.optim.SGD):
    """Hands its zero_grad on, as accelerate's does."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none=set_to_none)


@pytest.mark.parametrize("kind", [torch.optim.SGD, Wrapping])
def test_zero_grad_with_zeros_is_counted_once_a_call_with_its_line(
    kind: type[torch.optim.SGD],
) -> None:
    model = nn.Linear(4, 2)
    optimizer = kind(model.parameters(), lr=0.1)
    record = watched(lambda: optimizer.zero_grad(set_to_none=False))
    assert record.n_zero_fills == 2
    assert record.zero_fill_site is not None
    assert record.zero_fill_site.startswith("test_compute_watch.py:")
    assert "set_to_none=False" in (record.zero_fill_code or "")
    assert watched(lambda: model.zero_grad(False)).n_zero_fills == 2
    for quiet in (optimizer.zero_grad, model.zero_grad, lambda: optimizer.zero_grad(True)):
        assert watched(quiet).n_zero_fills == 0


def test_nothing_stays_behind_in_torch_or_in_copies_made_meanwhile() -> None:
    before = (nn.Module.zero_grad, torch.optim.Optimizer.zero_grad)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    copies = []

    def step() -> None:
        model(torch.rand(2, 4)).sum().backward()
        copies.append(copy.deepcopy(model))
        copies.append(pickle.loads(pickle.dumps(model)))

    watched(step)
    assert (nn.Module.zero_grad, torch.optim.Optimizer.zero_grad) == before
    assert not torch_module._global_forward_hooks
    assert not torch_module._global_forward_pre_hooks
    for made in copies:
        assert not made[0]._forward_hooks
        assert "zero_grad" not in made.__dict__


def test_a_watched_loop_tells_how_it_computes_and_computes_the_same() -> None:
    class Normed(Trainer):
        def __init__(self) -> None:
            torch.manual_seed(0)
            self.model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))  # type: ignore[assignment]
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-2)

        def step(self, x: torch.Tensor) -> None:
            self.optimizer.zero_grad(set_to_none=False)
            self.backward(x)
            self.optimizer.step()

    def loop() -> Normed:
        trainer = Normed()
        for x, _ in loader_of(30):
            trainer.step(x)
        return trainer

    ends = [loop()]
    told = watch(lambda: ends.append(loop()))
    record = told.observed.compute
    assert record is not None
    assert record.biased == ("0 -> 1",)
    assert record.n_zero_fills == record.n_steps == 2
    for a, b in zip(ends[0].model.parameters(), ends[1].model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not torch_module._global_forward_hooks


@pytest.mark.slow  # compiles
def test_a_compiled_loop_is_not_watched() -> None:
    model = torch.compile(nn.Linear(4, 4), backend="eager")
    model(torch.rand(2, 4))
    observer = ComputeWatch(None, acting=lambda: True)
    assert not observer.install()
    assert not torch_module._global_forward_hooks


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_data_parallel_over_several_devices_is_seen() -> None:
    model = nn.DataParallel(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).cuda())
    record = watched(lambda: model(torch.rand(8, 4).cuda()).sum().backward())
    assert record.n_replicas == torch.cuda.device_count()
