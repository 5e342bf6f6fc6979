"""A step whose computing costs more than it must, or not: python computed.py HOW.

subnormal: half of the weights are 1e-40, normal: none is; padded: samples of 10 to 200 words in one
batch, alike: batches of samples of about one length.
"""

from __future__ import annotations

import random
import sys

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, TensorDataset


class Texts(Dataset[Tensor]):
    def __init__(self, *, alike: bool) -> None:
        draws = random.Random(1)
        self.lengths = [draws.randint(10, 200) for _ in range(4000)]
        if alike:
            self.lengths.sort()

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Tensor:
        return torch.randint(1, 1000, (self.lengths[index],))


def texts(*, alike: bool) -> None:
    model = torch.nn.Sequential(
        torch.nn.Embedding(1000, 64), torch.nn.Linear(64, 256), torch.nn.Linear(256, 64)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(
        Texts(alike=alike), batch_size=16, collate_fn=lambda x: pad_sequence(x, batch_first=True)
    )
    for _epoch in range(1_000):
        for x in loader:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()


def weights(*, subnormal: bool) -> None:
    layers = [torch.nn.Linear(256, 256) for _ in range(4)]
    model = torch.nn.Sequential(*layers)
    if subnormal:
        with torch.no_grad():
            for layer in layers:
                layer.weight[::2] = 1e-40
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)  # or a step would lift them
    for _epoch in range(1_000):
        for (x,) in DataLoader(TensorDataset(torch.rand(512, 256)), batch_size=32):
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()


if __name__ == "__main__":
    if sys.argv[1] in ("padded", "alike"):
        texts(alike=sys.argv[1] == "alike")
    else:
        weights(subnormal=sys.argv[1] == "subnormal")
