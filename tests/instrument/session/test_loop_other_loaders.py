"""What passes over loaders that do not feed the step do, and training that goes on with one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from loaderdoctor.attribution.run_facts import wall_facts
from loaderdoctor.instrument.session import wall_account
from loaderdoctor.instrument.wire.protocol import (
    BATCHES_REPLAYED,
    LOADER_CHANGED,
    Ended,
    Observed,
    TrainingBegan,
)
from loaderdoctor.instrument.wire.records import OutsideRecord
from loaderdoctor.settings import Settings
from tests.findings.builders import step
from tests.instrument.watched import Trainer, Watched, loader_of, request, watch

N_EPOCHS = 6
LONG = request(1, "plain", n_steps=10_000)  # the loop is watched to its end
Pass = Callable[[DataLoader[Any], Trainer], None]


def trains(loader: DataLoader[Any], trainer: Trainer) -> None:
    for x, _y in loader:
        trainer.step(x)


def accumulates(loader: DataLoader[Any], trainer: Trainer) -> None:
    for n, (x, _y) in enumerate(loader):
        trainer.model(x).sum().backward()
        if n % 4 == 3:
            trainer.optimizer.step()


def trains_with_two(loader: DataLoader[Any], trainer: Trainer) -> None:
    other = torch.optim.SGD(trainer.model.parameters(), lr=1e-4)
    for x, _y in loader:
        trainer.step(x)
        other.step()


def forgets_no_grad(loader: DataLoader[Any], trainer: Trainer) -> None:
    for x, _y in loader:
        trainer.model(x).sum().item()


def without_grad(loader: DataLoader[Any], trainer: Trainer) -> None:
    with torch.no_grad():
        forgets_no_grad(loader, trainer)


def only_gradients(loader: DataLoader[Any], trainer: Trainer) -> None:
    for x, _y in loader:
        torch.autograd.backward(trainer.model(x).sum())


def by_turns(of_other: Pass, n_batches: int = 24) -> Watched:
    usual, other, trainer = loader_of(24), loader_of(n_batches), Trainer()

    def loop() -> None:
        for _ in range(N_EPOCHS):
            trains(usual, trainer)
            of_other(other, trainer)
        trains(usual, trainer)

    return watch(loop, LONG)


@pytest.mark.parametrize(
    ("of_other", "n_worked", "n_stepped", "what"),
    [
        (trains, 24, 24, "training"),
        (accumulates, 24, 6, "training"),
        (trains_with_two, 24, 24, "training"),
        (forgets_no_grad, 0, 0, "validation"),
        (without_grad, 0, 0, "validation"),
        (only_gradients, 24, 0, "gradients"),
    ],
)
def test_a_pass_is_what_follows_its_batches(
    of_other: Pass, n_worked: int, n_stepped: int, what: str
) -> None:
    torchs = torch.autograd.backward
    run = by_turns(of_other)
    assert torch.autograd.backward is torchs
    wall = run.ended.wall
    assert wall is not None
    (told,) = wall.outside
    assert (told.n, told.n_batches) == (N_EPOCHS, 24 * N_EPOCHS)
    assert (told.n_worked, told.n_stepped) == (n_worked * N_EPOCHS, n_stepped * N_EPOCHS)
    assert told.n_with_grad == (0 if of_other is without_grad else told.n_batches)
    facts = wall_facts(wall, step())
    assert facts is not None
    parts = [part for part in (*facts.outside, *facts.elsewhere) if part.site == told.site]
    assert [part.what for part in parts] == [what]
    assert bool(facts.elsewhere) == (what == "training")
    assert BATCHES_REPLAYED not in {note.kind for note in run.notes}
    assert not [m for m in run.sent if isinstance(m, TrainingBegan)]


def test_a_validation_left_early_does_not_train_by_the_step_behind_it() -> None:
    usual, other, trainer = loader_of(48), loader_of(24), Trainer()

    def loop() -> None:
        for n, (x, _y) in enumerate(usual):
            if n > 20 and n % 4 == 0:
                for i, (v, _y) in enumerate(other):
                    trainer.model(v)
                    if i == 3:
                        break
            trainer.step(x)

    wall = watch(loop, LONG).ended.wall
    assert wall is not None
    (told,) = wall.outside
    assert told.n_batches == 4 * told.n
    assert told.n_worked == told.n  # their last batches': of the step, as far as that can be told
    facts = wall_facts(wall, step())
    assert facts is not None and facts.outside[0].what == "validation"


def two_phases(n_first: int, follow_s: float | None = None) -> Watched:
    first, second, trainer = loader_of(n_first), loader_of(60), Trainer()

    def loop() -> None:
        trains(first, trainer)
        for _ in range(4):
            trains(second, trainer)

    return watch(loop, request(1, "no_input", n_steps=2000), follow_s=follow_s)


@pytest.fixture
def phases_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wall_account, "MIN_PHASE_S", 0.0)
    monkeypatch.setattr(wall_account, "PHASE_TIMES", 0.0)


@pytest.mark.usefixtures("phases_are_short")
def test_training_that_goes_on_with_another_loader_is_followed() -> None:
    run = two_phases(40)
    kinds = [type(m) for m in run.sent if isinstance(m, (Observed, TrainingBegan))]
    assert kinds == [Observed, TrainingBegan, Observed]
    after = [m for m in run.sent if isinstance(m, Observed)][-1]
    assert [(x.n_samples, x.role) for x in after.loaders] == [(80, "other"), (120, "train")]
    (began,) = [m for m in run.sent if isinstance(m, TrainingBegan)]
    assert began.loader == after.loaders[1].id
    assert after.boundaries[0].first
    assert {b.loader for b in after.boundaries} == {began.loader}
    (told,) = [note for note in run.notes if note.kind == LOADER_CHANGED]
    assert after.loaders[0].id in told.text and after.loaders[1].id in told.text
    assert all(s.substitute.source is None for s in run.session.registry.states)


@pytest.mark.usefixtures("phases_are_short")
def test_late_it_is_not_followed_and_what_was_measured_stands() -> None:
    run = two_phases(40, follow_s=0.0)
    assert not [m for m in run.sent if isinstance(m, TrainingBegan)]
    assert [m.how for m in run.sent if isinstance(m, Ended)] == ["stopped"]
    (told,) = [note for note in run.notes if note.kind == LOADER_CHANGED]
    assert "too late" in told.text and "the figures are of" in told.text
    assert all(s.substitute.source is None for s in run.session.registry.states)


def test_a_short_pass_that_trains_is_not_followed() -> None:
    run = two_phases(40)  # 240 steps of far less than two seconds
    assert not [m for m in run.sent if isinstance(m, TrainingBegan)]
    assert LOADER_CHANGED not in {note.kind for note in run.notes}


def test_a_pass_by_turns_is_shorter_than_what_was_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wall_account, "MIN_PHASE_S", 0.0)
    usual, other, trainer = loader_of(40), loader_of(8), Trainer()

    def slowly(loader: DataLoader[Any]) -> None:
        for x, _y in loader:
            trainer.step(x)
            time.sleep(0.002)

    def loop() -> None:
        for _ in range(3):
            slowly(usual)
            slowly(other)
        slowly(usual)

    run = watch(loop, LONG)
    assert not [m for m in run.sent if isinstance(m, TrainingBegan)]
    assert run.ended.wall is not None
    (told,) = run.ended.wall.outside
    assert isinstance(told, OutsideRecord) and told.n_stepped == 24


def test_loaders_built_anew_for_each_fold_are_one_while_a_trial_goes_on() -> None:
    trainer = Trainer()

    def folds() -> None:
        for _ in range(6):
            loader = loader_of(16, shuffle=True)
            for x, _y in loader:
                trainer.step(x)

    trial = request(2, "trial", n_steps=20, settings=Settings(num_workers=0))
    run = watch(folds, request(1, "plain", n_steps=20), trial, request(3, "plain", n_steps=8))
    assert [window.status for window in run.windows] == ["ok", "ok", "ok"]
    assert [state.role for state in run.session.registry.states] == ["train"]


def joining(
    every: int,
    *,
    n_batches: int = 1,
    first: int = 0,
    until: int = 10_000,
    before: bool = False,
    reads_third: bool = False,
    n_others: int = 50,
    n_epochs: int = 4,
) -> Callable[[], None]:
    """A loop that draws from a second loader at some steps, and reads a third at each."""
    usual, other, third, trainer = loader_of(60), loader_of(n_others), loader_of(20), Trainer()
    made: list[int] = []

    def forever(loader: DataLoader[Any]) -> Iterator[torch.Tensor]:
        while True:
            yield from (x for x, _y in loader)

    def loop() -> None:
        others, thirds = forever(other), forever(third)
        for _ in range(n_epochs):
            batches = iter(usual)
            while True:
                n = n_batches if first <= len(made) < until and len(made) % every == 0 else 0
                extra = [next(others) for _ in range(n)] if before else []
                try:
                    x, _y = next(batches)
                except StopIteration:
                    break
                if reads_third:
                    with torch.no_grad():
                        trainer.model(next(thirds))
                extra = extra or [next(others) for _ in range(n)]
                trainer.step(torch.cat([x, *extra]))
                made.append(n)

    return loop


ABLATION = (request(1, "plain", n_steps=24), request(2, "no_input", n_steps=12))


@pytest.mark.parametrize("every", [1, 2, 3, 4, 7, 8])
@pytest.mark.parametrize("before", [True, False])
def test_a_loader_that_joins_some_steps_is_part_of_them(every: int, *, before: bool) -> None:
    loop = joining(every, before=before)
    run = watch(loop, request(1, "plain", n_steps=56), request(2, "no_input", n_steps=28))
    after = [m for m in run.sent if isinstance(m, Observed)][-1]
    by_size = {x.n_samples: x for x in after.loaders}
    assert {n: x.role for n, x in by_size.items()} == {120: "train", 100: "train"}
    main = after.main_loader
    assert main is not None
    if every > 1:
        assert main.n_samples == 120 and by_size[100].beside
    plain, without = run.windows
    assert (plain.n_steps, without.status) == (56, "ok"), without.reason
    drawn = [f.loader for f in plain.fetches]
    index = {x.n_samples: i for i, x in enumerate(after.loaders)}
    assert drawn.count(index[100]) == pytest.approx(56 / every, abs=1)
    assert run.ended.wall is not None and not run.ended.wall.outside


@pytest.mark.parametrize("n_others", [2, 3])
def test_a_joined_loader_may_be_short(n_others: int) -> None:
    """Its iterators end, and are no probes for that."""
    run = watch(joining(4, n_others=n_others), *ABLATION)
    assert [window.status for window in run.windows] == ["ok", "ok"]
    assert {x.role for x in run.session.registry.records() if x.n_samples != 40} == {"train"}


@pytest.mark.parametrize("every", [9, 13, 50])
@pytest.mark.parametrize("before", [True, False])
def test_a_loader_read_more_rarely_lies_outside_the_steps(every: int, *, before: bool) -> None:
    run = watch(joining(every, before=before, n_others=200), *ABLATION)
    assert [(w.status, w.n_steps) for w in run.windows] == [("ok", 24), ("ok", 12)]
    roles = {x.n_samples: x.role for x in run.session.registry.records()}
    assert roles == {120: "train", 400: "other"}
    wall = run.ended.wall
    assert wall is not None
    assert sum(x.n for x in wall.outside) == pytest.approx(run.session.n_steps / every, abs=2)


@pytest.mark.parametrize(("every", "joins"), [(1, True), (5, True), (8, True), (12, False)])
def test_another_that_each_step_reads_without_gradients_is_none_of_them(
    every: int, *, joins: bool
) -> None:
    """Steps count all the same, each of which holds something of it."""
    run = watch(joining(every, reads_third=True, n_others=200), *ABLATION)
    assert [(w.status, w.n_steps) for w in run.windows] == [("ok", 24), ("ok", 12)]
    roles = {x.n_samples: x.role for x in run.session.registry.records()}
    assert roles == {120: "train", 400: "train" if joins else "other", 40: "other"}
    assert run.session.wall.in_steps


@pytest.mark.parametrize("first", [50, 100])
def test_a_loader_that_comes_later_changes_nothing_of_what_is_measured(first: int) -> None:
    run = watch(joining(4, first=first), request(1, "plain", n_steps=150), request(2, "no_input"))
    assert not [m for m in run.sent if isinstance(m, TrainingBegan)]
    assert [window.status for window in run.windows] == ["ok", "ok"]
    assert {x.n_samples: x.role for x in run.session.registry.records()} == {
        120: "train",
        100: "other",
    }
    assert run.ended.wall is not None
    (told,) = run.ended.wall.outside
    assert told.n > 10 and told.first_step > first


def test_one_that_gives_no_more_batches_costs_no_ablation() -> None:
    run = watch(joining(4, until=30, n_epochs=8), request(1, "plain", n_steps=24), *ABLATION)
    assert [window.status for window in run.windows] == ["ok", "ok", "ok"]


@pytest.mark.parametrize("every", [3, 50])
def test_an_iterator_made_for_each_batch_is_a_probe(every: int) -> None:
    """`next(iter(val))`, its model called with gradients on."""
    usual, val, trainer = loader_of(60), loader_of(20), Trainer()

    def loop() -> None:
        n = 0
        for _ in range(5):
            for x, _y in usual:
                trainer.step(x)
                n += 1
                if n % every == 0:
                    trainer.model(next(iter(val))[0]).sum().item()

    run = watch(loop, request(1, "plain", n_steps=60), request(2, "no_input", n_steps=12))
    assert [(w.status, w.n_steps) for w in run.windows] == [("ok", 60), ("ok", 12)]
    roles = {x.n_samples: x.role for x in run.session.registry.records()}
    assert roles == {120: "train", 40: "other"}


def test_a_joined_loader_keeps_what_the_settling_loop_did_besides() -> None:
    """Epochs, validation and what was saved while it was not known that it joins."""
    usual, other, val, trainer = loader_of(6), loader_of(200), loader_of(2), Trainer()

    def loop() -> None:
        others = iter(other)
        n = 0
        for _ in range(20):
            for x, _y in usual:
                extra = [next(others)[0]] if n % 4 == 0 else []
                trainer.step(torch.cat([x, *extra]))
                n += 1
            with torch.no_grad():
                for x, _y in val:
                    trainer.model(x)
            torch.save({}, "/dev/null")

    run = watch(loop, LONG)
    wall = run.ended.wall
    roles = {x.n_samples: x.role for x in run.session.registry.records()}
    assert roles == {12: "train", 400: "train", 4: "other"}
    assert wall is not None
    assert wall.n_epochs >= 19  # an end is counted as the next epoch begins
    assert {(x.what, x.n) for x in wall.outside} == {("pass", 20), ("save", 20)}


def test_several_batches_of_a_step_join_it() -> None:
    loop = joining(2, n_batches=2)
    run = watch(loop, request(1, "plain", n_steps=40))
    fetched = [f.loader for f in run.windows[0].fetches]
    assert run.windows[0].n_steps == 40 and len(fetched) == 80
    assert {x.role for x in run.session.registry.records()} == {"train"}


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("of", ["larger batches", "prompts", "two optimizers"])
def test_what_a_joined_loader_gives_and_what_trains_on_it_makes_no_difference(
    of: str, every: int
) -> None:
    """Unlabelled batches seven times as large, prompts without a tensor, a second optimizer."""
    usual, trainer, second = loader_of(60), Trainer(), Trainer()
    other = loader_of(50, batch_size=14, collate_fn=repr if of == "prompts" else None)

    def forever() -> Iterator[Any]:
        while True:
            yield from other

    def loop() -> None:
        others, n = forever(), 0
        for _ in range(4):
            for x, _y in usual:
                extra = next(others) if n % every == 0 else None
                n += 1
                if of == "two optimizers" and extra is not None:
                    second.step(extra[0])
                both = [x] if extra is None or of != "larger batches" else [x, extra[0]]
                trainer.step(torch.cat(both))

    run = watch(loop, request(1, "plain", n_steps=40), request(2, "no_input", n_steps=20))
    plain, without = run.windows
    assert (plain.n_steps, without.n_steps) == (40, 20), without.reason
    assert len(plain.fetches) == pytest.approx(40 + 40 / every, abs=1)
    main = run.observed.main_loader
    assert main is not None and main.n_samples == 120
    assert {x.role for x in run.session.registry.records()} == {"train"}
    assert run.ended.wall is not None and not run.ended.wall.outside
