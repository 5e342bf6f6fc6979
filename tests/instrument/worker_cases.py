"""Datasets, samplers and collate functions for the worker tests: importable, so they pickle."""

from __future__ import annotations

import functools
import gc
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info


class Augmented(Dataset[Any]):
    """Draws from every random source a dataset uses."""

    def __init__(self, n: int = 24) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> dict[str, Any]:
        noise = torch.rand(3) + random.random() + np.random.rand()  # noqa: NPY002
        return {"x": noise, "i": i}


class Keyed(Dataset[Any]):
    """A sample is known by a pair, as a clip and a frame."""

    def __getitem__(self, key: tuple[int, int]) -> int:
        return sum(key)


class Sleeping(Dataset[Any]):
    """Every sample takes `sleep_s`; each `slow_every`-th takes `slow_s`."""

    def __init__(
        self, n: int = 48, sleep_s: float = 0.002, slow_every: int = 0, slow_s: float = 0.0
    ) -> None:
        self.n = n
        self.sleep_s = sleep_s
        self.slow_every = slow_every
        self.slow_s = slow_s

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> torch.Tensor:
        slow = self.slow_every and i % self.slow_every == 0
        time.sleep(self.slow_s if slow else self.sleep_s)
        return torch.full((4,), float(i))


class Spinning(Dataset[Any]):
    """Burns CPU on one line."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, i: int) -> int:
        until = time.perf_counter() + 0.006
        while time.perf_counter() < until:
            sum(range(500))  # the hot line
        return i


class Parsing(Dataset[Any]):
    """Parses JSON, which keeps the interpreter, then makes a tensor, which gives it up."""

    def __init__(self) -> None:
        self.text = json.dumps([[i, i + 1] for i in range(1200)])

    def __len__(self) -> int:
        return 2000

    def __getitem__(self, i: int) -> torch.Tensor:
        parsed = json.loads(self.text)  # 1 ms: less than the usual wait for it
        return torch.full((64, 64), float(len(parsed)))


class Failing(Dataset[Any]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, i: int) -> int:
        if i == 9:
            raise KeyError("sample 9 is broken")
        return i


class FailingSharded(IterableDataset[Any]):
    def __iter__(self) -> Iterator[int]:
        yield 1
        raise OSError("shard is gone")


class Killed(Dataset[Any]):
    """Its worker dies as if for lack of memory."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, i: int) -> int:
        if i == 20 and get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.002)
        return i


class Sharded(IterableDataset[Any]):
    """Worker w yields its share of n; with `only_first`, worker 0 yields everything."""

    def __init__(self, n: int = 30, only_first: bool = False) -> None:
        self.n = n
        self.only_first = only_first

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        worker, n_workers = (0, 1) if info is None else (info.id, info.num_workers)
        if self.only_first:
            worker, n_workers = (0, 1) if worker == 0 else (self.n, 1)
        for i in range(worker, self.n, n_workers):
            time.sleep(0.001)
            yield i


class Watchful(Dataset[Any]):
    """Notes what it is handed, so that a test can see that nothing of ours shows."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> str:
        info = get_worker_info()
        assert info is not None
        assert info.dataset is self
        return f"{type(i).__name__} {type(info.dataset).__name__}"


class WatchfulBatched(Watchful):
    def __getitems__(self, indices: list[int]) -> list[str]:
        return [f"{type(indices).__name__} {self[i]}" for i in indices]


def watchful_collate(samples: Any) -> list[str]:
    return [type(samples).__name__, *samples]


class Shift:
    def __init__(self, by: float, sleep_s: float = 0.0) -> None:
        self.by = by
        self.sleep_s = sleep_s

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.sleep_s)
        return x + self.by + torch.rand(1)


class Compose:
    def __init__(self, transforms: list[Callable[[Any], Any]]) -> None:
        self.transforms = transforms

    def __call__(self, x: Any) -> Any:
        for t in self.transforms:
            x = t(x)
        return x


class Transformed(Dataset[Any]):
    def __init__(self, transform: Compose) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return 64

    def __getitem__(self, i: int) -> Any:
        return self.transform(torch.full((2,), float(i)))


class SlowIndices:
    """A batch sampler that thinks for 4 ms about each batch."""

    def __iter__(self) -> Iterator[list[int]]:
        for first in range(0, 32, 4):
            time.sleep(0.004)
            yield [first, first + 1, first + 2, first + 3]

    def __len__(self) -> int:
        return 8


def loader(dataset: Any, **options: Any) -> DataLoader[Any]:
    """A loader whose random numbers are the same each time it is built."""
    generator = torch.Generator()
    generator.manual_seed(7)
    return DataLoader(dataset, **{"batch_size": 4, "generator": generator, **options})


def seeded_epochs(make: Callable[[], DataLoader[Any]], n_epochs: int = 1) -> list[Any]:
    """Every batch of some epochs, from seeds that are the same each time."""
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    source = make()
    return [batch for _ in range(n_epochs) for batch in source]


def same(a: Any, b: Any) -> bool:
    """Equal bit for bit, types included."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def error_of(source: DataLoader[Any]) -> Exception | None:
    """What iterating raises, with the workers ended in good order.

    Left to itself a failed iterator lives on in a cycle with its own traceback; when that is
    collected the queues are closed before it can use them, and it waits 5 s for its workers.
    """
    batches: Any = iter(source)
    error: Exception | None = None
    try:
        for _ in batches:
            pass
    except Exception as raised:
        error = raised
    try:
        batches._shutdown_workers()
    except RuntimeError as raised:  # torch tells of a dead worker when the signal comes, here too
        error = error or raised
    return error


class Keeping(Dataset[Any]):
    """Keeps what it made, in an attribute and behind a cached method; `sizes` stays as it is."""

    def __init__(self) -> None:
        self.kept: dict[int, int] = {}
        self.sizes = [1, 2, 3]

    def __len__(self) -> int:
        return 96

    @functools.lru_cache(maxsize=64)  # noqa: B019  # that it keeps them is the point
    def square(self, index: int) -> int:
        return index * index

    def __getitem__(self, index: int) -> int:
        self.kept[index] = index
        return self.square(index % 40)


class Collected(Dataset[Any]):
    """Has the garbage collected for each sample."""

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> int:
        gc.collect()
        return index
