"""What would break a run is found without drawing a sample."""

from __future__ import annotations

import functools
import io
import itertools
import multiprocessing as mp
import queue
import sqlite3
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    WeightedRandomSampler,
    get_worker_info,
)
from torch.utils.data.distributed import DistributedSampler

from loaderdoctor.instrument.batches import describe_batch, holds_others
from loaderdoctor.instrument.dataset.pickling import trial_pickle
from loaderdoctor.instrument.dataset.safety import safety
from tests.instrument.trial_cases import Sharded, Squares, Unsharded


class Holding(Dataset[int]):
    """A dataset with something in an attribute."""

    def __init__(self, held: Any = None) -> None:
        self.held = held

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        raise AssertionError("a sample was drawn")


def init(worker: int) -> None:
    torch.manual_seed(worker)


def test_an_ordinary_loader_is_safe() -> None:
    found = safety(DataLoader(Squares(), worker_init_fn=init))
    assert found.pickles
    assert found.pickle_error is None
    assert not found.cuda_tensors
    assert found.open_handles == ()
    assert not found.unsharded_iterable
    assert not found.one_pass


# ------------------------------------------------------------------ pickling


class Closing(Holding):
    """Its file is closed where it is pickled, and opened again in a worker."""

    def __getstate__(self) -> dict[str, Any]:
        self.held.close()
        return {}


