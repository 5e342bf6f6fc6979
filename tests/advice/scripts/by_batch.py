"""A batch sampler, and a loop without end that counts its steps."""

import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

data = TensorDataset(torch.rand(32, 4))
loader = DataLoader(data, batch_sampler=BatchSampler(SequentialSampler(data), 8, False))  # train loader
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = 0
while step < 6:
    for (x,) in loader:  # train loop
        optimizer.zero_grad(set_to_none=False)
        model(x).mean().backward()
        optimizer.step()
        step += 1
