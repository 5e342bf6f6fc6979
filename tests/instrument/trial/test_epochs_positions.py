"""A trial of data that lies in order goes on from where the loop is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.trial.data_axes import TrialData
from loaderdoctor.instrument.trial.epochs import FromHere, from_batch
from loaderdoctor.settings import Settings
from tests.instrument.watched import Trainer, request, watch

N = 40


def data_of(loader: DataLoader[Any]) -> TrialData:
    return TrialData(
        dataset=loader.dataset,
        sampler=loader.sampler,
        batch_size=loader.batch_size,
        collate=loader.collate_fn,
    )


def test_the_first_epoch_goes_on_and_later_ones_are_whole() -> None:
    sampler = FromHere(6, 4)
    assert [list(sampler), list(sampler)] == [[4, 5], [0, 1, 2, 3, 4, 5]]
    assert len(sampler) == 6


def test_only_a_known_order_can_be_gone_on_with() -> None:
    ordered: DataLoader[Any] = DataLoader(list(range(N)), 4)  # type: ignore[arg-type]
    own = data_of(ordered)
    assert next(iter(from_batch(ordered, own, 3).sampler)) == 12
    assert from_batch(ordered, own, 0) is own
    assert from_batch(ordered, own, 10) is own  # the epoch is over
    shuffled: DataLoader[Any] = DataLoader(list(range(N)), 4, shuffle=True)  # type: ignore[arg-type]
    drawn = data_of(shuffled)
    assert from_batch(shuffled, drawn, 3) is drawn
    single: DataLoader[Any] = DataLoader(list(range(N)), batch_size=None)  # type: ignore[arg-type]
    assert from_batch(single, data_of(single), 3).sampler is single.sampler


class Kept(list[int]):
    """A dataset of which so many samples are in memory."""

    n_kept = 10


def test_the_first_samples_do_not_stand_for_later_ones() -> None:
    ordered: DataLoader[Any] = DataLoader(list(range(N)), 4)  # type: ignore[arg-type]
    in_part = replace(data_of(ordered), dataset=Kept(range(N)))
    with pytest.raises(TrialRefused, match="in the dataset's order"):
        from_batch(ordered, in_part, 3)
    assert from_batch(ordered, in_part, 0) is in_part  # batches alike, or at its beginning
    whole = replace(in_part, dataset=list(range(N)))
    assert next(iter(from_batch(ordered, whole, 3).sampler)) == 12


@pytest.mark.parametrize("settings", [Settings(num_workers=1), Settings(background="host")])
def test_a_trial_of_sorted_lengths_has_those_that_the_loop_is_at(settings: Settings) -> None:
    lengths: list[int] = []

    def loop() -> None:
        trainer = Trainer()
        samples = [torch.full((i // 2 + 1, 4), 1.0) for i in range(600)]  # two to a batch, alike
        for x in DataLoader(samples, 2):  # type: ignore[arg-type]
            lengths.append(x.shape[1])
            trainer.step(x[0])

    found = watch(loop, request(1, "plain", 60), request(2, "trial", 8, settings=settings))
    assert [w.status for w in found.windows] == ["ok", "ok"]
    # From the 60th batch on no batch is of the first ones again.
    assert min(lengths[60:100]) > 30


def test_what_was_substituted_does_not_move_the_loops_place() -> None:
    lengths: list[int] = []

    def loop() -> None:
        trainer = Trainer()
        samples = [torch.full((i // 2 + 1, 4), 1.0) for i in range(600)]
        for x in DataLoader(samples, 2):  # type: ignore[arg-type]
            lengths.append(x.shape[1])
            trainer.step(x[0])

    settings = Settings(num_workers=1)
    found = watch(
        loop,
        request(1, "plain", 40),
        request(2, "trial", 30, settings=settings),
        request(3, "trial", 30, settings=settings),
        request(4, "plain", 20),
    )
    assert [w.status for w in found.windows] == ["ok"] * 4
    # Each trial begins where the loop's own data is, not behind the batches of the trial
    # before, and the loop goes on from there too: batches of the same place came three times.
    assert lengths.count(75) == 3
