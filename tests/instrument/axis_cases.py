"""Datasets for the tests of the data axes: pictures in memory, in files, and in two inputs."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from loaderdoctor.instrument.batches import tensors
from loaderdoctor.settings import Settings
from tests.instrument.opening import opened

# Trials that hand out the loader's own batches, byte for byte and in its order. docs/axes.md names
# the axes in them: other data and samples, other ways to fetch, other ways to the device.
SAME_DATA = (
    Settings(cache=True),
    Settings(cache=True, batched=True),
    Settings(storage="cold"),
    Settings(storage="tmpfs"),
    Settings(storage="original"),
    Settings(portion=1.0),
    Settings(augment="on"),
    Settings(fields="all"),
)
SAME_LOADING = (
    Settings(num_workers=2, prefetch_factor=4, in_order=True),
    Settings(num_workers=2, persistent_workers=True),
    Settings(num_workers=2, keep_iterator=True),
    Settings(num_workers=2, persistent_workers=True, background="host"),
    Settings(threads=3),
    Settings(num_workers=2, worker_cpus="all"),
    Settings(num_workers=2, worker_gc="rarely"),
    Settings(num_workers=2, reuse_buffers=True),
    Settings(num_workers=2, spdl=True),
    Settings(num_workers=1, start_method="spawn"),
    Settings(num_workers=1, start_method="forkserver"),
)
SAME_ON_DEVICE = (
    Settings(pin_memory=True),
    Settings(pin_memory=True, non_blocking=True, num_workers=2, persistent_workers=True),
    Settings(background="host", pin_memory=True),
    Settings(background="device", pin_memory=True, non_blocking=True),
    Settings(background="device"),
    Settings(side_stream=True, pin_memory=True),
    Settings(side_stream=True, pin_memory=True, num_workers=2),
    Settings(packed=True),
    Settings(packed=True, pin_memory=True, non_blocking=True, num_workers=2),
    Settings(packed=True, side_stream=True, pin_memory=True),
    Settings(resident=True),
    Settings(cache=True, side_stream=True, pin_memory=True),
)
# The loop itself, a pool of workers, and a thread before a pool.
WORKERS = (
    Settings(),
    Settings(num_workers=2),
    Settings(num_workers=2, background="host"),
)
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.21, 0.22)


def pictures(n: int, side: int = 20) -> np.ndarray[Any, Any]:
    draw = np.random.default_rng(0)
    return draw.integers(0, 256, (n, side, side, 3), dtype=np.uint8)


class Pictures(Dataset[tuple[Tensor, int]]):
    """Pictures in memory through a Compose; `counted` samples were made in this process."""

    def __init__(self, n: int = 32, *first: Any, normalise: bool = True) -> None:
        self.data = pictures(n)
        self.counted = 0
        last = [transforms.Normalize(MEAN, STD)] if normalise else []
        self.transform = transforms.Compose([*first, transforms.ToTensor(), *last])

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.counted += 1
        return self.transform(Image.fromarray(self.data[index])), index


class Listed(Dataset[tuple[Tensor, int]]):
    """Files named by a list of pairs, as torchvision's ImageFolder has them."""

    def __init__(self, root: Path, n: int = 16) -> None:
        self.root = str(root)
        self.samples = []
        for i, pixels in enumerate(pictures(n, 48)):
            path = root / f"class{i % 2}" / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)
            self.samples.append((str(path), i))
        self.imgs = self.samples
        self.transform = transforms.ToTensor()

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path, label = self.samples[index]
        with Image.open(path) as picture:
            return self.transform(picture.convert("RGB")), label


class InFolder(Dataset[Tensor]):
    """Files whose names are made from a folder when a sample is read."""

    def __init__(self, folder: Path, n: int = 8) -> None:
        self.folder = folder
        self.n = n
        folder.mkdir(exist_ok=True)
        for i in range(n):
            (folder / f"{i}.npy").write_bytes(b"")
            np.save(folder / f"{i}.npy", np.full(4096, i, dtype=np.float32))

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Tensor:
        return torch.from_numpy(np.load(self.folder / f"{index}.npy"))


class Two(Dataset[dict[str, Any]]):
    """Two inputs and a label."""

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "image": torch.full((3, 4), float(index)),
            "sound": torch.full((5,), float(index)),
            "label": index,
        }


def digests(batches: Any) -> list[str]:
    """A hash of each batch: paths, types and every byte."""
    found = []
    for batch in batches:
        digest = hashlib.sha256()
        for path, tensor in tensors(batch):
            digest.update(f"{path} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.contiguous().numpy().tobytes())
        found.append(digest.hexdigest())
    return found


def plainly(loader: DataLoader[Any], n: int) -> list[str]:
    """A hash of each of the loader's own first `n` batches."""
    return digests(batch for batch, _ in zip(loader, range(n), strict=False))


def taken(loader: DataLoader[Any], settings: Settings, n: int, **more: Any) -> list[Any]:
    """The first `n` batches of a trial, clones, its source closed."""
    source = opened(loader, settings, **more)
    try:
        return [source.next_batch() for _ in range(n)]
    finally:
        source.close()
