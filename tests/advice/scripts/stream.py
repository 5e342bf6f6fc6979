"""An iterable dataset."""

import torch
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __iter__(self):
        for i in range(32):
            yield torch.full((4,), float(i))


loader = DataLoader(Stream(), batch_size=8)  # train loader
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in loader:  # train loop
    optimizer.zero_grad(set_to_none=False)
    model(x).mean().backward()
    optimizer.step()
