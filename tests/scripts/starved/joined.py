"""Loaders read side by side: `joined.py N_LOADERS N_STEPS`, two workers each, N_STEPS an epoch."""

from __future__ import annotations

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    n_loaders, n_steps = int(sys.argv[1]), int(sys.argv[2])
    net = torch.nn.Linear(64, 4)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    sets = [TensorDataset(torch.randn(16 * n_steps, 64)) for _ in range(n_loaders)]
    loaders = [DataLoader(s, batch_size=16, shuffle=True, num_workers=2) for s in sets]
    for _ in range(100_000):
        for parts in zip(*loaders, strict=True):
            optimizer.zero_grad()
            net(torch.cat([part[0] for part in parts])).square().mean().backward()
            optimizer.step()
