"""Trains one of several small models, each made to show what one setting of the computation does.

    python train.py --case conv              # cudnn chooses its kernels by rule
    python train.py --case conv --remedy     # cudnn tries them out first
    python train.py --case parallel --remedy # DDP instead of DataParallel

The batches are random numbers, ready in memory: the loader costs next to nothing here.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

N_BATCHES = 200  # in an epoch


class Ready(Dataset[Tensor]):
    """The same batch every time, as a sample of its own."""

    def __init__(self, shape: tuple[int, ...], n_batches: int) -> None:
        self.batch = torch.randn(shape)
        self.n_batches = n_batches

    def __len__(self) -> int:
        return self.n_batches

    def __getitem__(self, index: int) -> Tensor:
        return self.batch


class Pointwise(nn.Module):
    """A GELU written out: each operation reads and writes all of memory, unless fused."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(4):
            x = x * 0.5 * (1.0 + torch.erf(x * self.scale / 1.41421))
        return x


class Blocks(nn.Module):
    """Linear blocks whose activations are kept for the backward pass, or computed again."""

    def __init__(self, width: int, *, keep: bool) -> None:
        super().__init__()
        self.keep = keep
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.GELU()
            )
            for _ in range(8)
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x) if self.keep else checkpoint(block, x, use_reentrant=False)
        return x


def convolutions(*, bias: bool) -> nn.Module:
    """Convolutions with BatchNorm behind them, which takes any bias out again."""
    layers: list[nn.Module] = []
    for width_in, width in ((3, 32), (32, 32), (32, 32)):
        layers += [nn.Conv2d(width_in, width, 3, padding=1, bias=bias), nn.BatchNorm2d(width)]
        layers.append(nn.ReLU())
    return nn.Sequential(*layers)


@dataclass(frozen=True)
class Case:
    """One loop: the shape of its batches, and its model without and with the remedy."""

    shape: tuple[int, ...]
    model: Callable[[bool], nn.Module]


CASES: dict[str, Case] = {
    "conv": Case((32, 64, 64, 64), lambda _: nn.Conv2d(64, 64, 3)),
    "pointwise": Case((256, 1024), lambda _: Pointwise(1024)),
    "zero-grad": Case(
        (16, 256), lambda _: nn.Sequential(*(nn.Linear(256, 256) for _ in range(24)))
    ),
    "bias": Case((8, 3, 32, 32), lambda remedy: convolutions(bias=not remedy)),
    "checkpoint": Case((512, 128), lambda remedy: Blocks(128, keep=not remedy)),
    "parallel": Case((256, 512), lambda _: Blocks(512, keep=True)),
}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", choices=tuple(CASES), default="bias")
    parser.add_argument("--remedy", action="store_true", help="with the setting that should help")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batches", type=int, default=N_BATCHES, help="in an epoch")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def start_ranks(n_ranks: int) -> tuple[int, int]:
    """(rank, port): in the first process start the others, which run this script again."""
    if "COMPUTE_RANK" in os.environ:
        return int(os.environ["COMPUTE_RANK"]), int(os.environ["COMPUTE_PORT"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    for rank in range(1, n_ranks):
        extra = {"COMPUTE_RANK": str(rank), "COMPUTE_PORT": str(port)}
        subprocess.Popen([sys.executable, __file__, *sys.argv[1:]], env={**os.environ, **extra})
    return 0, port


def end_with_parent() -> None:
    """A rank whose first process is gone waits for nobody."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def train_ddp(model: nn.Module, loader: DataLoader[Tensor], args: argparse.Namespace) -> None:
    """A process for each device, each with its part of every batch."""
    on_gpu = args.device.startswith("cuda")
    n_ranks = torch.cuda.device_count() if on_gpu else 2
    rank, port = start_ranks(n_ranks)
    if rank:
        end_with_parent()
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    torch.distributed.init_process_group(
        "nccl" if on_gpu else "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=n_ranks,
    )
    parallel = nn.parallel.DistributedDataParallel(model.to(device))
    train(parallel, loader, args, device=device, part=slice(rank, None, n_ranks))
    torch.distributed.destroy_process_group()


def train(
    model: nn.Module,
    loader: DataLoader[Tensor],
    args: argparse.Namespace,
    *,
    device: torch.device,
    part: slice = slice(None),
) -> None:
    set_to_none = args.remedy if args.case == "zero-grad" else True
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for epoch in range(1, args.epochs + 1):
        start = time.perf_counter()
        for batch in loader:
            x = batch[part].to(device)
            optimizer.zero_grad(set_to_none=set_to_none)
            model(x).square().mean().backward()
            optimizer.step()
        step_ms = 1e3 * (time.perf_counter() - start) / len(loader)
        print(f"epoch {epoch}: {step_ms:.2f} ms a step", flush=True)


def main() -> None:
    args = parse_args()
    torch.manual_seed(args.seed)
    device, case = torch.device(args.device), CASES[args.case]
    torch.backends.cudnn.benchmark = args.case == "conv" and args.remedy
    model = case.model(args.remedy).to(device)
    loader = DataLoader(Ready(case.shape, args.batches), batch_size=None)
    if args.case == "pointwise" and args.remedy:
        model = torch.compile(model)
    if args.case == "parallel" and args.remedy:
        train_ddp(model, loader, args)
    elif args.case == "parallel":
        train(nn.DataParallel(model), loader, args, device=device)
    else:
        train(model, loader, args, device=device)


if __name__ == "__main__":
    main()