def test_the_scripts_own_code_is_not_called_where_it_would_not_run(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.touch()
    for within in (False, True):
        with path.open() as file:
            made: Dataset[int] = Holding(Closing(file)) if within else Closing(file)
            found = safety(DataLoader(made), calls_own=False)
            assert not file.closed
            assert found.pickles is None
            assert "not known: Closing has code of its own" in (found.pickle_error or "")
            safety(DataLoader(made))
            assert file.closed
    assert safety(DataLoader(Holding()), calls_own=False).pickles


@pytest.mark.parametrize(
    "held",
    [lambda x: x, threading.Lock(), (i for i in range(3)), torch.ones(2).requires_grad_() * 2],
)
def test_what_does_not_pickle_is_named(held: Any) -> None:
    found = safety(DataLoader(Holding(held)))
    assert found.pickles is False
    assert found.pickle_error


def test_collate_and_worker_init_have_to_pickle_too() -> None:
    assert safety(DataLoader(Holding(), collate_fn=lambda x: x)).pickles is False
    assert safety(DataLoader(Holding(), worker_init_fn=lambda _: None)).pickles is False


@pytest.mark.parametrize(
    "make",
    [
        lambda: mp.get_context("spawn").Lock(),
        lambda: mp.get_context("spawn").Value("i", 3),
        lambda: mp.get_context("spawn").Queue(),
        lambda: functools.partial(init, 3),
    ],
)
def test_what_only_a_starting_process_may_send_is_allowed(make: Callable[[], Any]) -> None:
    assert trial_pickle(make()).error is None


@pytest.mark.skipif(sys.version_info < (3, 11, 5), reason="older Pythons let spawn take it")
def test_a_lock_of_fork_is_refused_as_spawn_would() -> None:
    assert trial_pickle(mp.get_context("fork").Lock()).pickles is False


def test_large_data_is_counted_without_a_copy() -> None:
    huge = np.lib.stride_tricks.as_strided(np.zeros(1), (10**12,), (0,))
    found = trial_pickle([huge, torch.zeros(1).expand(10**12), torch.zeros(1000)])
    assert found.pickles
    assert found.n_bytes >= 8 * 10**12
    assert found.shared_bytes >= 4 * 10**12


def test_patience_ends_and_says_so() -> None:
    found = trial_pickle([str(i) for i in range(10**6)], limit_bytes=2**20)
    assert found.pickles is None
    assert found.error is not None
    assert "not known" in found.error
    slow = trial_pickle([str(i) for i in range(10**6)], limit_s=0.0)
    assert slow.pickles is None


# ------------------------------------------------------------------ open files


def test_open_files_are_named_where_they_are_held(tmp_path: Path) -> None:
    text = tmp_path / "data.txt"
    text.write_text("1")
    database = sqlite3.connect(tmp_path / "data.db")
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive, text.open() as file:
        assert safety(DataLoader(Holding(file))).open_handles == ("held (io.TextIOWrapper)",)
        assert safety(DataLoader(Holding([archive]))).open_handles == ("held[0] (zipfile.ZipFile)",)
        inner = safety(DataLoader(Holding(Holding(database)))).open_handles
        assert inner == ("held.held (sqlite3.Connection)",)
    assert safety(DataLoader(Holding(file))).open_handles == ()  # closed meanwhile
    assert safety(DataLoader(Holding(io.BytesIO(b"")))).open_handles == ()
    database.close()


def test_h5py_files_are_known_by_their_type() -> None:
    file = type("File", (), {"__module__": "h5py._hl.files"})
    assert safety(DataLoader(Holding({"a": file()}))).open_handles == ("held['a'] (h5py.File)",)


# ------------------------------------------------------------------ sharding


class AsksInAHelper(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(*_share()))


def _share() -> tuple[int, int]:
    info = get_worker_info()
    return (0, 16) if info is None else (info.id, info.id + 1)


class Decorated(IterableDataset[int]):
    @torch.no_grad()
    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        yield from range(0 if info is None else info.id, 8, 1 if info is None else info.num_workers)


class Wrapping(IterableDataset[int]):
    def __init__(self, inner: Any) -> None:
        self.stages = [inner]

    def __iter__(self) -> Iterator[int]:
        return iter(self.stages[0])


def shard(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.first = worker  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("loader", "unsharded"),
    [
        (DataLoader(Unsharded()), True),
        (DataLoader(Wrapping(Unsharded())), True),
        (DataLoader(Unsharded(), worker_init_fn=init), True),
        (DataLoader(Sharded()), False),
        (DataLoader(AsksInAHelper()), False),
        (DataLoader(Decorated()), False),
        (DataLoader(Wrapping(Sharded())), False),
        (DataLoader(Unsharded(), worker_init_fn=shard), False),
        (DataLoader(Squares()), False),
    ],
)
def test_iterable_datasets_that_do_not_share_their_work_are_found(
    loader: DataLoader[Any], unsharded: bool
) -> None:
    assert safety(loader).unsharded_iterable is unsharded


# ------------------------------------------------------------------ one pass


class OwnIterator(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        raise AssertionError("a sample was drawn")


class DecoratedIterator(OwnIterator):
    @torch.no_grad()
    def __iter__(self) -> Iterator[int]:
        return self


class Rewinding(OwnIterator):
    """Its own iterator, but each pass starts anew."""

    def __iter__(self) -> Iterator[int]:
        self.at = 0
        return self


class Reads(IterableDataset[int]):
    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Iterator[int]:
        yield from self.source


class Seeks(Reads):
    def __iter__(self) -> Iterator[int]:
        self.source.seek(0)
        yield from self.source


class Counting(Sampler[int]):
    def __init__(self) -> None:
        self.consumed = 0

    def __iter__(self) -> Iterator[int]:
        for i in range(self.consumed, 4):
            self.consumed += 1
            yield i


class Reseeding(Sampler[int]):
    def __init__(self) -> None:
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        return iter(range(4))


class Resumable(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))

    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None: ...


@pytest.mark.parametrize(
    ("make", "one_pass"),
    [
        (lambda: DataLoader(OwnIterator()), True),
        (lambda: DataLoader(DecoratedIterator()), True),
        (lambda: DataLoader(Reads(i for i in range(4))), True),
        (lambda: DataLoader(Reads(map(int, "123"))), True),
        (lambda: DataLoader(Reads(queue.Queue())), True),
        (lambda: DataLoader(Reads(itertools.count())), True),
        (lambda: DataLoader(Reads(iter([1])), batch_size=2), True),
        (lambda: DataLoader(Rewinding()), False),
        (lambda: DataLoader(Reads([1, 2])), False),
        (lambda: DataLoader(Unsharded()), False),
        (lambda: DataLoader(Squares(), sampler=Counting()), True),
        (lambda: DataLoader(Squares(), batch_sampler=BatchSampler(Counting(), 2, False)), True),
        (lambda: DataLoader(Squares(), sampler=Resumable()), True),
        (lambda: DataLoader(Squares(), batch_sampler=iter([[1], [2]])), True),
        (lambda: DataLoader(Squares(), sampler=Reseeding()), False),
        (lambda: DataLoader(Squares(), shuffle=True), False),
        (lambda: DataLoader(Squares(), sampler=[3, 1, 2]), False),
        (lambda: DataLoader(Squares(), sampler=WeightedRandomSampler([0.5] * 4, 4)), False),
        (lambda: DataLoader(Squares(), sampler=DistributedSampler(Squares(), 2, 0)), False),
        (
            lambda: DataLoader(
                Squares(), batch_sampler=BatchSampler(SequentialSampler(range(4)), 2, True)
            ),
            False,
        ),
        (lambda: DataLoader(Squares(), sampler=RandomSampler(Squares())), False),
    ],
)
def test_what_can_be_had_only_once_is_found(
    make: Callable[[], DataLoader[Any]], one_pass: bool
) -> None:
    found = safety(make())
    assert found.one_pass is one_pass
    assert (found.one_pass_reason is not None) is one_pass


def test_a_dataset_reading_on_from_an_open_file_is_one_pass_unless_it_seeks(
    tmp_path: Path,
) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("1\n2\n")
    with path.open() as file:
        assert safety(DataLoader(Reads(file))).one_pass
        assert not safety(DataLoader(Seeks(file))).one_pass


# ------------------------------------------------------------------ batches


def test_a_batch_is_described_tensor_by_tensor() -> None:
    image, label = describe_batch({"x": torch.zeros(2, 3), "more": (torch.ones(2).long(), "a")})
    assert (image.path, image.shape, image.dtype, image.n_bytes) == ("['x']", (2, 3), "float32", 24)
    assert (label.path, label.dtype, label.device, label.pinned) == (
        "['more'][0]",
        "int64",
        "cpu",
        False,
    )
    assert describe_batch(["no", "tensors"]) == ()


@pytest.mark.parametrize(
    ("batch", "holds"),
    [
        ([torch.zeros(2), torch.zeros(2)], False),
        ({"x": torch.zeros(2)}, False),
        (torch.zeros(2), False),
        ([torch.zeros(2), ("a", "b")], True),
        ((torch.zeros(2), 2), True),
        ({"x": torch.zeros(2), "path": ["a", "b"]}, True),
    ],
)
def test_names_beside_the_tensors_of_a_batch_are_seen(batch: Any, holds: bool) -> None:
    assert holds_others(batch) is holds
