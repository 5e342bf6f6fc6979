"""Which rows reach the model in an epoch, from calls of real modules."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from loaderdoctor.instrument.entry.checked_run import _tensors
from loaderdoctor.instrument.entry.checked_samples import SeenSamples
from loaderdoctor.instrument.wire.channel import CheckedSamples, samples_file


class Loop:
    """A training loop whose passes, calls and steps are told to what is tested."""

    def __init__(self, **wanted: Any) -> None:
        settings = {"n_epochs": 2, "limit_s": 600.0, **wanted}
        self.seen = SeenSamples(CheckedSamples(**settings), lambda x: list(_tensors(x)))
        self.call = self.seen.around(lambda model, *args, **kwargs: model.forward(*args, **kwargs))
        self.model: nn.Module = nn.Linear(3, 1)

    def epoch(self, *batches: Tensor, dataset: object = "train") -> bool:
        self.seen.pass_began(dataset)
        return [self.step(batch) for batch in batches][-1]

    def step(self, *batches: Tensor) -> bool:
        for batch in batches:
            self.call(self.model, batch)
        return self.seen.stepped()

    def epochs(self, out: Path, *, ended: bool = False) -> list[list[bytes]]:
        n = self.seen.write(out, ended=ended)
        return [digests(samples_file(out, i)) for i in range(n)]


def digests(file: Path) -> list[bytes]:
    text = file.read_bytes()
    return [text[i : i + 8] for i in range(0, len(text), 8)]


ROWS = torch.arange(36.0).reshape(12, 3)


def test_samples_are_the_same_in_any_batch_and_epochs_are_told_apart(tmp_path: Path) -> None:
    loop = Loop()
    assert not loop.epoch(ROWS[:4], ROWS[4:8], ROWS[8:])
    assert not loop.epoch(ROWS[6:].flip(0), ROWS[:6])
    loop.seen.pass_began("train")
    assert loop.step(ROWS[:4])  # both epochs are seen
    first, second = loop.epochs(tmp_path)
    assert len(set(first)) == 12
    assert second == first[6:][::-1] + first[:6]


def test_validation_and_what_a_model_holds_are_no_samples(tmp_path: Path) -> None:
    loop = Loop()
    inner = loop.model
    loop.model = nn.Sequential(inner)
    loop.call = loop.seen.around(
        lambda model, x: inner.forward(x) if model is inner else _through(loop, x)
    )
    loop.epoch(ROWS[:4], ROWS[4:])
    loop.seen.pass_began("validation")
    with torch.no_grad():
        loop.call(loop.model, ROWS * 2)
    loop.seen.pass_began("train")
    assert [len(x) for x in loop.epochs(tmp_path, ended=True)] == [12]


def _through(loop: Loop, x: Tensor) -> Tensor:
    made: Tensor = loop.call(loop.model[0], x)  # type: ignore[index]
    return made


def test_batches_of_one_step_and_zeros_at_the_end_count_as_they_are(tmp_path: Path) -> None:
    padded = torch.cat([ROWS[1:], torch.zeros(11, 2)], dim=1)
    loop = Loop()
    loop.model = nn.Identity()
    loop.model.register_parameter("weight", nn.Parameter(torch.zeros(1)))
    loop.seen.pass_began("train")
    loop.step(ROWS[1:4], ROWS[4:])  # gradients of two are added
    assert loop.seen.alike
    loop.epoch(padded)
    assert not loop.seen.alike
    first, second = loop.epochs(tmp_path, ended=True)
    assert first == second and len(first) == 11


def test_an_epoch_that_does_not_end_is_told_by_its_first_rows(tmp_path: Path) -> None:
    loop = Loop(n_epochs=1, n_rows=6)
    done = [loop.epoch(ROWS[:4]), *(loop.step(ROWS[4:8]), loop.step(ROWS[:4]))]
    assert done == [False, False, True]  # twice as many as an epoch has
    assert loop.epochs(tmp_path) == []
    assert len(digests(samples_file(tmp_path, None))) == 6


def test_a_pass_in_a_thread_beside_the_loop_ends_no_epoch(tmp_path: Path) -> None:
    loop = Loop()
    loop.epoch(ROWS[:4])
    ahead = threading.Thread(target=loop.seen.pass_began, args=("train",))
    ahead.start()
    ahead.join()
    loop.step(ROWS[4:])
    assert [len(x) for x in loop.epochs(tmp_path, ended=True)] == [12]


def test_a_second_optimizer_ends_no_step_of_its_own(tmp_path: Path) -> None:
    loop = Loop()
    loop.epoch(ROWS[:4])
    assert not loop.step() and not loop.step(ROWS[4:])
    assert [len(x) for x in loop.epochs(tmp_path, ended=True)] == [12]
    unseen = Loop()
    unseen.seen.pass_began("train")
    assert [unseen.step() for _ in range(5)] == [False] * 4 + [True]


def test_what_has_no_rows_is_not_seen(tmp_path: Path) -> None:
    loop = Loop()
    loop.model = nn.Identity()
    loop.model.register_parameter("weight", nn.Parameter(torch.zeros(1)))
    assert loop.epoch(torch.tensor(1.0))
    assert loop.epochs(tmp_path, ended=True) == []
