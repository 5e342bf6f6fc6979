"""A stream read by three workers: python streams.py HOW.

whole: each reads all of it; split: its own part, by get_worker_info(); uneven: shards of 24, 6 and
6 batches, one a worker; even: of 12 each; stored: each shard in the order of its labels; shuffled:
drawn from all of them.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Whole(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        for i in range(100_000):
            time.sleep(0.001)
            yield torch.full((64,), i / 100_000)


class Split(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info is not None else (0, 1)
        for i in range(first, 100_000, step):
            time.sleep(0.001)
            yield torch.full((64,), i / 100_000)


class Shards(IterableDataset[Tensor]):
    """As many samples as `sizes` say, by worker."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.sizes = sizes

    def __iter__(self) -> Iterator[Tensor]:
        info = get_worker_info()
        assert info is not None
        for _ in range(self.sizes[info.id]):
            time.sleep(0.003)
            yield torch.rand(64)


class Labelled(IterableDataset[tuple[Tensor, int]]):
    """Ten labels, a thousand samples of each in turn: as stored, or from a buffer of them all."""

    def __init__(self, *, shuffled: bool) -> None:
        self.shuffled = shuffled

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        info = get_worker_info()
        assert info is not None
        labels = [label for label in range(info.id, 10, info.num_workers) for _ in range(1000)]
        if self.shuffled:
            labels = [random.randrange(10) for _ in labels]
        for label in labels:
            time.sleep(0.001)
            yield torch.rand(64), label


def main(how: str) -> None:
    dataset: IterableDataset[Any]
    if how in ("uneven", "even"):
        dataset = Shards((192, 48, 48) if how == "uneven" else (96, 96, 96))
    elif how in ("stored", "shuffled"):
        dataset = Labelled(shuffled=how == "shuffled")
    else:
        dataset = Whole() if how == "whole" else Split()
    model = torch.nn.Linear(64, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(dataset, batch_size=8, num_workers=3, persistent_workers=True)
    for _epoch in range(1_000):
        for batch in loader:
            x = batch[0] if how in ("stored", "shuffled") else batch
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()


if __name__ == "__main__":
    main(sys.argv[1])
