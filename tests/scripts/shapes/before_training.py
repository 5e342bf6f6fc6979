"""Reads its loader for something else before it trains, or instead: before_training.py KIND.

Waiting costs nothing but time, so other programs hardly change these times: a batch takes 8 ms, a
model called on it 4 ms, a step of training 30 ms.
"""

import sys
import time
from itertools import islice

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __len__(self):
        return 1600

    def __getitem__(self, i):
        time.sleep(0.001)
        return torch.full((4,), float(i)), i % 2


class Model(nn.Module):
    def __init__(self, seconds):
        super().__init__()
        self.linear, self.seconds = nn.Linear(4, 2), seconds

    def forward(self, x):
        time.sleep(self.seconds)
        return self.linear(x)


def evaluate(model, batches):
    with torch.no_grad():
        for x, _ in batches:
            model(x)


def train(loader, skip=0):
    model = Model(0.03)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(1000):
        for i, (x, y) in enumerate(loader):
            if i < skip:
                continue
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        skip = 0


def main(kind):
    loader = DataLoader(Samples(), batch_size=8, shuffle=True)
    if kind == "statistics":
        for _ in range(4):
            for x, _ in loader:
                x.mean().item()
        train(loader)
    elif kind == "probe":
        for x, _ in DataLoader(Samples(), batch_size=16):
            x.mean().item()
        train(loader)
    elif kind == "skip":
        train(DataLoader(Samples(), batch_size=2, shuffle=True), skip=600)
    elif kind == "sanity":
        evaluate(Model(0.004), islice(DataLoader(Samples(), batch_size=8), 2))
        train(loader)
    elif kind == "features":
        evaluate(Model(0.004), loader)
        evaluate(Model(0.004), loader)
        train(loader)
    elif kind == "evaluation":
        for _ in range(50):
            evaluate(Model(0.004), loader)
    elif kind == "reading":  # three passes, and nothing else ever
        for _ in range(3):
            for x, _ in loader:
                x.mean().item()


if __name__ == "__main__":
    torch.manual_seed(0)
    main(sys.argv[1])
