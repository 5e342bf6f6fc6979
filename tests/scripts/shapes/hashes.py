# Prints hashes of all batches, of the losses and of the final weights. argv[1]: how it loads.
import hashlib
import sys

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, WeightedRandomSampler

KIND = sys.argv[1]


class Map(Dataset):
    def __len__(self):
        return 600

    def __getitem__(self, index):
        return torch.randn(8) + index % 3, index % 2  # draws in the worker, as augmentation does


class Stream(IterableDataset):
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        first, by = (info.id, info.num_workers) if info else (0, 1)
        for index in range(first, 600, by):
            yield torch.randn(8) + index % 3, index % 2


def loader():
    if KIND == "iterable":
        return DataLoader(Stream(), 4, num_workers=2)
    if KIND == "weighted":
        sampler = WeightedRandomSampler([1.0, 2.0, 3.0] * 200, 600)
        return DataLoader(Map(), 4, sampler=sampler, num_workers=2)
    if KIND == "persistent":
        return DataLoader(Map(), 4, shuffle=True, num_workers=2, persistent_workers=True)
    if KIND == "generator":
        own = torch.Generator().manual_seed(5)
        return DataLoader(Map(), 4, shuffle=True, num_workers=1, generator=own)
    workers = 0 if KIND == "plain" else 2
    return DataLoader(Map(), 4, shuffle=KIND != "plain", num_workers=workers)


def main():
    torch.manual_seed(11)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters())
    batches, losses = hashlib.sha256(), hashlib.sha256()
    feed, other = loader(), DataLoader(Map(), 8, shuffle=True)
    for epoch in range(3):
        if KIND == "resume" and epoch == 0:
            skipped = iter(feed)
            for _ in range(40):
                next(skipped)
            stream = skipped
        elif KIND == "two-loaders":
            stream = (a for a, _ in zip(feed, other))
        else:
            stream = feed
        for step, (x, y) in enumerate(stream):
            batches.update(x.numpy().tobytes() + y.numpy().tobytes())
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            if KIND != "accumulation" or step % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
            losses.update(repr(loss.item()).encode())
            if KIND == "break" and step == 70:
                break
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    print("batches", batches.hexdigest())
    print("losses", losses.hexdigest(), torch.rand(1).item())
    print("weights", hashlib.sha256(weights).hexdigest())


if __name__ == "__main__":
    main()
