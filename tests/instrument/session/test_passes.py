"""What is read before training begins is told apart from it, whatever it is read for."""

from __future__ import annotations

import gc
import time

import pytest
import torch
from torch import nn

from loaderdoctor.instrument.session import passes as passes_module
from loaderdoctor.instrument.session import roles
from loaderdoctor.instrument.system import living
from loaderdoctor.instrument.wire.protocol import Observed, TrainingBegan
from loaderdoctor.instrument.wire.records import PassRecord
from tests.instrument.watched import Trainer, Watched, loader_of, request, watch


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inference is decided on as soon as a model is called and no optimizer exists."""
    monkeypatch.setattr(roles, "WORKLESS_S", 0.0)
    monkeypatch.setattr(roles, "optimizer_exists", lambda: False)


def passes(run: Watched) -> tuple[PassRecord, ...]:
    return observations(run)[-1].before_training


def observations(run: Watched) -> list[Observed]:
    return [m for m in run.sent if isinstance(m, Observed)]


def test_statistics_over_the_training_loader_are_no_steps(hasty: None) -> None:
    train, trainer = loader_of(30), Trainer()

    def loop() -> None:
        for _ in range(3):
            for x, _y in train:
                x.mean().item()
        for x, _y in train:
            trainer.step(x)

    run = watch(loop)
    (observed,) = observations(run)
    (one,) = passes(run)
    assert observed.trains
    assert "feeds the optimizer" in observed.definition
    assert (one.n_passes, one.n_batches, one.calls_model, one.skips) == (3, 90, False, False)
    assert one.loader == observed.loaders[0].id
    assert one.code == "for x, _y in train:"


def test_statistics_with_a_loader_of_their_own_leave_the_training_loader_as_the_step(
    hasty: None,
) -> None:
    probe, train, trainer = loader_of(40), loader_of(30), Trainer()

    def loop() -> None:
        for x, _y in probe:
            x.mean().item()
        for x, _y in train:
            trainer.step(x)

    run = watch(loop)
    (observed,) = observations(run)
    assert [(x.n_samples, x.role) for x in observed.loaders] == [(80, "other"), (60, "train")]
    assert not run.notes
    assert [one.n_batches for one in passes(run)] == [40]


def test_batches_skipped_to_resume_are_told_apart_from_the_steps_of_the_same_pass(
    hasty: None,
) -> None:
    train, trainer = loader_of(60), Trainer()

    def loop() -> None:
        for i, (x, _y) in enumerate(train):
            if i < 25:
                continue
            trainer.step(x)

    run = watch(loop)
    (one,) = passes(run)
    assert (one.n_batches, one.skips, one.calls_model) == (25, True, False)
    assert run.observed.batches_per_cycle == 1


def test_training_that_begins_after_inference_was_measured_is_observed_anew(hasty: None) -> None:
    val, train, trainer = loader_of(60), loader_of(40), Trainer()

    def loop() -> None:
        with torch.no_grad():
            for x, _y in val:
                trainer.model(x)
        for x, _y in train:
            trainer.step(x)

    run = watch(loop, request(1, "no_input", n_steps=500))
    before, after = observations(run)
    assert (before.trains, after.trains) == (False, True)
    kinds = [type(m) for m in run.sent if isinstance(m, (Observed, TrainingBegan))]
    assert kinds == [Observed, TrainingBegan, Observed]
    assert [(x.n_samples, x.role) for x in after.loaders] == [(120, "other"), (80, "train")]
    (one,) = after.before_training
    assert (one.n_batches, one.calls_model, one.without_grad) == (60, True, True)
    assert all(s.substitute.source is None for s in run.session.registry.states)


def test_a_script_that_never_trains_is_inference_with_the_passes_before_it(hasty: None) -> None:
    probe, data, model = loader_of(20), loader_of(60), nn.Linear(4, 2)

    def loop() -> None:
        for x, _y in probe:
            x.mean().item()
        for x, _y in data:
            model(x)

    (observed,) = observations(watch(loop))
    assert not observed.trains
    assert [one.n_batches for one in observed.before_training] == [20]


def test_an_ordinary_training_loop_has_no_pass_before_it_and_meets_no_hook(hasty: None) -> None:
    train, trainer = loader_of(40), Trainer()
    hooked = []

    def loop() -> None:
        for x, _y in train:
            trainer.step(x)
            hooked.append(bool(nn.modules.module._global_forward_pre_hooks))

    run = watch(loop)
    assert passes(run) == ()
    assert not any(hooked[:3])


def test_accumulated_gradients_are_training_from_the_first_batch_on(hasty: None) -> None:
    train, trainer = loader_of(90), Trainer()

    def loop() -> None:
        for i, (x, _y) in enumerate(train):
            trainer.backward(x)
            if i % 16 == 15:
                trainer.optimizer.step()

    run = watch(loop)
    assert passes(run) == ()
    assert run.observed.trains


def test_transforms_on_the_batch_are_no_model(hasty: None) -> None:
    class Scale(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x / 255

    train, trainer, scale = loader_of(30), Trainer(), Scale()

    def loop() -> None:
        for x, _y in train:
            scale(x).mean().item()
        for x, _y in train:
            trainer.step(x)

    run = watch(loop)
    assert [one.calls_model for one in passes(run)] == [False]
    assert len(observations(run)) == 1


def test_an_optimizer_that_exists_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roles, "WORKLESS_S", 0.0)
    val, train, trainer = loader_of(30), loader_of(30), Trainer()

    def loop() -> None:
        with torch.no_grad():
            for x, _y in val:
                trainer.model(x)
        for x, _y in train:
            trainer.step(x)

    (observed,) = observations(watch(loop))
    assert observed.trains
    assert [one.n_batches for one in observed.before_training] == [30]


def test_the_time_of_a_pass_holds_its_own_work(hasty: None) -> None:
    train, trainer = loader_of(20), Trainer()
    took = []

    def loop() -> None:
        began = time.perf_counter()
        for x, _y in train:
            x.mean().item()
            time.sleep(0.002)
        took.append(time.perf_counter() - began)
        for x, _y in train:
            trainer.step(x)

    (one,) = passes(watch(loop))
    assert one.took_s == pytest.approx(took[0], rel=0.2)


def test_a_pass_without_gradients_over_the_training_loader_is_no_part_of_its_steps() -> None:
    train, trainer = loader_of(12), Trainer()

    def loop() -> None:
        for _ in range(12):
            for x, _y in train:
                trainer.step(x)
                time.sleep(0.004)
            with torch.no_grad():
                for x, _y in train:
                    trainer.model(x)

    (window,) = watch(loop, request(1, "plain", n_steps=40)).windows
    assert window.n_steps == 40
    assert min(window.host_step_ns) > 3_500_000


def test_a_loop_that_makes_an_iterator_for_each_batch_is_kept_as_sums() -> None:
    train, val = loader_of(4), loader_of(6)
    kept: list[int] = []

    def loop() -> None:
        gc.collect()
        before = len(living(passes_module._Pass))
        for _ in range(60):
            next(iter(train))
            with torch.no_grad():
                for x, _y in val:
                    x.mean().item()
            kept.append(len(living(passes_module._Pass)) - before)

    ended = watch(loop).ended
    told = [(x.n_passes, x.n_batches, x.without_grad) for x in ended.before_training]
    assert told == [(60, 60, False), (60, 360, True)]
    assert all(x.took_s for x in ended.before_training)
    assert set(kept) == {2}  # the latest over each loader
