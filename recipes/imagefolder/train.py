"""Trains a ResNet on a folder of JPEG files, the way ImageNet is trained.

    python train.py --num-workers 4
    python train.py --data-dir /data/imagenet/train --model resnet50
    python train.py --dali                 # NVIDIA DALI in place of the workers

Each sample is read from its own file, decoded, cropped, flipped and normalised on the CPU. Without
a --data-dir that holds class folders, files of ImageNet's size are cut out of two photos once, and
used again by later runs. On a CPU the model is ResNet-18 on small crops, since a step of ResNet-50
takes many seconds there.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from cutouts import DataError, default_folder, has_classes, make_cutouts
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, models, transforms

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, scaled to 0…1
DALI_THREADS = 4
# What a CPU gets through in a bearable time, and what a GPU is usually given.
ON_CPU = {"model": "resnet18", "batch_size": 8, "image_size": 112, "images": 240}
ON_GPU = {"model": "resnet50", "batch_size": 64, "image_size": 224, "images": 2000}


def load_images(args: argparse.Namespace) -> datasets.ImageFolder:
    """The user's class folders, or cut-outs made once; says on stdout which."""
    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(args.image_size),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )
    folder: Path = args.data_dir or default_folder()
    own = args.data_dir is not None and has_classes(folder)
    root = folder if own else make_cutouts(folder, args.images)
    try:
        images = datasets.ImageFolder(str(root), transform=transform)
    except FileNotFoundError as error:
        raise DataError(f"{root}: {error}") from error
    what = "" if own else "cut out of two photos, "
    print(f"data: {len(images):,} JPEG files, {what}in {root}", flush=True)
    return images


def train_epoch(
    model: nn.Module,
    loader: DataLoader[Any],
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    *,
    non_blocking: bool,
) -> float:
    model.train()
    total = torch.zeros((), device=device)
    for images, labels in loader:
        images = images.to(device, non_blocking=non_blocking)
        labels = labels.to(device, non_blocking=non_blocking)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        total += loss.detach()
    return total.item() / len(loader)


def make_loader(
    images: datasets.ImageFolder, args: argparse.Namespace, device: torch.device
) -> DataLoader[Any]:
    """The samples in a new order each epoch, in whole batches."""
    if not args.dali:
        return DataLoader(
            images,
            batch_size=args.batch_size,
            shuffle=True,
            num_workers=args.num_workers,
            pin_memory=args.pin_memory,
            drop_last=True,
        )
    try:
        from dali import DaliBatches
    except ImportError as error:
        raise SystemExit(f"--dali needs NVIDIA DALI ({error}).") from None
    batches = DaliBatches(
        images.samples,
        batch_size=args.batch_size,
        image_size=args.image_size,
        mean=MEAN,
        std=STD,
        device=device,
        n_threads=args.num_workers or DALI_THREADS,
        seed=args.seed,
    )
    return DataLoader(batches, batch_size=None)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data-dir",
        type=Path,
        help="folder of class folders; if it holds none, cut-outs are made in it "
        f"(default: {default_folder()})",
    )
    for name, about in (
        ("model", "any image classifier of torchvision"),
        ("batch_size", "images per step"),
        ("image_size", "side of the crops"),
        ("images", "how many files to make"),
    ):
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=type(ON_CPU[name]),
            help=f"{about} (default: {ON_GPU[name]}, on a CPU {ON_CPU[name]})",
        )
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--pin-memory", action="store_true")
    parser.add_argument("--non-blocking", action="store_true", help="copy without waiting")
    parser.add_argument(
        "--dali",
        action="store_true",
        help="NVIDIA DALI makes the batches, in --num-workers threads of its own "
        f"(default: {DALI_THREADS})",
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    for name, value in (ON_CPU if args.device == "cpu" else ON_GPU).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    if args.model not in models.list_models(module=models):
        parser.error(f"argument --model: torchvision has no {args.model}")
    return args


def main() -> None:
    args = parse_args()
    torch.manual_seed(args.seed)
    device = torch.device(args.device)
    try:
        images = load_images(args)
    except DataError as error:
        raise SystemExit(str(error)) from None
    if len(images) < args.batch_size:
        raise SystemExit(f"{len(images)} images fill no batch of {args.batch_size}.")
    loader = make_loader(images, args, device)
    model = models.get_model(args.model, weights=None, num_classes=len(images.classes)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    for epoch in range(1, args.epochs + 1):
        start = time.perf_counter()
        loss = train_epoch(model, loader, optimizer, device, non_blocking=args.non_blocking)
        seconds = time.perf_counter() - start
        n_images = len(loader) * args.batch_size
        print(f"epoch {epoch}: loss {loss:.4f}, {n_images / seconds:,.0f} images/s", flush=True)


if __name__ == "__main__":
    main()
