# argv: kind. Trains for some seconds and ends; each kind spends them in another way.
import sys
import time

import torch
from tiny import model_and_optimizer, train_step
from torch.utils.data import DataLoader, Dataset, IterableDataset

KINDS = {
    # samples, batch, epochs, ms a sample, ms of work a step, workers
    "waits": (1600, 8, 2, 2.0, 0.0, 0),
    "workers": (1600, 8, 4, 2.0, 0.0, 1),
    "epochs": (240, 8, 20, 1.0, 0.0, 2),
    "work": (800, 4, 2, 0.2, 15.0, 0),
    "accumulates": (1600, 8, 2, 2.0, 2.0, 0),
    "validates": (800, 8, 4, 2.0, 0.0, 0),
    "saves": (800, 8, 4, 2.0, 0.0, 0),
    "streams": (1600, 8, 2, 2.0, 0.0, 0),
    "collates": (1600, 8, 2, 0.0, 0.0, 0),
}
kind = sys.argv[1]
n_samples, batch, n_epochs, sample_ms, work_ms, workers = KINDS[kind]


class Samples(Dataset):
    def __len__(self):
        return n_samples

    def __getitem__(self, index):
        time.sleep(sample_ms / 1e3)
        return torch.full((8,), 1.0), index % 2


class Stream(IterableDataset):
    def __iter__(self):
        yield from (Samples()[i] for i in range(n_samples))


def slow_collate(samples):
    time.sleep(0.015)
    return torch.utils.data.default_collate(samples)


def main():
    data = Stream() if kind == "streams" else Samples()
    collate = slow_collate if kind == "collates" else None
    loader = DataLoader(data, batch, num_workers=workers, collate_fn=collate)
    model, optimizer = model_and_optimizer()
    for epoch in range(n_epochs):
        for n, (x, y) in enumerate(loader):
            if work_ms:
                time.sleep(work_ms / 1e3)
            if kind == "accumulates":
                loss = torch.nn.functional.cross_entropy(model(x), y) / 2
                loss.backward()
                if n % 2:
                    optimizer.step()
                    optimizer.zero_grad()
            else:
                train_step(model, optimizer, x, y)
        if kind == "validates":
            with torch.no_grad():
                for x, _ in DataLoader(Samples(), 64, num_workers=0):
                    model(x)
                    break
        if kind == "saves":
            torch.save(model.state_dict(), f"epoch-{epoch}.pt")
    print("trained", flush=True)


if __name__ == "__main__":
    main()
