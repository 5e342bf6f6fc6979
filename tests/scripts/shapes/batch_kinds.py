# Batches that are no tuple of tensors.
import sys

import torch
from tiny import SlowSamples, model_and_optimizer, train_step
from torch.utils.data import DataLoader, default_collate


class Batch:
    """As a graph library's: knows how to move itself."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def to(self, device):
        return Batch(self.x.to(device), self.y.to(device))


def collate(samples):
    x, y = default_collate(samples)
    if kind == "object":
        return Batch(x, y)
    if kind == "dict":
        return {"inputs": {"pixels": x}, "labels": y, "ids": ["a", "b"]}
    return [[x[:2], [x[2:]]], [y]]


def unpack(batch):
    if kind == "object":
        batch = batch.to("cpu")
        return batch.x, batch.y
    if kind == "dict":
        return batch["inputs"]["pixels"], batch["labels"]
    (first, (second,)), (y,) = batch
    return torch.cat([first, second]), y


kind = sys.argv[1]
model, optimizer = model_and_optimizer()
loader = DataLoader(SlowSamples(), batch_size=4, collate_fn=collate)
for _ in range(20):
    for batch in loader:
        x, y = unpack(batch)
        train_step(model, optimizer, x, y)
