"""Batches of a class of the script's own, without a pin_memory method."""

import torch
from torch.utils.data import DataLoader


class Batch:
    def __init__(self, samples):
        self.x = torch.stack(samples)
        self.n = len(samples)


rows = [torch.rand(4) for _ in range(32)]
loader = DataLoader(rows, batch_size=8, collate_fn=Batch, pin_memory=torch.cuda.is_available())  # train loader
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in loader:  # train loop
    optimizer.zero_grad(set_to_none=False)
    model(batch.x).mean().backward()
    optimizer.step()
