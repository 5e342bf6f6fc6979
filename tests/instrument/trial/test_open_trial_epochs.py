"""Where a trial's epochs end: what a boundary costs, and what is raised or hangs before one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.batches.replay_buffer import ReplayBuffer
from loaderdoctor.instrument.batches.source import EndlessBatches
from loaderdoctor.instrument.trial.epochs import EpochSource
from loaderdoctor.instrument.trial.open_trial import measure_boundary
from loaderdoctor.settings import Settings
from tests.instrument import trial_cases as cases
from tests.instrument.opening import ids, opened
from tests.instrument.trial_cases import Squares

pytestmark = pytest.mark.usefixtures("nothing_is_left")


def test_each_reopening_is_recorded_with_its_parts() -> None:
    source = opened(DataLoader(Squares(8), batch_size=4), Settings(num_workers=1), loader_id="a:1")
    assert source.drop(5) == 5
    source.close()
    boundaries = source.boundaries  # type: ignore[attr-defined]
    assert [boundary.loader for boundary in boundaries] == ["a:1"] * 2
    assert all(b.create_ns > 0 and b.first_wait_ns > 0 and b.teardown_ns > 0 for b in boundaries)


@pytest.mark.alone
@pytest.mark.parametrize("background", ["off", "host"])
def test_persistent_workers_pay_less_at_the_boundary(background: Any) -> None:
    def boundary(*, persistent: bool) -> int:
        source = opened(
            DataLoader(Squares(64), batch_size=4),
            Settings(num_workers=2, persistent_workers=persistent, background=background),
        )
        try:
            return min(measure_boundary(source) for _ in range(3))
        finally:
            source.close()

    assert boundary(persistent=True) < boundary(persistent=False)


@pytest.mark.alone
def test_the_boundary_holds_the_first_batch_beyond_a_steady_fetch() -> None:
    """With one worker a batch takes 4 x 10 ms either way, so the sleep is in no boundary."""
    source = opened(DataLoader(Squares(400, sleep_s=0.01), batch_size=4), Settings(num_workers=0))
    measured = measure_boundary(source)
    source.close()
    assert measured < 0.5 * 4 * 0.01 * 1e9


def test_recorded_batches_have_no_boundary() -> None:
    assert measure_boundary(ReplayBuffer().as_source()) == 0


def test_an_iterable_dataset_is_measured_and_opened_again() -> None:
    source = opened(DataLoader(cases.Sharded(), batch_size=2), Settings(num_workers=2))
    assert sorted(i for _ in range(8) for i in source.next_batch().tolist()) == list(range(16))
    assert measure_boundary(source) >= 0
    source.close()


def test_an_empty_epoch_ends_the_source() -> None:
    source = opened(DataLoader(Squares(0), batch_size=4), Settings())
    assert source.drop(3) == 0
    with pytest.raises(StopIteration):
        source.next_batch()
    source.close()


@pytest.mark.parametrize(
    "settings", [Settings(), Settings(num_workers=1), Settings(background="host")]
)
def test_what_the_dataset_raises_reaches_the_caller(settings: Settings) -> None:
    source = opened(DataLoader(cases.Failing(), batch_size=2), settings)
    with pytest.raises(ValueError, match="sample 3 is broken"):
        source.drop(4)
    source.close()


@pytest.mark.parametrize(
    "settings",
    [
        Settings(num_workers=2),
        Settings(num_workers=2, persistent_workers=True),
        Settings(num_workers=2, background="host"),
        pytest.param(Settings(num_workers=1, start_method="spawn"), marks=pytest.mark.slow),
    ],
    ids=Settings.label,
)
def test_a_hanging_worker_ends_in_a_timeout_and_is_killed(settings: Settings) -> None:
    limit_s = 20.0 if settings.start_method else 1.0
    source = opened(DataLoader(Squares(hang_at=5), batch_size=4), settings, fetch_limit_s=limit_s)
    assert ids(source, 1) == [0, 1, 2, 3]
    with pytest.raises(TimeoutError):
        source.next_batch()
    source.close()


# One iterator for all epochs.


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


def test_one_iterator_for_an_iterable_dataset_is_refused_with_the_reason() -> None:
    loader: DataLoader[Any] = DataLoader(Stream(), batch_size=2)
    with pytest.raises(TrialRefused, match=r"iterable|re-opened|again"):
        opened(loader, Settings(keep_iterator=True)).close()
