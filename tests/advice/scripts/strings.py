"""A text of several lines among what runs."""

import torch
from torch.utils.data import DataLoader, TensorDataset

USAGE = """
usage: strings.py
  trains
"""
print(USAGE)
data = TensorDataset(torch.rand(32, 4))
loader = DataLoader(data, batch_size=8)  # train loader
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in loader:  # train loop
    optimizer.zero_grad(set_to_none=False)
    model(x).mean().backward()
    optimizer.step()
