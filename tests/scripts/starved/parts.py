"""What these scripts share: datasets with one known cost, and a training step of a known length."""

import time

import torch
from torch.utils.data import Dataset


class Samples(Dataset):
    """`wait_s` of waiting and `spin_s` of computing for each sample."""

    def __init__(self, n=4000, wait_s=0.0, spin_s=0.0):
        self.n, self.wait_s, self.spin_s = n, wait_s, spin_s

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        if self.wait_s:
            time.sleep(self.wait_s)
        if self.spin_s:
            end = time.process_time() + self.spin_s
            while time.process_time() < end:
                pass
        return torch.full((8,), float(index % 7)), index % 2


class Training:
    """One step: a small model, then `compute_s` on top as a model in C++ would take."""

    def __init__(self, compute_s=0.0):
        self.model = torch.nn.Linear(8, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.compute_s = compute_s
        self.matrix = torch.randn(96, 96)

    def step(self, x, y):
        end = time.perf_counter() + self.compute_s
        while time.perf_counter() < end:
            torch.mm(self.matrix, self.matrix)
        loss = torch.nn.functional.cross_entropy(self.model(x.float().view(-1, 8)), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
