"""What the scripts here share: a dataset whose samples take a while, and a small model."""

import time

import torch
from torch.utils.data import Dataset


class SlowSamples(Dataset):
    """Each sample waits `sample_s`, as a disk would."""

    def __init__(self, n=4000, sample_s=0.004):
        self.n, self.sample_s = n, sample_s

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        time.sleep(self.sample_s)
        return torch.full((8,), float(index % 7)), index % 2


def model_and_optimizer():
    model = torch.nn.Linear(8, 2)
    return model, torch.optim.SGD(model.parameters(), lr=1e-3)


def train_step(model, optimizer, x, y):
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss
