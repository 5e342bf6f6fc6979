"""Trials with real workers: the same data, the settings asked for, and nothing left behind."""

from __future__ import annotations

import gc
import itertools
import threading
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    SequentialSampler,
)

from loaderdoctor.instrument.trial.open_trial import open_trial
from loaderdoctor.instrument.trial.trial_checks import default_start_method, loader_settings
from loaderdoctor.settings import Settings
from tests.instrument import trial_cases as cases
from tests.instrument.opening import ids, opened
from tests.instrument.trial_cases import Squares

pytestmark = pytest.mark.usefixtures("nothing_is_left")

EACH_WAY = [
    Settings(),
    Settings(num_workers=2),
    Settings(num_workers=3, prefetch_factor=1, persistent_workers=True),
    Settings(num_workers=1, start_method="spawn", persistent_workers=True),
    Settings(num_workers=1, start_method="forkserver"),
    Settings(background="host"),
    Settings(num_workers=2, background="host"),
    Settings(num_workers=2, background="host", persistent_workers=True),
]


def _quick(settings: Settings) -> Any:
    """A case of its own; one start method that is slow to start stands for both."""
    slow = (pytest.mark.slow,) if settings.start_method == "forkserver" else ()
    return pytest.param(settings, id=settings.label(), marks=slow)


@pytest.mark.parametrize("settings", [_quick(x) for x in EACH_WAY])
def test_every_batch_of_every_epoch_comes_once_and_in_order(settings: Settings) -> None:
    source = opened(DataLoader(Squares(), batch_size=4), settings)
    try:
        for _ in range(2):
            assert ids(source, 8) == list(range(32))
        assert source.startup_ns is not None
        squares, index = source.next_batch()
        assert torch.equal(squares[:, 0], index.double().square().float())
    finally:
        source.close()
        source.close()
    with pytest.raises(StopIteration):
        source.next_batch()


@pytest.mark.parametrize("settings", [_quick(x) for x in EACH_WAY[1:]])
def test_closing_in_the_middle_leaves_no_worker_thread_or_batch(settings: Settings) -> None:
    source = opened(DataLoader(Squares(), batch_size=4), settings)
    batch = weakref.ref(source.next_batch()[0])
    source.close()
    gc.collect()
    assert batch() is None


def test_workers_are_those_asked_for_and_persist_only_when_asked() -> None:
    def pids(settings: Settings, n_epochs: int) -> list[set[int]]:
        source = opened(DataLoader(cases.WorkerIds(), batch_size=4), settings)
        try:
            return [
                {pid for _ in range(8) for pid in source.next_batch().tolist()}
                for _ in range(n_epochs)
            ]
        finally:
            source.close()

    first, second = pids(Settings(num_workers=2), 2)
    assert len(first) == len(second) == 2
    assert not first & second
    first, second = pids(Settings(num_workers=2, persistent_workers=True), 2)
    assert first == second


def test_the_users_own_settings_hold_where_the_trial_says_nothing() -> None:
    made: list[DataLoader[Any]] = []

    def watched(loader: DataLoader[Any]) -> Any:
        made.append(loader)
        return cases.raw_iterator(loader)

    generator = torch.Generator()
    own = DataLoader(
        Squares(), batch_size=4, num_workers=2, prefetch_factor=3, persistent_workers=True,
        drop_last=True, timeout=17, generator=generator, shuffle=True, in_order=False,
    )  # fmt: skip
    source = open_trial(own, Settings(num_workers=1), device=None, transfers=(), open_iter=watched)
    source.close()
    (trial,) = made
    assert (trial.num_workers, trial.prefetch_factor, trial.timeout) == (1, 3, 17)
    assert (trial.persistent_workers, trial.drop_last, trial.in_order) == (True, True, False)
    assert trial.generator is generator
    assert trial.sampler is own.sampler
    assert trial.dataset is own.dataset
    assert own._iterator is None
    source = open_trial(own, Settings(num_workers=0), device=None, transfers=(), open_iter=watched)
    source.close()
    assert loader_settings(made[-1]) == Settings(num_workers=0, pin_memory=False)
    known = loader_settings(own)
    assert known.start_method == default_start_method()
    assert (known.num_workers, known.prefetch_factor, known.in_order) == (2, 3, False)
    assert (known.persistent_workers, known.pin_memory) == (True, False)


class Endless(DataLoader[Any]):
    """Keeps one iterator for ever, as loaders of some projects do."""

    def __iter__(self) -> Any:
        return itertools.cycle([None])


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(Squares(), batch_sampler=BatchSampler(SequentialSampler(range(32)), 4, False)),
        DataLoader(Squares(), sampler=range(32), batch_size=4),
        Endless(Squares(), batch_size=4),
    ],
)
def test_samplers_and_subclasses_are_opened_as_plain_loaders(loader: DataLoader[Any]) -> None:
    source = opened(loader, Settings(num_workers=1))
    assert ids(source, 8) == list(range(32))
    source.close()


def test_a_loader_without_batching_is_opened_without() -> None:
    source = opened(DataLoader(Squares(), batch_size=None), Settings(num_workers=1))
    assert [source.next_batch()[1] for _ in range(32)] == list(range(32))
    source.close()


def test_batches_come_in_any_order_where_asked() -> None:
    class Uneven(Squares):
        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            self.sleep_s = 0.3 if index == 0 else 0.0
            return super().__getitem__(index)

    source = opened(DataLoader(Uneven(), batch_size=4), Settings(num_workers=2, in_order=False))
    order = ids(source, 8)
    source.close()
    assert order != list(range(32))
    assert sorted(order) == list(range(32))


def test_the_background_thread_is_a_prefetch_generator() -> None:
    source = opened(DataLoader(Squares(), batch_size=4), Settings(background="host"))
    source.next_batch()
    (thread,) = cases.background_threads()
    assert type(thread).__module__.startswith("prefetch_generator")
    source.close()
    assert not thread.is_alive()


def test_opening_warns_of_nothing(recwarn: pytest.WarningsRecorder) -> None:
    source = opened(DataLoader(Squares(), batch_size=4), Settings(num_workers=3))
    source.close()
    assert [str(warning.message) for warning in recwarn] == []
    assert threading.active_count() >= 1
