"""Which loader feeds the step is found in loops of every common shape."""

from __future__ import annotations

import itertools
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from loaderdoctor.instrument.session.roles import RoleObserver
from loaderdoctor.instrument.wire.protocol import WindowRequest
from loaderdoctor.instrument.wire.records import LoaderRecord
from tests.instrument.watched import Numbers, Trainer, Watched, loader_of, watch


def roles(run: Watched) -> dict[str, str]:
    """Role of each loader by its dataset's size, which tests use as a name."""
    last: tuple[LoaderRecord, ...] = run.session.registry.records()
    return {str(r.n_samples): r.role for r in last}


def test_validation_between_epochs_is_no_part_of_the_step() -> None:
    train, val = loader_of(10), loader_of(3)
    trainer = Trainer()

    def loop() -> None:
        for _ in range(3):
            for x, _y in train:
                trainer.step(x)
            with torch.no_grad():
                for x, _y in val:
                    trainer.model(x)

    assert roles(watch(loop)) == {"20": "train", "6": "other"}


def test_a_sanity_check_before_training_is_no_part_of_the_step() -> None:
    train, val = loader_of(20), loader_of(1)
    trainer = Trainer()

    def loop() -> None:
        for x, _y in val:  # with gradients on, and right before the first training batch
            trainer.model(x)
        for x, _y in train:
            trainer.step(x)

    assert roles(watch(loop)) == {"40": "train", "2": "other"}


def test_zipped_loaders_both_feed_the_step_and_the_first_delimits_it() -> None:
    first, second = loader_of(20), loader_of(21)
    trainer = Trainer()

    def loop() -> None:
        for (x, _), (z, _) in zip(first, second, strict=False):
            trainer.step(x + z)

    run = watch(loop)
    assert roles(run) == {"40": "train", "42": "train"}
    definition = run.session.definition
    assert definition is not None
    assert [s.record.n_samples for s in definition.train] == [40, 42]


def test_two_loaders_used_in_turn_by_two_optimizers_both_feed_the_step() -> None:
    real, noise = loader_of(20), loader_of(22)
    one, two = Trainer(), Trainer()

    def loop() -> None:
        noise_iter = iter(noise)
        for x, _y in real:
            one.step(x)
            z, _y = next(noise_iter)
            two.step(z)

    run = watch(loop)
    assert roles(run) == {"40": "train", "44": "train"}
    assert run.observed.batches_per_cycle == 1


def test_another_thread_may_read_a_new_loader_at_any_moment() -> None:
    observer, raised = RoleObserver(), list[RuntimeError]()

    def read() -> None:
        for index in range(5_000):
            loader: Any = SimpleNamespace(index=index)
            observer.fetched(loader, 1)

    reading, before = threading.Thread(target=read), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        reading.start()
        while reading.is_alive():
            observer.worked(None)
    except RuntimeError as error:
        raised.append(error)
    finally:
        sys.setswitchinterval(before)
        reading.join()
    assert not raised


@pytest.mark.parametrize("n_optimizers", [1, 2])
def test_with_accumulation_a_step_is_a_batch_however_many_optimizers_step(
    n_optimizers: int,
) -> None:
    train = loader_of(40)
    trainers = [Trainer() for _ in range(n_optimizers)]

    def loop() -> None:
        for i, (x, _y) in enumerate(train):
            for trainer in trainers:
                trainer.backward(x)
                if i % 4 == 3:
                    trainer.optimizer.step()
                    trainer.optimizer.zero_grad()

    assert watch(loop).observed.batches_per_cycle == 4


def test_a_cycle_is_that_of_the_optimizer_that_steps_least_often() -> None:
    critic, generator = Trainer(), Trainer()

    def loop() -> None:
        for i, (x, _y) in enumerate(loader_of(60)):
            critic.step(x)
            if i % 3 == 2:
                generator.step(x)

    assert watch(loop).observed.batches_per_cycle == 3


def test_a_closure_called_many_times_is_one_step() -> None:
    train = loader_of(20)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5)

    def loop() -> None:
        for x, _y in train:

            def closure(x: torch.Tensor = x) -> torch.Tensor:
                optimizer.zero_grad()
                loss: torch.Tensor = model(x / 40).square().sum()
                loss.backward()  # type: ignore[no-untyped-call]
                return loss

            optimizer.step(closure)  # type: ignore[no-untyped-call]

    run = watch(loop, WindowRequest(id=1, mode="plain", n_steps=5))
    assert len(run.windows[0].fetches) == 5
    assert run.observed.batches_per_cycle == 1


def test_without_an_optimizer_backward_tells_the_step() -> None:
    train = loader_of(20)
    model = torch.nn.Linear(4, 2)

    def loop() -> None:
        for x, _y in train:
            model(x).sum().backward()
            with torch.no_grad():
                for p in model.parameters():
                    p.sub_(p.grad, alpha=1e-6)  # type: ignore[arg-type]

    run = watch(loop)
    assert roles(run) == {"40": "train"}
    assert "backward" in run.observed.definition


def test_inference_alone_is_measured_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loaderdoctor.instrument.session.roles.WORKLESS_S", 0.0)
    monkeypatch.setattr("loaderdoctor.instrument.session.roles.optimizer_exists", lambda: False)
    data = loader_of(30)
    model = torch.nn.Linear(4, 2)

    def loop() -> None:
        with torch.no_grad():
            for x, _y in data:
                model(x)

    assert roles(watch(loop)) == {"60": "train"}


def test_a_loader_fetched_by_a_background_thread_is_delimited_on_the_training_thread() -> None:
    from prefetch_generator import BackgroundGenerator

    train = loader_of(30)
    trainer = Trainer()

    def loop() -> None:
        for x, _y in BackgroundGenerator(train):
            trainer.step(x)

    run = watch(loop)
    definition = run.session.definition
    assert definition is not None
    assert definition.tick == "optimizer"
    assert roles(run) == {"60": "train"}
    assert "background thread" in run.observed.definition
    assert [x.in_background for x in run.observed.loaders] == [True]


def test_a_loader_rebuilt_each_epoch_is_one_loader() -> None:
    trainer = Trainer()

    def loop() -> None:
        for _ in range(6):
            loader = DataLoader(Numbers(8), 2)
            for x, _y in loader:
                trainer.step(x)
            del loader

    run = watch(loop)
    assert len(run.session.registry.states) == 1


def test_loaders_built_on_one_line_are_told_apart() -> None:
    trainer = Trainer()
    pair = []

    def loop() -> None:
        pair.extend([loader_of(12), loader_of(2)])
        for (x, _), _ in zip(pair[0], itertools.cycle(pair[1]), strict=False):
            trainer.step(x)

    run = watch(loop)
    ids = [r.id for r in run.session.registry.records()]
    assert len(set(ids)) == 2
    assert ids[1] == ids[0] + "#2"


def test_a_subclass_is_found_where_it_is_used() -> None:
    class Mine(DataLoader[object]):
        def __init__(self, n: int) -> None:
            super().__init__(Numbers(n), 2)

    trainer = Trainer()

    def loop() -> None:
        for x, _y in Mine(40):
            trainer.step(x)

    record = watch(loop).session.registry.records()[0]
    assert record.code is not None
    assert "Mine(40)" in record.code


def test_a_script_without_a_loader_says_so() -> None:
    assert watch(lambda: None).ended.how == "no-loader"
