import torch
from tiny import SlowSamples
from torch.utils.data import DataLoader

weights = torch.zeros(8, 2, requires_grad=True)
for _ in range(20):
    for x, y in DataLoader(SlowSamples(), 4):
        loss = torch.nn.functional.cross_entropy(x @ weights, y)
        loss.backward()
        with torch.no_grad():
            weights -= 0.001 * weights.grad
            weights.grad = None
