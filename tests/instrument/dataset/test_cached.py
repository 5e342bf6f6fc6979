"""A brief trial of samples kept in memory: of some of them, and only where they repeat."""

from __future__ import annotations

import re
import time
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, SequentialSampler
from torchvision import transforms

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.dataset import cached
from loaderdoctor.instrument.dataset.cached import same, varying_sample
from loaderdoctor.settings import Settings
from tests.instrument.axis_cases import Pictures, taken
from tests.instrument.opening import opened

CACHE = Settings(cache=True)


class Slow(Dataset[Tensor]):
    """Samples that take a while; counts those made."""

    def __init__(self, n: int, seconds: float) -> None:
        self.n, self.seconds, self.n_made = n, seconds, 0

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Tensor:
        self.n_made += 1
        time.sleep(self.seconds)
        return torch.tensor([float(index)])


def test_some_samples_stand_for_all_and_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached, "COMPARE_LIMIT_S", 0.0)
    notes: list[tuple[str, str]] = []
    dataset = Slow(200, 0.002)
    loader = DataLoader(dataset, batch_size=50)

    def measurement() -> Tensor:
        batches = taken(
            loader, CACHE, 4, cache_limit_s=0.06, note=lambda kind, text: notes.append((kind, text))
        )
        return torch.cat(batches).flatten()

    found = measurement()
    ((kind, text),) = notes
    kept = re.search(r"the first (\d+) of 200 samples", text)
    assert kind == "cache-in-part" and kept is not None
    n_kept = int(kept.group(1))
    assert cached.N_PROBED <= n_kept < 200
    assert found.tolist() == [float(i % n_kept) for i in range(200)]
    n_made = dataset.n_made
    assert torch.equal(measurement(), found)
    assert dataset.n_made == n_made


def test_all_samples_are_kept_where_there_is_time_for_them() -> None:
    dataset = Pictures(32)
    notes: list[str] = []
    loader = DataLoader(dataset, batch_size=4)
    batches = taken(loader, CACHE, 8, cache_limit_s=5.0, note=lambda kind, text: notes.append(kind))
    plain = list(DataLoader(Pictures(32), batch_size=4))
    assert all(torch.equal(a[0], b[0]) for a, b in zip(batches, plain, strict=True))
    assert notes == []


def test_a_part_that_foretells_too_many_bytes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached, "available_bytes", lambda: 40_000)
    with pytest.raises(TrialRefused, match="may be used"):
        opened(DataLoader(Slow(1000, 0.001), batch_size=4), CACHE, cache_limit_s=0.02)


def test_random_augmentation_is_refused_in_a_brief_trial_and_kept_where_asked_for() -> None:
    flipping = DataLoader(Pictures(32, transforms.RandomHorizontalFlip()), batch_size=4)
    with pytest.raises(TrialRefused, match="came out differently when it was made twice"):
        opened(flipping, CACHE, cache_limit_s=5.0)
    assert len(taken(flipping, CACHE, 2)) == 2  # a sweep that names the axis


class Seeded(Dataset[Tensor]):
    """Random by its own generator, seeded by the index or going on."""

    def __init__(self, seeded: bool) -> None:
        self.seeded, self.generator = seeded, np.random.default_rng(0)

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> Tensor:
        chance = np.random.default_rng(index) if self.seeded else self.generator
        return torch.from_numpy(chance.random(3))


def test_what_is_drawn_by_the_index_is_repeatable_and_what_goes_on_is_not() -> None:
    assert varying_sample(Seeded(seeded=True), 32) is None
    assert varying_sample(Seeded(seeded=False), 32) == 0


def test_a_rare_change_is_found_by_looking_at_many() -> None:
    class Rare(Seeded):
        def __getitem__(self, index: int) -> Tensor:
            if index != 62 or not self.generator.integers(1 << 30):
                return torch.zeros(1)
            return torch.tensor([self.generator.random()])

    assert varying_sample(Rare(seeded=False), 64) == 62


class Held:
    def __init__(self, x: Any) -> None:
        self.x = x


NAN = float("nan")


