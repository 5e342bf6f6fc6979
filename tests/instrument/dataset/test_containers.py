"""What forked workers copy of a dataset: the forecast, and what a child that reads it all takes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset

from loaderdoctor.instrument.dataset.containers import MIN_BYTES, containers
from loaderdoctor.instrument.system.host_memory import unique_bytes

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
