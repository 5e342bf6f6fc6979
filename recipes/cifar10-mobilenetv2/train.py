"""Trains MobileNetV2 on CIFAR-10, with a ladder of speed-ups as options, one rung each.

    python train.py                                              # the baseline: batch 32, float32
    python train.py --amp --batch-size 128 --uint8 --num-workers 2 --pin-memory --non-blocking
    python train.py --data-dir /data/cifar10                     # the real CIFAR-10
    torchrun --nproc-per-node 2 train.py --parallel ddp          # a share of each batch per GPU

The weights start at random and the images are scaled from 32x32 to the 224x224 that the network
was made for; that scaling, one PIL image at a time, is what the loop waits for. On a CPU they are
scaled to 16x16, since a step of 128 takes 2.5 s on two cores even at 32x32 (--image-size).

Without --data-dir the images are 32x32 cut-outs of two photos: the same work, not CIFAR-10.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset
from torchvision import datasets, models, transforms

PHOTOS = Path(__file__).resolve().parent.parent / "_photos"
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of CIFAR-10, scaled to 0…1
N_CLASSES = 10
CPU_SIDE = 16
N_IMAGES = 50_000  # as many as CIFAR-10 has for training
SIDE = 32


class PhotoCutouts(Dataset[tuple[Tensor, int]]):
    """Sample i: a 32x32 cut-out of one of two photos, transformed, and where it was taken.

    The class is the photo and which vertical fifth of it the left edge lies in: 10 in all.
    """

    def __init__(self, transform: transforms.Compose, *, n_images: int = N_IMAGES) -> None:
        names = ("china.jpg", "flower.jpg")
        self.photos = [np.asarray(Image.open(PHOTOS / name).convert("RGB")) for name in names]
        self.transform = transform
        height, width, _ = self.photos[0].shape
        draw = np.random.default_rng(0)  # the data never depend on --seed
        self.which = draw.integers(len(names), size=n_images)
        self.top = draw.integers(height - SIDE + 1, size=n_images)
        self.left = draw.integers(width - SIDE + 1, size=n_images)
        self.labels = 5 * self.which + 5 * self.left // (width - SIDE + 1)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        top, left = self.top[index], self.left[index]
        pixels = self.photos[self.which[index]][top : top + SIDE, left : left + SIDE]
        return self.transform(Image.fromarray(pixels)), int(self.labels[index])


def load_images(args: argparse.Namespace) -> Dataset[Any]:
    """CIFAR-10 if its folder was given, else cut-outs; says on stdout which."""
    resize = transforms.Resize(args.image_size)
    if args.uint8:
        transform = transforms.Compose([resize, transforms.PILToTensor()])
    else:
        transform = transforms.Compose(
            [resize, transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
        )
    images: Any
    if args.data_dir is None:
        images = PhotoCutouts(transform)
        what = "32x32 cut-outs of two photos, not CIFAR-10 (--data-dir takes the real one)"
    else:
        # Python pickles; torchvision compares their MD5 sums with the published ones first.
        try:
            images = datasets.CIFAR10(args.data_dir, train=True, transform=transform)
        except RuntimeError as error:
            raise SystemExit(
                f"{args.data_dir}: {error}. Expected is the folder cifar-10-batches-py in it, "
                "as torchvision lays it out."
            ) from None
        what = "CIFAR-10"
    n_images = min(args.samples or len(images), len(images))
    if n_images < args.batch_size:
        raise SystemExit(f"{n_images} images fill no batch of {args.batch_size}.")
    if is_first():
        print(
            f"data: {n_images:,} images, {what}, at {args.image_size}x{args.image_size}", flush=True
        )
    return images if n_images == len(images) else Subset(images, range(n_images))


def is_first() -> bool:
    """Whether this is the process that prints: the only one, or torchrun's rank 0."""
    return os.environ.get("RANK", "0") == "0"


def join_job(args: argparse.Namespace) -> tuple[torch.device, int]:
    """(device, number of ranks): this process's place in the job that torchrun started."""
    if "LOCAL_RANK" not in os.environ:
        raise SystemExit("--parallel ddp: start it by torchrun --nproc-per-node=2 train.py ...")
    device = torch.device(args.device)
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    n_ranks = torch.distributed.get_world_size()
    if args.batch_size % n_ranks:
        raise SystemExit(f"a batch of {args.batch_size} can't be shared by {n_ranks} ranks.")
    return device, n_ranks


