# A loop whose storage becomes slow, or that leaks, collects, stalls: argv[1] says what; [2] steps.
import gc
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset

WHAT, N_STEPS = sys.argv[1], int(sys.argv[2])
FROM = N_STEPS // 2  # from this batch on
BATCH = 4


class Data(Dataset):
    def __init__(self):
        self.kept = []

    def __len__(self):
        return N_STEPS * BATCH

    def __getitem__(self, index):
        number = index // BATCH
        time.sleep(0.0005)
        if WHAT == "storage" and number >= FROM:
            time.sleep(0.012)
        if WHAT == "shard" and number % 50 == 0 and index % BATCH == 0:
            time.sleep(0.4)
        if WHAT == "leak":
            self.kept.append(bytearray(b"x" * 100_000))
        return torch.full((8,), index % 5 / 5.0), index % 2


def main():
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = [[i] for i in range(2_000_000)] if WHAT == "collections" else []
    total = 0.0
    loader = DataLoader(Data(), BATCH, num_workers=1)
    for step, (x, y) in enumerate(loader):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
        time.sleep(0.008)
        if WHAT == "collections" and step > FROM and step % 60 == 0:
            gc.collect()
    print(repr(total), len(made))


if __name__ == "__main__":
    main()
