"""Trains one of several small models, each made to show what one setting of the computation does.

    python train.py --case conv              # cudnn chooses its kernels by rule
    python train.py --case conv --remedy     # cudnn tries them out first
    python train.py --case parallel --parallel data_parallel
    torchrun --nproc-per-node 2 train.py --case parallel --parallel ddp

The batches are random numbers, ready in memory: the loader costs next to nothing here.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, DistributedSampler

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


class Rows(Dataset[Tensor]):
    """So many samples of one shape, several at a time: what ranks can share."""

    def __init__(self, shape: tuple[int, ...], n_batches: int) -> None:
        self.batch = torch.randn(shape)
        self.n_rows = shape[0] * n_batches

    def __len__(self) -> int:
        return self.n_rows

    def __getitem__(self, index: int) -> Tensor:
        return self.batch[index % len(self.batch)]

    def __getitems__(self, indices: list[int]) -> Tensor:
        return self.batch[: len(indices)]


def as_it_is(batch: Tensor) -> Tensor:
    return batch


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
    parser.add_argument(
        "--parallel",
        choices=("none", "data_parallel", "ddp"),
        default="none",
        help="several GPUs: each batch split by one process, or shared by those of torchrun",
    )
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batches", type=int, default=N_BATCHES, help="in an epoch")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def join_job(args: argparse.Namespace) -> tuple[torch.device, int]:
    """(device, number of ranks): this process's place in the job that torchrun started."""
    if "LOCAL_RANK" not in os.environ:
        raise SystemExit("--parallel ddp: start it by torchrun --nproc-per-node=2 train.py ...")
    device = torch.device(args.device)
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return device, torch.distributed.get_world_size()


def loader_of(case: Case, args: argparse.Namespace, n_ranks: int) -> DataLoader[Tensor]:
    """Ready batches; of several devices' batches each rank draws its own share of the samples."""
    if args.parallel == "none":
        return DataLoader(Ready(case.shape, args.batches), batch_size=None)
    batch_size = case.shape[0]
    if batch_size % n_ranks:
        raise SystemExit(f"a batch of {batch_size} can't be shared by {n_ranks} ranks.")
    rows = Rows(case.shape, args.batches)
    return DataLoader(
        rows,
        batch_size=batch_size // n_ranks,
        sampler=DistributedSampler(rows) if args.parallel == "ddp" else None,
        collate_fn=as_it_is,
        drop_last=True,
    )


def train(
    model: nn.Module,
    loader: DataLoader[Tensor],
    args: argparse.Namespace,
    *,
    device: torch.device,
) -> None:
    set_to_none = args.remedy if args.case == "zero-grad" else True
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for epoch in range(1, args.epochs + 1):
        start = time.perf_counter()
        for batch in loader:
            x = batch.to(device)
            optimizer.zero_grad(set_to_none=set_to_none)
            model(x).square().mean().backward()
            optimizer.step()
        step_ms = 1e3 * (time.perf_counter() - start) / len(loader)
        if os.environ.get("RANK", "0") == "0":
            print(f"epoch {epoch}: {step_ms:.2f} ms a step", flush=True)


def main() -> None:
    args = parse_args()
    torch.manual_seed(args.seed)
    device, n_ranks = torch.device(args.device), 1
    if args.parallel == "ddp":
        device, n_ranks = join_job(args)
    case = CASES[args.case]
    torch.backends.cudnn.benchmark = args.case == "conv" and args.remedy
    model = case.model(args.remedy).to(device)
    if args.case == "pointwise" and args.remedy:
        model = torch.compile(model)
    if args.parallel == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    elif args.parallel == "data_parallel":
        model = nn.DataParallel(model)
    train(model, loader_of(case, args, n_ranks), args, device=device)
    if args.parallel == "ddp":
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
