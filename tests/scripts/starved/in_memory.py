# argv: workers, batch size, layers' width. Samples are rows of a tensor.
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

workers, batch_size, width = map(int, sys.argv[1:])
data = TensorDataset(torch.randn(60000, 20), torch.randint(0, 2, (60000,)))
model = torch.nn.Sequential(
    torch.nn.Linear(20, width), torch.nn.Linear(width, width), torch.nn.Linear(width, 2)
)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
loader = DataLoader(data, batch_size, shuffle=True, num_workers=workers)
for _ in range(500):
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
