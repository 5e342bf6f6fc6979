"""What forked workers copy of a dataset: the forecast, and what a child that reads it all takes."""

from __future__ import annotations

import os
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset

from loaderdoctor.instrument.dataset.containers import (
    LIMIT_S,
    MIN_BYTES,
    _own_memory_bytes,
    containers,
)
from loaderdoctor.instrument.system.processes import unique_bytes

N = 200_000
MIB = 2**20


class Held(Dataset[Any]):
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("no sample is made")


def read(value: Any) -> None:
    if isinstance(value, dict):
        for key, one in value.items():
            read(key)
            read(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            read(one)


def grown_by_reading(value: Any) -> int:
    """What a forked child has of its own once it has read all of it."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            before = unique_bytes(os.getpid())
            read(value)
            after = unique_bytes(os.getpid())
            if before is not None and after is not None:
                os.write(writes, str(after - before).encode())
        finally:
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads, "rb") as told:
        grew = told.read()
    os.waitpid(child, 0)
    if not grew:
        pytest.skip("the system does not tell")
    return int(grew)


KINDS: dict[str, Callable[[], Any]] = {
    "paths": lambda: [f"/data/train/{i:08d}.jpg" for i in range(N)],
    "pairs": lambda: [(f"/data/train/{i:08d}.jpg", i) for i in range(N)],
    "dicts": lambda: [
        {"id": i, "box": [i + 0.5, i + 1.5], "words": f"{i} words"} for i in range(N)
    ],
    "by name": lambda: {f"{i:08d}": float(i) for i in range(N)},
    "rows": lambda: [[float(i + j) for j in range(50)] for i in range(N // 20)],
    # Only the page that its count is in is copied of a large object.
    "blobs": lambda: [os.urandom(20_000) for _ in range(4_000)],
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_forecast_is_what_a_child_copies_by_reading_all_of_it(kind: str) -> None:
    value = KINDS[kind]()
    (found,) = containers(Held(samples=value))
    assert found.path == "samples"
    assert found.n == len(value)
    # Measured: 0.92 to 1.05; allocators and the child's own work take a few MiB.
    grew = grown_by_reading(value)
    assert 0.7 * grew - 4 * MIB < found.n_bytes < 1.2 * grew + 4 * MIB


def test_what_holds_no_counted_objects_is_not_named() -> None:
    dataset = Held(
        images=np.zeros((N, 100), dtype="uint8"),
        labels=torch.zeros(N),
        names=np.array([f"{i:08d}" for i in range(N)]),
        flags=[True] * N,
        small=list(range(1000)),
        one_object_often=["train"] * (10 * N),
    )
    assert containers(dataset) == ()


def test_containers_of_wrapped_datasets_are_named_by_their_path() -> None:
    inner = Held(samples=KINDS["pairs"]())
    subset = Subset(inner, list(range(1000, 1000 + N)))
    paths = {x.path: x for x in containers(ConcatDataset([subset]))}
    assert set(paths) == {"datasets[0].dataset.samples", "datasets[0].indices"}
    assert paths["datasets[0].dataset.samples"].entry == "tuple of str, int"
    assert paths["datasets[0].indices"].entry == "int"
    assert all(x.n_bytes >= MIN_BYTES for x in paths.values())


def test_largest_first_and_objects_in_an_array_count() -> None:
    dataset = Held(
        few=[f"{i}" for i in range(N)],
        captions=np.array([f"caption number {i} of them" * 4 for i in range(N)], dtype=object),
    )
    first, second = containers(dataset)
    assert (first.path, first.kind, second.path) == ("captions", "ndarray", "few")


@pytest.mark.parametrize("order", ["by recording", "in turn"])
def test_objects_that_many_entries_share_are_counted_once(order: str) -> None:
    """Windows over recordings: a sample of few sees hardly one recording twice."""
    recordings = [{f"{k}": float(i + k) for k in range(60)} for i in range(1000)]
    shared = [
        (recordings[i * 1000 // N if order == "by recording" else i % 1000], i) for i in range(N)
    ]
    (found,) = containers(Held(windows=shared))
    # Of each window a tuple and a number; 1,000 dicts of 60 numbers and names.
    once = 1000 * (80 + 60 * (32 + 64))
    assert 0.5 * N * (64 + 32) < found.n_bytes < 1.5 * N * (64 + 32) + 1.5 * once


def test_no_more_than_the_process_has() -> None:
    """Shared too deep within the entries for the walk."""
    recordings = [{f"{i} {k}": float(i + k) for k in range(60)} for i in range(1000)]
    (found,) = containers(Held(windows=[([recordings[i % 1000]], i) for i in range(N)]))
    most = _own_memory_bytes()
    if most is None:
        pytest.skip("the system does not tell")
    assert found.n_bytes < 1.2 * most


class Alive(list[Any]):
    """Whatever it is asked runs code of the user's."""

    def __len__(self) -> int:
        raise AssertionError

    def __iter__(self) -> Any:
        raise AssertionError


class Proxy:
    """Says that it is what it stands for."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(name)


class Computed:
    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        raise AssertionError


def test_no_code_of_the_users_is_run() -> None:
    foreign = [Alive([1]), Proxy(), Computed()]
    dataset = Held(
        alive=foreign[0], proxy=foreign[1], computed=foreign[2],
        samples=[(str(i), *foreign) for i in range(N)],
    )  # fmt: skip
    (found,) = containers(dataset)
    assert found.path == "samples"


def test_large_entries_are_left_when_time_is_up() -> None:
    """The walk over all of these would take a minute."""
    began = perf_counter()
    containers(Held(rows=[(list(range(300, 556)),) * 256] * 4_000_000))
    assert perf_counter() - began < 25 * LIMIT_S