class NormalizeOnDevice(nn.Module):
    """uint8 pixels (n, 3, h, w) to normalised float32, wherever they are."""

    mean: Tensor
    std: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", 255 * torch.tensor(MEAN).view(3, 1, 1))
        self.register_buffer("std", 255 * torch.tensor(STD).view(3, 1, 1))

    def forward(self, pixels: Tensor) -> Tensor:
        return (pixels.float() - self.mean) / self.std


def train_epoch(
    model: nn.Module,
    loader: DataLoader[Any],
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    args: argparse.Namespace,
) -> float:
    device = next(model.parameters()).device
    normalize = NormalizeOnDevice().to(device) if args.uint8 else nn.Identity()
    half = torch.float16 if device.type == "cuda" else torch.bfloat16
    model.train()
    total = torch.zeros((), device=device)
    for images, labels in loader:
        images = images.to(device, non_blocking=args.non_blocking)
        labels = labels.to(device, non_blocking=args.non_blocking)
        images = normalize(images)
        if args.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=half, enabled=args.amp):
            loss = nn.functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        total += loss.detach()
    return total.item() / len(loader)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data-dir",
        type=Path,
        help="folder with cifar-10-batches-py as torchvision lays it out (Python pickles); "
        "default: cut-outs of two photos",
    )
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--samples", type=int, help="use the first so many images (default: all)")
    parser.add_argument(
        "--image-size", type=int, help="side to scale the images to (default: 224, on a CPU 16)"
    )
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)

    loading = parser.add_argument_group("loading")
    loading.add_argument("--num-workers", type=int, default=0)
    loading.add_argument("--prefetch-factor", type=int, help="batches ahead per worker")
    loading.add_argument("--persistent-workers", action="store_true")
    loading.add_argument("--pin-memory", action="store_true")
    loading.add_argument("--non-blocking", action="store_true", help="copy without waiting")
    loading.add_argument(
        "--uint8", action="store_true", help="copy bytes and normalise on the device"
    )

    numerics = parser.add_argument_group("computing (these change the numbers)")
    numerics.add_argument("--amp", action="store_true", help="automatic mixed precision")
    numerics.add_argument("--channels-last", action="store_true")
    numerics.add_argument("--cudnn-benchmark", action="store_true", help="let cudnn try kernels")
    numerics.add_argument("--fused-optimizer", action="store_true")
    numerics.add_argument(
        "--parallel",
        choices=("none", "data_parallel", "ddp"),
        default="none",
        help="several GPUs: each batch split by one process, or shared by those of torchrun",
    )
    args = parser.parse_args()
    if args.image_size is None:
        args.image_size = CPU_SIDE if args.device == "cpu" else 224
    return args


def main() -> None:
    args = parse_args()
    torch.manual_seed(args.seed)
    torch.backends.cudnn.benchmark = args.cudnn_benchmark
    device, n_ranks = torch.device(args.device), 1
    if args.parallel == "ddp":
        device, n_ranks = join_job(args)
    images = load_images(args)
    sampler = DistributedSampler(images, drop_last=True) if args.parallel == "ddp" else None
    loader = DataLoader(
        images,
        batch_size=args.batch_size // n_ranks,
        shuffle=sampler is None,
        sampler=sampler,
        num_workers=args.num_workers,
        prefetch_factor=args.prefetch_factor,
        persistent_workers=args.persistent_workers,
        pin_memory=args.pin_memory,
        drop_last=True,
    )
    model = models.mobilenet_v2(weights=None, num_classes=N_CLASSES).to(device)
    if args.channels_last:
        model = model.to(memory_format=torch.channels_last)
    if args.parallel == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    elif args.parallel == "data_parallel":
        model = nn.DataParallel(model)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=args.lr, momentum=0.9, fused=True if args.fused_optimizer else None
    )
    scaler = torch.amp.GradScaler(device.type, enabled=args.amp and device.type == "cuda")
    for epoch in range(1, args.epochs + 1):
        start = time.perf_counter()
        if sampler is not None:
            sampler.set_epoch(epoch)
        loss = train_epoch(model, loader, optimizer, scaler, args)
        seconds = time.perf_counter() - start
        step_ms = 1e3 * seconds / len(loader)
        line = (
            f"epoch {epoch}: loss {loss:.4f}, {len(loader):,} steps of {step_ms:.1f} ms, "
            f"{len(loader) * args.batch_size / seconds:,.0f} images/s"
        )
        if device.type == "cuda":
            line += f", peak {torch.cuda.max_memory_allocated(device) / 1e9:.2f} GB"
        if is_first():
            print(line, flush=True)
    if args.parallel == "ddp":
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
