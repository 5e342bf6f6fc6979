"""A collate function that makes a tensor of a list of arrays."""

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Signals(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, i):
        signal = np.sin(np.arange(64) * i).astype(np.float32)
        return signal, np.array([i, i + 1])


def collate(samples):
    signals, pairs = zip(*samples)
    x = torch.tensor(signals)  # hot line
    return x, torch.as_tensor([pair for _, pair in samples])


loader = DataLoader(Signals(), batch_size=8, collate_fn=collate)  # train loader
weight = torch.nn.Parameter(torch.ones(64))
optimizer = torch.optim.SGD([weight], lr=0.0)
total = 0.0
for x, y in loader:  # train loop
    optimizer.zero_grad(set_to_none=False)
    (x * weight).mean().backward()
    optimizer.step()
    total += float(x.sum()) + float(y.sum())
print(total)
