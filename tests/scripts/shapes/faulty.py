# A loop whose storage becomes slow, or that leaks, collects, stalls, or computes beside others:
# argv[1] says what; [2] steps.
import gc
import io
import os
import sys
import time

import psutil
import torch
from torch.utils.data import DataLoader, Dataset

WHAT, N_STEPS = sys.argv[1], int(sys.argv[2])
FROM = N_STEPS // 2  # from this batch on
BATCH = 4
STEP_S = 0.008
# Of each sample: memory is full in about 10 minutes.
LEAK_BYTES = int(max(100_000, psutil.virtual_memory().available / 480 * STEP_S / BATCH))


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
            self.kept.append(bytearray(b"x" * LEAK_BYTES))
        return torch.full((8,), index % 5 / 5.0), index % 2


class Checkpoint:
    def __getstate__(self):
        time.sleep(0.3)
        return {}


def began():
    """Tell whoever asked when the fault begins."""
    if "FAULT_FILE" in os.environ:
        with open(os.environ["FAULT_FILE"], "w") as file:
            file.write(repr(time.time()))


def main():
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = [[i] for i in range(2_000_000)] if WHAT == "collections" else []
    total = 0.0
    loader = DataLoader(Data(), BATCH, num_workers=1)
    others = DataLoader(torch.utils.data.Subset(Data(), range(160)), BATCH)
    for step, (x, y) in enumerate(loader):
        if step == (0 if WHAT in ("leak", "shard") else FROM):
            began()
        if WHAT == "checkpoint" and step >= FROM and step % 100 == 0:
            torch.save(Checkpoint(), io.BytesIO())
        if WHAT == "validation" and step >= FROM and step % 100 == 0:
            with torch.no_grad():
                for other, _ in others:
                    model(other)
                    time.sleep(0.01)
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
        if WHAT == "computes":
            until = time.thread_time() + STEP_S
            while time.thread_time() < until:
                pass
        else:
            time.sleep(STEP_S)
        if WHAT == "collections" and step > FROM and step % 60 == 0:
            gc.collect()
    print(repr(total), len(made))


if __name__ == "__main__":
    main()
