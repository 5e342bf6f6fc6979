"""Several statements in a line, and a loader in a comprehension."""

import torch; from torch.utils.data import DataLoader, TensorDataset

train, test = (TensorDataset(torch.rand(n, 4)) for n in (32, 8))
first, second = [DataLoader(part, batch_size=8) for part in (train, test)]  # train loader
model = torch.nn.Linear(4, 1); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in first:  # train loop
    optimizer.zero_grad(set_to_none=False); model(x).mean().backward(); optimizer.step()
