"""Eleven shapes of a training whose batches take long: SHAPE EPOCHS. Prints hashes and losses."""

import hashlib
import sys
import time

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    WeightedRandomSampler,
)

N, BATCH = 1200, 4


class Slow(Dataset):
    def __len__(self):
        return N

    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.full((8,), index / N), index % 2


class Stream(IterableDataset):
    def __iter__(self):
        return (Slow()[index] for index in range(N))


class Buckets(BatchSampler):
    """Of the script's own: draws from the generators that the loop draws from."""

    def __iter__(self):
        for _ in range(N // BATCH):
            at = int(torch.randint(0, N - BATCH, ()))
            yield list(range(at, at + BATCH))


def loader_of(shape):
    data, more = Slow(), {"batch_size": BATCH, "num_workers": 1}
    if shape == "no-workers":
        return DataLoader(data, BATCH, shuffle=True)
    if shape == "plain":
        return DataLoader(data, **more)
    if shape == "weighted":
        return DataLoader(data, sampler=WeightedRandomSampler([1.0 + i % 3 for i in range(N)], N), **more)
    if shape == "distributed":
        return DataLoader(data, sampler=DistributedSampler(data, 2, 0), **more)
    if shape == "iterable":
        return DataLoader(Stream(), **more)
    if shape == "persistent":
        return DataLoader(data, shuffle=True, persistent_workers=True, **more)
    if shape == "batch-sampler":
        return DataLoader(data, batch_sampler=Buckets(RandomSampler(data), BATCH, False), num_workers=1)
    if shape == "generator":
        return DataLoader(data, shuffle=True, generator=torch.Generator().manual_seed(5), **more)
    return DataLoader(data, shuffle=True, **more)  # shuffle, two-loaders, resumed


def main():
    shape, n_epochs = sys.argv[1], int(sys.argv[2])
    torch.manual_seed(1)
    layers = (torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 2))
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader, hashed = loader_of(shape), hashlib.sha256()
    other = DataLoader(Slow(), batch_size=1, num_workers=0) if shape == "two-loaders" else None
    for epoch in range(n_epochs):
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        others = iter(other) if other is not None else None
        for at, (x, y) in enumerate(loader):
            hashed.update(x.numpy().tobytes())
            if others is not None:
                hashed.update(next(others)[0].numpy().tobytes())
            if shape == "resumed" and epoch == 0 and at < 100:
                continue  # skipped: it was trained with in the run before
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, loss.item(), hashed.hexdigest())
    print([parameter.sum().item() for parameter in model.parameters()], torch.rand(()).item())


if __name__ == "__main__":
    main()
