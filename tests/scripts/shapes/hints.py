# argv: "wasteful" or "thrifty". A step that computes, with or without what costs it needlessly.
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

wasteful = sys.argv[1] == "wasteful"
model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1, bias=wasteful),
    nn.BatchNorm2d(8),
    nn.ReLU(inplace=True),
    nn.Flatten(),
    nn.Linear(8 * 256, 2048),
    nn.ReLU(),
    nn.Linear(2048, 10),
)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
data = TensorDataset(torch.rand(320, 1, 16, 16), torch.randint(10, (320,)))
for _ in range(100):
    for x, y in DataLoader(data, batch_size=4):
        optimizer.zero_grad(set_to_none=not wasteful)
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
