"""A loader that is built where it is iterated, in each epoch."""

import torch
from torch.utils.data import DataLoader, TensorDataset

dataset = TensorDataset(torch.rand(32, 4))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for (x,) in DataLoader(dataset, batch_size=8, num_workers=0):  # train loader, train loop
        optimizer.zero_grad(set_to_none=False)
        model(x).mean().backward()
        optimizer.step()
