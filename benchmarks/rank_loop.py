"""A training of several ranks, the last of which has a slow dataset: a script for torchrun.

    torchrun --nproc-per-node 2 benchmarks/rank_loop.py ddp|fsdp [--steps N]
    torchrun --nproc-per-node 2 benchmarks/rank_loop.py ddp|fsdp --truth [--rounds N] [--steps N]

`--truth` times the loop as written, with one batch ready in host memory of the same kind, and
with one on the device, in all ranks alike; `--steps` with it trains before. Without either it does
not end. Rank 0 prints one line of JSON: milliseconds a step of the training, with its losses, which
tell two trainings apart, and of each way.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset, DistributedSampler

FEATURES = 1024
BATCH = 16
SAMPLE_S = (0.0002, 0.002)  # of a sample: the others, the last rank
WARMUP = 20
TRUTH_STEPS = 80


class Waits(Dataset[Any]):
    """Samples that wait as on a slow disk, and follow from their index."""

    def __init__(self, sample_s: float) -> None:
        self.sample_s = sample_s

    def __len__(self) -> int:
        return 64_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(self.sample_s)
        return torch.full((FEATURES,), (index % 97) / 97.0), index % 10


def wrapped(kind: str, device: torch.device) -> nn.Module:
    """The model in each rank, as `kind` shares it out."""
    torch.manual_seed(0)
    width = 4096 if device.type == "cuda" else 256
    layers = [nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, FEATURES))]
    layers += [nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, 10))]
    model = nn.Sequential(*layers).to(device)
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def batches(how: str, device: torch.device) -> Iterator[Any]:
    """Endless batches of this rank."""
    rank, world = dist.get_rank(), dist.get_world_size()
    pin = device.type == "cuda"
    if how == "full":
        dataset = Waits(SAMPLE_S[rank == world - 1])
        sampler: DistributedSampler[Any] = DistributedSampler(dataset)
        loader = DataLoader(
            dataset, batch_size=BATCH, sampler=sampler, num_workers=2, pin_memory=pin
        )
        while True:
            yield from loader
    x, y = torch.rand(BATCH, FEATURES), torch.randint(0, 10, (BATCH,))
    if how == "resident":
        x, y = x.to(device), y.to(device)
    elif pin:
        x, y = x.pin_memory(), y.pin_memory()
    while True:
        yield x, y


def train(
    kind: str, how: str, device: torch.device, steps: int | None
) -> tuple[float, list[torch.Tensor]]:
    """Milliseconds a step behind the warm-up, and its losses; None: it does not end."""
    model = wrapped(kind, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses: list[torch.Tensor] = []
    began = time.perf_counter()
    turns = itertools.count() if steps is None else range(WARMUP + steps)
    for turn, (inputs, labels) in zip(turns, batches(how, device), strict=False):
        if turn == WARMUP:
            synchronize(device)
            began = time.perf_counter()
        x, y = inputs.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if steps is not None:
            losses.append(loss.detach())
    synchronize(device)
    return (time.perf_counter() - began) * 1e3 / (steps or 1), losses


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def truth(kind: str, device: torch.device, rounds: int) -> dict[str, list[float]]:
    """Milliseconds a step of each way, one for each round."""
    runs: dict[str, list[float]] = {"full": [], "cached": [], "resident": []}
    for _ in range(rounds):
        for how in runs:
            runs[how].append(train(kind, how, device, TRUTH_STEPS)[0])
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kind", choices=("ddp", "fsdp"))
    parser.add_argument("--steps", type=int)
    parser.add_argument("--truth", action="store_true")
    parser.add_argument("--rounds", type=int, default=2, help="of --truth")
    args = parser.parse_args()
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo", device_id=device if cuda else None)
    found: dict[str, Any] = {}
    if args.steps is not None or not args.truth:
        step_ms, losses = train(args.kind, "full", device, args.steps)
        found = {"ms": step_ms, "losses": [one.item() for one in losses]}
    if args.truth:
        found["truth"] = truth(args.kind, device, args.rounds)
    if dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
