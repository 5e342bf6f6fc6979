"""Two workers over a dataset that keeps what it has made, or does not: python memory.py HOW.

keeps: each sample stays in a dictionary of the dataset's, 100 kB each; keeps-few: of the last 64.
"""

from __future__ import annotations

import sys
import time

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

SAMPLE = 25_000


class Kept(Dataset[Tensor]):
    def __init__(self, most: int | None) -> None:
        self.most = most
        self.kept: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(0.001)
        self.kept[index] = torch.full((SAMPLE,), index / len(self))
        if self.most is not None and len(self.kept) > self.most:
            del self.kept[next(iter(self.kept))]
        return self.kept[index][:64].clone()


def main(how: str) -> None:
    dataset = Kept(None if how == "keeps" else 64)
    model = torch.nn.Linear(64, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x in DataLoader(dataset, batch_size=8, num_workers=2):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        time.sleep(0.002)


if __name__ == "__main__":
    main(sys.argv[1])
