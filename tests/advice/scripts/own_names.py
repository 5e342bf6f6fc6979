"""A script that has the names that examples like to use."""

import torch
from torch.utils.data import DataLoader, TensorDataset


class Cached(TensorDataset):
    """The script's own."""


class Batches:
    """The script's own too."""


batches = 4
dataset = Cached(torch.rand(8 * batches, 4))
loader = DataLoader(dataset, batch_size=8)  # train loader
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in loader:  # train loop
    optimizer.zero_grad(set_to_none=False)
    model(x).mean().backward()
    optimizer.step()
