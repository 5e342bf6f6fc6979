# argv: "forever", a generator that starts its loader again and again; "moved", one that prepares
# each batch on the way; "stream", a loader over a dataset that never ends.
import sys
import time

import torch
from tiny import SlowSamples, model_and_optimizer, train_step
from torch.utils.data import DataLoader, IterableDataset


def forever(loader):
    while True:
        yield from loader


def moved(loader, device):
    for batch in forever(loader):
        yield tuple(t.to(device) for t in batch)


class Stream(IterableDataset):
    def __iter__(self):
        while True:
            time.sleep(0.004)
            yield torch.rand(8), 1


how = sys.argv[1]
loader = DataLoader(Stream() if how == "stream" else SlowSamples(400), batch_size=4)
batches = {"forever": forever, "moved": lambda x: moved(x, "cpu"), "stream": iter}[how](loader)
model, optimizer = model_and_optimizer()
while True:
    x, y = next(batches)
    train_step(model, optimizer, x, y)
