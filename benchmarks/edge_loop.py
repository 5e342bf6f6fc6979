"""A loop on a CPU whose workers make batches as fast as it takes them, or nearly: a script.

    python benchmarks/edge_loop.py BATCH_MS WORKERS             does not end
    python benchmarks/edge_loop.py BATCH_MS WORKERS --truth     what its parts truly cost

It computes for STEP_MS of its thread's CPU time a step, and each worker burns BATCH_MS of its own
for a batch. `--truth` prints one JSON object, and another for each line that it then reads:
milliseconds a step as written, with one batch ready, and of its loader alone, in fresh loops.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEP_MS = 20.0
SAMPLES = 16  # of a batch
STEPS, WARMUP = 100, 20


class Burns(Dataset[Any]):
    """Samples that take so much CPU time each."""

    def __init__(self, sample_ms: float) -> None:
        self.sample_ms = sample_ms

    def __len__(self) -> int:
        return 1_600_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        end = time.thread_time() + self.sample_ms / 1e3
        while time.thread_time() < end:
            pass
        return torch.rand(64), index % 10


def train(batches: Iterable[Any], steps: int | None, *, computes: bool = True) -> float:
    """Milliseconds a step behind the warm-up; None: it does not end."""
    model = nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    turns = itertools.count() if steps is None else range(WARMUP + steps)
    began = time.perf_counter()
    for turn, (inputs, labels) in zip(turns, batches, strict=False):
        if turn == WARMUP:
            began = time.perf_counter()
        if not computes:
            continue
        end = time.thread_time() + STEP_MS / 1e3
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        product = torch.rand(160, 160)
        while time.thread_time() < end:
            product = (product @ product).clamp(0, 1)
    return (time.perf_counter() - began) * 1e3 / (steps or 1)


def truth(batch_ms: float, workers: int) -> dict[str, list[float]]:
    """One round: `full`, `cached` and the loader `alone`."""
    dataset = Burns(batch_ms / SAMPLES)

    def loader() -> DataLoader[Any]:
        return DataLoader(dataset, batch_size=SAMPLES, num_workers=workers)

    ready = torch.rand(SAMPLES, 64), torch.arange(SAMPLES) % 10
    return {
        "full": [train(loader(), STEPS)],
        "cached": [train(itertools.repeat(ready), STEPS)],
        "alone": [train(loader(), STEPS, computes=False)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("batch_ms", type=float)
    parser.add_argument("workers", type=int)
    parser.add_argument("--truth", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    if not args.truth:
        dataset = Burns(args.batch_ms / SAMPLES)
        train(DataLoader(dataset, batch_size=SAMPLES, num_workers=args.workers), None)
    print(json.dumps(truth(args.batch_ms, args.workers)), flush=True)
    for _ in sys.stdin:
        print(json.dumps(truth(args.batch_ms, args.workers)), flush=True)


if __name__ == "__main__":
    main()
