# One batch that holds everything, and layers trained on it one after the other (forward-forward).
import torch
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.rand(256, 8)), batch_size=256)
(x,) = next(iter(loader))
for _layer in range(2):
    layer = torch.nn.Linear(8, 8)
    optimizer = torch.optim.Adam(layer.parameters())
    for _step in range(1000):
        optimizer.zero_grad()
        layer(x).square().mean().backward()
        optimizer.step()
    x = layer(x).detach()
