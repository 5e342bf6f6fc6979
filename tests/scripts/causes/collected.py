"""A loop that Python's garbage collector stops, or not: python collected.py HOW.

auto: each step makes many small objects while a heap of others lives (in Python: since 3.12 what
a C function such as json.loads makes is collected once, behind it); asked: gc.collect() in each
step. Look-alikes: rarely, the same objects, and collected by hand once in many epochs; frozen,
gc.collect() at times, with next to nothing to look at and steps that are long.

workers: two workers that read such records for each sample; workers-off: they collect nothing.
heap: their dataset holds two million objects, and samples are read into fewer. Look-alikes:
heap-rarely, the same in workers that freeze and look rarely; heap-numbers, as many objects, and
samples of a number each.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset


class Records(Dataset[Tensor]):
    """Samples that are read into objects, next to a heap of others."""

    def __init__(self, n_heap: int = 100_000, n_read: int = 20_000) -> None:
        self.heap: list[Any] = [{"id": [i]} for i in range(n_heap)]
        self.text = json.dumps([{"at": [i]} for i in range(n_read)])

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> Tensor:
        records = json.loads(self.text)
        return torch.full((64,), float(records[index % len(records)]["at"][0]))


class Numbers(Records):
    """Next to the same heap nothing is made that the collector would look at."""

    def __getitem__(self, index: int) -> Tensor:
        total = 0
        for i in range(40_000):  # of about the time that reading takes
            total += i ^ index
        return torch.full((64,), float(total))


def collect_nothing(_worker: int) -> None:
    gc.disable()


def look_rarely(_worker: int) -> None:
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def in_workers(dataset: Dataset[Tensor], start: Callable[[int], None] | None) -> None:
    model = torch.nn.Linear(64, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    loader = DataLoader(dataset, batch_size=2, num_workers=2, worker_init_fn=start)
    for x in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()


def main(how: str) -> None:
    model = torch.nn.Linear(64, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.randn(4096, 64)), batch_size=32)
    heap: list[Any] = [{"id": [i]} for i in range(100_000)]
    if how != "auto":
        gc.disable()
    for epoch in range(1_000):
        for step, (x,) in enumerate(loader):
            if how in ("auto", "rarely"):
                records: list[list[int]] = [[] for _ in range(40_000)]
                x = x + len(records[step])
            if how == "asked" or (how == "frozen" and step % 50 == 0):
                gc.collect()
            optimizer.zero_grad()
            for _ in range(100 if how == "frozen" else 4):
                model(x).square().mean().backward()
            optimizer.step()
            if how in ("rarely", "frozen") and epoch == step == 0:
                gc.freeze()  # the first step of an optimizer loads much of torch
        if how == "rarely" and epoch % 10 == 9:
            gc.collect()
    assert heap


if __name__ == "__main__":
    how = sys.argv[1]
    if how.startswith("workers"):
        in_workers(Records(), None if how == "workers" else collect_nothing)
    elif how.startswith("heap"):
        kind = Numbers if how == "heap-numbers" else Records
        in_workers(kind(1_000_000, 10_000), look_rarely if how == "heap-rarely" else None)
    else:
        main(how)
