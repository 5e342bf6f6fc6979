"""Batches of whole rows: the loader's own, bit for bit, or refused with the reason."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.dataset import rows, states
from loaderdoctor.instrument.dataset.rows import row_batches
from loaderdoctor.settings import Settings
from tests.instrument.axis_cases import Listed, digests, plainly, taken
from tests.instrument.opening import reason
from tests.instrument.trial_cases import Squares

N = 50


class Rows(Dataset[Any]):
    """`made(self, i)` of arrays that it holds; their rows are all different."""

    def __init__(self, made: Callable[[Any, int], Any], n: int = N) -> None:
        self.n = n
        self.x = np.arange(n * 12, dtype=np.float64).reshape(n, 3, 4)
        self.y = [i * 7 % 13 for i in range(n)]
        self.scores = [i / 3 for i in range(n)]
        self.parts = {"mask": torch.arange(n * 3).reshape(n, 3) % 2 == 0}
        self.made = made

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> Any:
        return self.made(self, i)


def two(n: int = N) -> TensorDataset:
    return TensorDataset(torch.randn(n, 2, 3), torch.arange(n))


def as_tensor(self: Any, i: int) -> Any:
    return torch.from_numpy(self.x[i]).float(), self.y[i]


def as_dict(self: Any, i: int) -> Any:
    return {"x": self.x[i], "mask": self.parts["mask"][i], "score": self.scores[i]}


@pytest.mark.parametrize(
    "dataset",
    [
        two(),
        Subset(two(), range(40, 3, -2)),
        Subset(Subset(two(), list(range(30))), [5, 5, 1, 29, 0, 7, 12]),
        Rows(as_tensor),
        Rows(as_dict),
        Rows(lambda self, i: self.x[i]),
    ],
    ids=["tensors", "subset", "subset of a subset", "tuple", "dict", "alone"],
)
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_batches_are_the_loaders_own(dataset: Any, workers: int) -> None:
    def loader() -> DataLoader[Any]:
        draws = torch.Generator().manual_seed(3)
        return DataLoader(dataset, batch_size=8, shuffle=True, generator=draws)

    n = 2 * len(loader())  # the last of an epoch is a short one
    own = [x for _ in range(2) for x in plainly(once, n)] if (once := loader()) else []
    assert digests(taken(loader(), Settings(batched=True, num_workers=workers), n)) == own[:n]


def test_a_collate_function_of_the_users_own_may_do_what_keeps_rows() -> None:
    def collate(samples: list[Any]) -> dict[str, Tensor]:
        x, y = default_collate(samples)
        return {"labels": y, "x": x}

    loader = DataLoader(two(), batch_size=8, collate_fn=collate)
    found = row_batches(loader.dataset, collate, 8)
    assert list(found.__getitems__([3, 1])) == ["labels", "x"]
    assert digests(taken(loader, Settings(batched=True), 7)) == plainly(loader, 7)


def noisy(self: Any, i: int) -> Any:
    return torch.from_numpy(self.x[i]) + torch.randn(())


def drawing_in_vain(self: Any, i: int) -> Any:
    random.random()
    return self.x[i]


def changed_for_a_few(self: Any, i: int) -> Any:
    return self.x[i] + (i % 10 == 9)


def named(self: Any, i: int) -> Any:
    return self.x[i], f"sample {i}"


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (noisy, "drawn at random"),
        (drawing_in_vain, "drawn at random"),
        (changed_for_a_few, "made, not looked up"),
        (lambda self, i: self.x[i] / 255, "made, not looked up"),
        (lambda self, i: self.x[(i + 1) % N], "made, not looked up"),
        (named, "differ from the loader's own"),
    ],
)
def test_samples_that_are_no_rows_are_refused(made: Any, why: str) -> None:
    with pytest.raises(TrialRefused, match=why):
        row_batches(Rows(made), default_collate, 8)


def test_a_tensor_without_rows_is_refused() -> None:
    def collate(samples: list[Tensor]) -> dict[str, Tensor]:
        return {"x": torch.stack(samples), "n": torch.tensor(float(len(samples)))}

    dataset = Rows(lambda self, i: torch.from_numpy(self.x[i]))
    vars(dataset)["weights"] = torch.ones(N)
    with pytest.raises(TrialRefused, match="n'] of a batch has no rows"):
        row_batches(dataset, collate, 8)


def test_other_loaders_are_refused(tmp_path: Path) -> None:
    batched = Settings(batched=True)
    assert "holds no array" in reason(DataLoader(Squares(), batch_size=4), batched)
    assert "no rows of an array" in reason(DataLoader(Listed(tmp_path), batch_size=4), batched) or (
        "holds no array" in reason(DataLoader(Listed(tmp_path), batch_size=4), batched)
    )
    assert "batch_size=None" in reason(DataLoader(two(), batch_size=None), batched)

    class Whole(TensorDataset):
        def __getitems__(self, indices: list[int]) -> Any:
            return [self[i] for i in indices]

    assert "__getitems__" in reason(DataLoader(Whole(torch.zeros(9, 2)), batch_size=4), batched)

    def padded(samples: list[Any]) -> Tensor:
        return torch.stack([x for x, _ in samples] + [torch.zeros(2, 3)])

    assert "made, not looked up" in reason(
        DataLoader(two(), batch_size=4, collate_fn=padded), batched
    )


def test_a_change_in_place_is_seen_and_a_batch_is_no_view() -> None:
    x = torch.zeros(20, 3)
    found = row_batches(TensorDataset(x), default_collate, 4)
    batch = found.__getitems__([0, 1, 2, 3])
    x += 1
    assert batch[0].eq(0).all() and found.__getitems__([0])[0].eq(1).all()
    batch[0] += 5
    assert x.eq(1).all()


def test_looking_draws_nothing_from_the_loops_generators() -> None:
    before = states()
    with pytest.raises(TrialRefused):
        row_batches(Rows(noisy), default_collate, 8)
    assert states() == before


def changed_for_one_in_20(self: Any, i: int) -> Any:
    time.sleep(0.004)  # the time to compare is up after some 120 of them
    return self.x[i] + (i % 20 == 19)


@pytest.mark.parametrize("batch_size", [1, 2, 32])
def test_no_fewer_than_200_samples_are_compared(batch_size: int) -> None:
    asked: set[int] = set()

    def looked_up(self: Any, i: int) -> Any:
        asked.add(i)
        return self.x[i]

    many = Rows(looked_up, 1000)
    row_batches(many, default_collate, batch_size)
    assert len(asked) >= 200
    with pytest.raises(TrialRefused, match="made, not looked up"):
        row_batches(Rows(changed_for_one_in_20, 1000), default_collate, batch_size)


def test_slow_samples_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(self: Any, i: int) -> Any:
        time.sleep(0.002)
        return self.x[i]

    monkeypatch.setattr(rows, "GIVE_UP_S", 0.02)
    with pytest.raises(TrialRefused, match="too slow to be rows"):
        row_batches(Rows(slow, 1000), default_collate, 1)


def test_for_a_loop_with_workers_a_copy_is_asked_and_the_originals_arrays_are_given() -> None:
    def told(self: Any, i: int) -> Any:
        self.asked = True
        return self.x[i]

    dataset = Rows(told)
    loader = DataLoader(Subset(dataset, range(5, 25)), batch_size=4, num_workers=1)
    found = row_batches(loader.dataset, default_collate, 4, on_copy=True)
    assert not hasattr(dataset, "asked")
    dataset.x += 1
    assert torch.equal(found.__getitems__([2]), torch.from_numpy(dataset.x[[7]]))
