"""Two loaders side by side."""

import torch
from torch.utils.data import DataLoader, TensorDataset

images = DataLoader(TensorDataset(torch.rand(32, 4)), batch_size=8)  # train loader
labels = DataLoader(TensorDataset(torch.rand(32, 1)), batch_size=8)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,), (y,) in zip(images, labels):  # train loop
    optimizer.zero_grad(set_to_none=False)
    (model(x) - y).pow(2).mean().backward()
    optimizer.step()
