"""A copy that may be tried: nothing of it reaches the original, and large data is not copied."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, default_collate

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.dataset import safety as copying
from loaderdoctor.instrument.dataset.safety import all_open_handles, own_copy


class Held(Dataset[Any]):
    def __init__(self, **held: Any) -> None:
        vars(self).update(held)

    def __len__(self) -> int:
        return 4

    def joined(self, samples: list[Any]) -> Any:
        return self, samples


def test_wrapped_datasets_and_a_collate_function_that_is_a_method_are_copied() -> None:
    inner: Any = Held(seen={}, change=lambda x: x + 1)
    made, collate = own_copy(Subset(Subset(inner, [0, 1]), [1]), inner.joined)
    copy = made.dataset.dataset
    assert copy is not inner and type(copy) is type(inner) and collate([])[0] is copy
    copy.seen[3] = 4
    assert inner.seen == {} and copy.change(1) == 2
    assert own_copy(inner, default_collate)[1] is default_collate


def test_large_data_is_shared_and_small_is_not() -> None:
    large: dict[str, Any] = {
        "tensor": torch.zeros(2**19),
        "array": np.zeros(2**18),
        "raw": b"x" * (2**20 + 1),
        "names": ["a"] * 100_001,
    }
    small: dict[str, Any] = {"tensor": torch.zeros(9), "array": np.zeros(9), "names": ["a", "b"]}
    copy, _ = own_copy(Held(large=large, small=small), None)
    assert all(copy.large[name] is value for name, value in large.items())
    assert all(copy.small[name] is not value for name, value in small.items())
    assert copy.small["tensor"].eq(0).all() and copy.small["names"] == ["a", "b"]


def test_what_cannot_be_copied_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TrialRefused, match=r"Held can't be copied \(TypeError: .*generator"):
        own_copy(Held(stream=iter_of([1])), None)
    monkeypatch.setattr(copying, "COPY_LIMIT_BYTES", 1000)
    with pytest.raises(TrialRefused, match=r"can't be copied .* of objects"):
        own_copy(Held(pairs=[[str(i)] for i in range(100_000)]), None)


def iter_of(values: list[int]) -> Iterator[int]:
    yield from values


def test_a_lock_is_another_and_a_table_is_the_same() -> None:
    lock = threading.Lock()
    frame = pandas.DataFrame({"label": [1, 2]})
    with lock:
        copy: Any = own_copy(Held(lock=lock, frame=frame, notes=[{}] * 100_001), None)[0]
        assert not copy.lock.locked() and copy.frame is frame and len(copy.notes) == 100_001


def test_open_files_of_wrapped_datasets_are_seen(tmp_path: Path) -> None:
    with (tmp_path / "data").open("w") as file:
        inside = Held(file=file)
        assert all_open_handles(Subset(Subset(inside, [0]), [0]))
        assert all_open_handles(ConcatDataset([Held(), Subset(inside, [0])]))
    assert all_open_handles(Subset(Subset(inside, [0]), [0])) == ()
