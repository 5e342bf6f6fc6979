"""A loop that Python's garbage collector stops, or not: python collected.py HOW.

auto: each step reads records into objects while a heap of others lives; asked: gc.collect() in each
step. Look-alikes: rarely, the same records, and collected by hand once in many epochs; frozen,
gc.collect() at times, with next to nothing to look at and steps that are long.
"""

from __future__ import annotations

import gc
import json
import sys
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset


def main(how: str) -> None:
    model = torch.nn.Linear(64, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.randn(4096, 64)), batch_size=32)
    heap: list[Any] = [{"id": [i]} for i in range(100_000)]
    text = json.dumps([{"at": [i]} for i in range(20_000)])
    if how != "auto":
        gc.disable()
    for epoch in range(1_000):
        for step, (x,) in enumerate(loader):
            if how in ("auto", "rarely"):
                records = json.loads(text)
                x = x + records[step]["at"][0]
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
    main(sys.argv[1])
