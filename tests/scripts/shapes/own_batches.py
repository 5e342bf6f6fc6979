"""Batches cut from one tensor by the loop itself: no DataLoader at all, and no end in sight."""

import sys

import torch

by_hand = "--by-hand" in sys.argv
data = torch.randn(4096, 256)
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256))
optimizer = None if by_hand else torch.optim.SGD(model.parameters(), lr=1e-3)
if "--closure" in sys.argv:
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1e-3, max_iter=30)
n_steps = int(sys.argv[1])


class Shuffled(torch.utils.data.DataLoader):
    """Cuts its batches itself, all of them: torch's own iterator is never made."""

    def __iter__(self):
        for rows in torch.randperm(len(data)).split(64):
            yield data[rows]


def batches():
    if "--subclass" in sys.argv:
        loader = Shuffled(torch.utils.data.TensorDataset(data), batch_size=64)
        while True:
            yield from loader
    while True:
        yield data[torch.randint(len(data), (64,))]


feed = batches()
for step in range(n_steps):
    if isinstance(optimizer, torch.optim.LBFGS):

        def closure():
            model.zero_grad()
            loss = (model(data[:512]) - data[:512]).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)  # the one step
        continue
    batch = next(feed)
    loss = (model(batch) - batch).square().mean()
    model.zero_grad()
    loss.backward()
    if optimizer is not None:
        optimizer.step()
    else:
        with torch.no_grad():
            for p in model.parameters():
                p.add_(p.grad, alpha=-1e-3)
print("trained", n_steps)
