"""Arguments of the loader in a dict."""

import torch
from torch.utils.data import DataLoader, TensorDataset

options = {"batch_size": 8, "num_workers": 0, "shuffle": True}
dataset = TensorDataset(torch.rand(32, 4))
train_loader = DataLoader(dataset, **options)  # train loader
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for (x,) in train_loader:  # train loop
        optimizer.zero_grad(set_to_none=False)
        model(x).mean().backward()
        optimizer.step()
