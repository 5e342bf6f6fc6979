"""One iterator for all epochs, and a loader drained alone: with real workers."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from loaderdoctor.instrument.session.drain import drained
from loaderdoctor.instrument.trial.endless import EndlessBatches
from loaderdoctor.instrument.trial.epochs import EpochSource
from loaderdoctor.instrument.trial.trials import TrialRefused
from loaderdoctor.instrument.wire.protocol import WindowRequest
from loaderdoctor.settings import Settings
from tests.instrument.opening import opened
from tests.instrument.trial_cases import Squares


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(8))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch_size", [4, None])
def test_every_epoch_is_whole_and_no_epoch_ends(workers: int, batch_size: int | None) -> None:
    loader: DataLoader[Any] = DataLoader(Squares(10), batch_size=batch_size)
    source = opened(loader, Settings(num_workers=workers, keep_iterator=True))
    try:
        assert isinstance(source, EpochSource)
        per_epoch = 3 if batch_size else 10
        seen = [
            i
            for _ in range(3 * per_epoch)
            for i in torch.as_tensor(source.next_batch()[1]).flatten().tolist()
        ]
        assert seen == list(range(10)) * 3
        assert source.boundaries == []
    finally:
        source.close()


def test_shuffled_epochs_differ_and_each_holds_every_sample() -> None:
    loader: DataLoader[Any] = DataLoader(Squares(12), batch_size=3, shuffle=True)
    source = opened(loader, Settings(keep_iterator=True))
    epochs = [[i for _ in range(4) for i in source.next_batch()[1].tolist()] for _ in range(3)]
    source.close()
    assert all(sorted(epoch) == list(range(12)) for epoch in epochs)
    assert epochs[0] != epochs[1] or epochs[1] != epochs[2]


def test_a_sampler_that_gives_nothing_ends() -> None:
    assert list(EndlessBatches([])) == []


def test_an_iterable_dataset_is_withheld_with_the_reason() -> None:
    loader: DataLoader[Any] = DataLoader(Stream(), batch_size=2)
    with pytest.raises(TrialRefused, match=r"iterable|re-opened|again"):
        opened(loader, Settings(keep_iterator=True)).close()


def test_a_drained_loader_gives_the_time_of_each_fetch() -> None:
    loader: DataLoader[Any] = DataLoader(Squares(40), batch_size=4)
    source = opened(loader, Settings())
    request = WindowRequest(id=7, mode="trial", n_steps=6, drain=True)
    deadline = time.perf_counter_ns() + 60 * 10**9
    done = drained(source, request, cycle=1, samples_per_batch=4.0, deadline=deadline)
    assert (done.status, done.n_steps, done.n_samples) == ("ok", 6, 24)
    assert sum(done.host_step_ns) == done.end_ns - done.start_ns
    assert done.startup_ns is not None
    # One cycle went first: the next batch is the eighth.
    assert source.next_batch()[1].tolist() == [28, 29, 30, 31]
    source.close()


def test_draining_ends_at_the_deadline_with_what_it_has() -> None:
    loader: DataLoader[Any] = DataLoader(Squares(40), batch_size=4)
    source = opened(loader, Settings())
    request = WindowRequest(id=7, mode="trial", n_steps=10**6, limit_s=0.1, drain=True)
    deadline = time.perf_counter_ns() + 10**8
    done = drained(source, request, cycle=1, samples_per_batch=4.0, deadline=deadline)
    assert done.status == "short"
    assert 0 < done.n_steps < 10**6
    source.close()
