"""A stream read by three workers, each all of it or its own part: python streams.py HOW.

whole: nothing splits it; split: by get_worker_info().
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

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


def main(how: str) -> None:
    dataset = Whole() if how == "whole" else Split()
    model = torch.nn.Linear(64, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x in DataLoader(dataset, batch_size=8, num_workers=3):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    main(sys.argv[1])
