"""Loaders in a dict, of which the training one is taken by its key."""

import torch
from torch.utils.data import DataLoader, TensorDataset

parts = {"train": TensorDataset(torch.rand(32, 4)), "val": TensorDataset(torch.rand(8, 4))}
loaders = {
    "train": DataLoader(parts["train"], batch_size=8, shuffle=True),  # train loader
    "val": DataLoader(parts["val"], batch_size=8),
}
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for (x,) in loaders["train"]:  # train loop
        optimizer.zero_grad(set_to_none=False)
        model(x).mean().backward()
        optimizer.step()
    with torch.no_grad():
        for (x,) in loaders["val"]:
            model(x)
