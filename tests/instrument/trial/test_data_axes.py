"""The data axes with real workers: the batches they must not change are the same bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    Sampler,
    TensorDataset,
    default_collate,
)

from loaderdoctor.instrument.dataset import cached
from loaderdoctor.instrument.trial.data_axes import release
from loaderdoctor.settings import Settings
from tests.instrument import trial_cases as cases
from tests.instrument.axis_cases import (
    SAME_DATA,
    SAME_LOADING,
    WORKERS,
    Listed,
    Pictures,
    digests,
    plainly,
    taken,
)
from tests.instrument.on_meta import META
from tests.instrument.opening import reason
from tests.instrument.trial_cases import Squares, moved

pytestmark = pytest.mark.usefixtures("nothing_is_left")


@pytest.mark.parametrize("workers", WORKERS, ids=Settings.label)
@pytest.mark.parametrize("axis", SAME_DATA, ids=Settings.label)
def test_every_batch_is_the_plain_loaders_byte_for_byte_and_in_its_order(
    axis: Settings, workers: Settings, tmp_path: Path
) -> None:
    loader = DataLoader(Listed(tmp_path), batch_size=3)
    expected = plainly(loader, 6)
    assert digests(taken(loader, axis.over(workers), 12)) == expected * 2
    release(loader)


@pytest.mark.parametrize(
    "axis",
    [
        # New interpreters import torch again, and their order is in test_trials.py already.
        pytest.param(one, marks=pytest.mark.slow if one.start_method else ())
        for one in SAME_LOADING
    ],
    ids=lambda one: one.label(),
)
def test_how_batches_are_loaded_changes_no_byte_and_no_order(
    axis: Settings, tmp_path: Path
) -> None:
    def loader() -> DataLoader[Any]:
        mixed = RandomSampler(range(16), generator=torch.Generator().manual_seed(5))
        return DataLoader(Listed(tmp_path), batch_size=3, sampler=mixed)

    once = loader()
    expected = [digest for _ in range(2) for digest in plainly(once, 6)]
    assert len(set(expected)) == 12  # the second epoch is in another order
    assert digests(taken(loader(), axis, 12)) == expected


def test_a_shuffled_order_stays_the_samplers(tmp_path: Path) -> None:
    def loader() -> DataLoader[Any]:
        shuffle = RandomSampler(range(16), generator=torch.Generator().manual_seed(3))
        return DataLoader(Listed(tmp_path), batch_size=4, sampler=shuffle)

    expected = plainly(loader(), 4)
    for axis in (Settings(cache=True), Settings(storage="tmpfs"), Settings(storage="cold")):
        once = loader()
        assert digests(taken(once, axis, 4)) == expected
        release(once)


@pytest.mark.parametrize("workers", WORKERS, ids=Settings.label)
def test_the_first_part_of_the_dataset_is_an_epoch(workers: Settings) -> None:
    loader = DataLoader(Squares(32), batch_size=4)
    batches = taken(loader, Settings(portion=0.4).over(workers), 8)
    ids = [batch[1].tolist() for batch in batches]
    assert [i for batch in ids for i in batch] == [*range(13), *range(13)]


def test_shuffling_and_samplers_of_ones_own_stay_within_the_first_part() -> None:
    class Backwards(Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(31, -1, -1))

        def __len__(self) -> int:
            return 32

    batches = taken(
        DataLoader(Squares(32), batch_size=4, sampler=Backwards()), Settings(portion=0.25), 2
    )
    assert [i for batch in batches for i in batch[1].tolist()] == [7, 6, 5, 4, 3, 2, 1, 0]
    batches = taken(DataLoader(Squares(32), batch_size=4, shuffle=True), Settings(portion=0.25), 2)
    assert sorted(i for batch in batches for i in batch[1].tolist()) == list(range(8))


def test_another_batch_size_gives_the_same_samples_in_other_batches() -> None:
    loader = DataLoader(Squares(32), batch_size=4)
    batches = taken(loader, Settings(batch_size=16, num_workers=2), 2)
    assert [len(batch[1]) for batch in batches] == [16, 16]
    assert [i for batch in batches for i in batch[1].tolist()] == list(range(32))


def test_what_has_no_first_part_or_batch_size_is_withheld() -> None:
    iterable = DataLoader(cases.Unsharded(), batch_size=2)
    assert "iterable" in reason(iterable, Settings(portion=0.5))
    assert "iterable" in reason(iterable, Settings(cache=True))
    own = DataLoader(Squares(), batch_sampler=[[0, 1], [2, 3]])
    assert "batch_sampler" in reason(own, Settings(portion=0.5))
    assert "by the script" in reason(own, Settings(batch_size=8))
    whole = DataLoader(Squares(), batch_size=None, sampler=BatchSampler(range(4), 2, False))
    assert "whole batches" in reason(whole, Settings(portion=0.5))


def test_cached_samples_are_made_once_and_shared_by_forked_workers() -> None:
    dataset = Pictures(16)
    loader = DataLoader(dataset, batch_size=4)
    batches = taken(loader, Settings(cache=True), 12)
    assert dataset.counted == 16
    assert digests(batches[:4]) == digests(batches[4:8]) == digests(batches[8:])
    dataset.counted = 0
    taken(loader, Settings(cache=True, num_workers=2), 8)
    assert dataset.counted == 16


@dataclass
class ByValue(Dataset[Tensor]):
    """Datasets that compare by value, as dataclasses do, have no hash."""

    n: int

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor(float(index))


@pytest.mark.parametrize("dataset", [ByValue(8), np.arange(8.0), [float(i) for i in range(8)]])
def test_what_is_made_of_a_dataset_needs_no_hash_of_it(dataset: Any) -> None:
    loader = DataLoader(dataset, batch_size=4)
    expected = plainly(loader, 2)
    for settings in (Settings(), Settings(cache=True), Settings(portion=1.0)):
        assert digests(taken(loader, settings, 4)) == expected * 2
    release(loader)


@dataclass
class Collator:
    """As those of transformers: a dataclass, which has no hash."""

    turned: bool = False

    def __call__(self, samples: list[Any]) -> Any:
        return default_collate(samples[::-1] if self.turned else samples)


@pytest.mark.parametrize(
    "settings",
    [
        Settings(threads=2),
        Settings(packed=True),
        Settings(batched=True),
        Settings(cache=True, batched=True),
        Settings(uint8=True),
    ],
    ids=Settings.label,
)
def test_what_is_made_for_a_collate_function_needs_no_hash_of_it(settings: Settings) -> None:
    rows = TensorDataset(torch.rand(16, 3), torch.arange(16))
    loader = DataLoader(Pictures(16) if settings.uint8 else rows, 4, collate_fn=Collator())
    shape = (4, 3, 20, 20) if settings.uint8 else (4, 3)
    more = {"device": META, "transfers": (moved("0", shape, "float32"),)}
    for _ in range(2):
        if settings.packed or settings.uint8:  # what they give lies on the device
            taken(loader, settings, 4, **more)
        else:
            assert digests(taken(loader, settings, 4)) == plainly(loader, 4)
    release(loader)


def test_of_collate_functions_that_have_no_hash_each_is_looked_at() -> None:
    data = TensorDataset(torch.rand(16, 3))
    for _ in range(2):
        taken(DataLoader(data, 4, collate_fn=Collator()), Settings(batched=True), 4)
        turned = DataLoader(data, 4, collate_fn=Collator(turned=True))
        assert "not looked up" in reason(turned, Settings(batched=True))


def test_only_the_part_in_use_is_cached() -> None:
    dataset = Pictures(32)
    taken(DataLoader(dataset, batch_size=4), Settings(cache=True, portion=0.25), 4)
    assert dataset.counted == 8


def test_a_part_that_is_kept_as_rows_does_not_stand_for_the_whole() -> None:
    loader = DataLoader(Squares(32), batch_size=4)
    expected = plainly(loader, 8)
    rows = Settings(cache=True, batched=True)
    assert digests(taken(loader, Settings(portion=0.25).over(rows), 2)) == expected[:2]
    assert digests(taken(loader, rows, 8)) == expected


def test_a_cache_that_does_not_fit_or_takes_too_long_is_withheld(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(cached, "available_bytes", lambda: 10_000)
        assert "may be used" in reason(DataLoader(Pictures(32)), Settings(cache=True))
    monkeypatch.setattr(cached, "FILL_LIMIT_S", 1.0)
    slow = DataLoader(Squares(4000, sleep_s=0.02))
    assert "would take about" in reason(slow, Settings(cache=True))
    spawned = Settings(cache=True, num_workers=1, start_method="spawn")
    assert "not forked" in reason(DataLoader(Pictures(8)), spawned)


def test_nothing_of_the_users_own_is_changed(tmp_path: Path) -> None:
    dataset = Listed(tmp_path)
    pairs, transform = list(dataset.samples), dataset.transform
    before = dict(vars(dataset))
    loader = DataLoader(dataset, batch_size=4)
    for axis in (Settings(storage="tmpfs"), Settings(cache=True), Settings(portion=0.5)):
        taken(loader, axis, 2)
    assert vars(dataset) == before
    assert dataset.samples is dataset.imgs
    assert (dataset.samples, dataset.transform) == (pairs, transform)
    release(loader)