@pytest.mark.parametrize(
    ("a", "b", "alike"),
    [
        (torch.tensor([1.0, NAN]), torch.tensor([1.0, NAN]), True),
        (torch.tensor([1.0]), torch.tensor([1.0], dtype=torch.float64), False),
        (torch.zeros(2), torch.zeros(3), False),
        (torch.eye(3).to_sparse(), torch.eye(3).to_sparse(), True),
        (np.array([1, 2]), np.array([1, 2]), True),
        (np.array([1, 2]), np.array([1, 3]), False),
        ({"x": [1, (2, NAN)]}, {"x": [1, (2, NAN)]}, True),
        ({"x": 1}, {"y": 1}, False),
        ([1, 2], [1], False),
        ("a", "a", True),
        (1, 1.0, False),
        (Image.new("L", (2, 2)), Image.new("L", (2, 2)), True),
        (Image.new("L", (2, 2)), Image.new("L", (2, 2), 3), False),
        (Held(torch.ones(1)), Held(torch.ones(1)), True),
        (Held(torch.ones(1)), Held(torch.zeros(1)), False),
    ],
)
def test_samples_are_the_same_where_all_they_hold_is(a: Any, b: Any, alike: bool) -> None:
    assert same(a, b) is alike


class Named(Dataset[dict[str, Any]]):
    """Samples with a name; whole batches of them by `__getitems__` where asked for."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.full((2,), float(index)), "name": f"n{index}"}


class Batches(Named):
    def __getitems__(self, indexes: list[int]) -> Tensor:
        return torch.tensor(indexes)


class Lists(Named):
    def __getitems__(self, indexes: list[int]) -> list[dict[str, Any]]:
        return [{**self[i], "name": "several"} for i in indexes]


def _takes_apart(samples: list[dict[str, Any]]) -> dict[str, Any]:
    names = [sample.pop("name") for sample in samples]
    return {"x": torch.stack([sample["x"].add_(1) for sample in samples]), "names": names}


def _as_it_is(made: Any) -> Any:
    return made


@pytest.mark.parametrize("workers", [Settings(), Settings(num_workers=1, persistent_workers=True)])
def test_samples_stay_as_they_were_made_whatever_is_done_to_them(workers: Settings) -> None:
    loader = DataLoader(Named(), batch_size=4, collate_fn=_takes_apart)
    batches = taken(loader, CACHE.over(workers), 6)
    assert all(same(a, b) for a, b in zip(batches, [*loader] * 3, strict=True))

    source = opened(DataLoader(Named(), batch_size=None), CACHE.over(workers))
    try:
        for i in range(24):
            batch = source.next_batch()
            assert same(batch, Named()[i % 8])
            batch["x"].zero_()
            del batch["name"]
    finally:
        source.close()


def test_copies_are_alike_and_share_nothing() -> None:
    values: Any = [{"a": (torch.ones(2), 3, "x")}, np.ones(2), Image.new("L", (2, 2)), Held([1])]
    made = cached.fresh(values)
    assert same(made, values)
    made[0]["a"][0].zero_()
    made[1][:] = 0
    made[3].x.append(2)
    assert values[0]["a"][0].tolist() == values[1].tolist() == [1.0, 1.0]
    assert values[3].x == [1]


def test_what_makes_whole_batches_has_no_samples_to_keep() -> None:
    with pytest.raises(TrialRefused, match="whole batches"):
        opened(DataLoader(Batches(), batch_size=4, collate_fn=_as_it_is), CACHE)
    by_lists = BatchSampler(SequentialSampler(range(8)), 4, drop_last=False)
    with pytest.raises(TrialRefused, match="whole batches"):
        opened(DataLoader(Named(), batch_size=None, sampler=by_lists), CACHE)
    # Several samples at a time are samples, and torch asks for them so.
    loader = DataLoader(Lists(), batch_size=4)
    assert all(same(a, b) for a, b in zip(taken(loader, CACHE, 2), loader, strict=True))


def test_a_plain_loop_over_the_kept_samples_ends() -> None:
    kept: Any = cached.CachedDataset([10, 20, 30])
    assert list(iter(kept)) == [10, 20, 30]  # by IndexError: it has no __iter__
    assert kept[-1] == 30
