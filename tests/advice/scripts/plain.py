"""A loader and a loop at the top of the module."""

import torch
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cpu")
data = TensorDataset(torch.rand(32, 4), torch.rand(32, 1))
loader = DataLoader(data, batch_size=8, shuffle=True)  # train loader
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for x, y in loader:  # train loop
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad(set_to_none=False)
        ((model(x) - y) ** 2).mean().backward()
        optimizer.step()
