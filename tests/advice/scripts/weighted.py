"""Weighted draws of a batch size of 8."""

import torch
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

labels = torch.arange(32) % 4
data = TensorDataset(torch.rand(32, 4), labels)
sampler = WeightedRandomSampler((1.0 + labels).tolist(), num_samples=32)
loader = DataLoader(data, batch_size=8, sampler=sampler)  # train loader
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:  # train loop
    optimizer.zero_grad(set_to_none=False)
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
