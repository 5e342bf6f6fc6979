"""What loops.py's loops are made of: samples of known cost, models, and ways to the device."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def spin(ms: float) -> None:
    """Burn CPU for a while, holding the GIL."""
    end = time.perf_counter() + ms / 1e3
    while time.perf_counter() < end:
        pass


class Samples(Dataset[Any]):
    """Synthetic samples with a known cost each."""

    def __init__(
        self,
        n: int,
        shape: tuple[int, ...],
        *,
        spin_ms: float = 0.0,
        sleep_ms: float = 0.0,
        slow_every: int = 0,
        slow_ms: float = 0.0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.n, self.spin_ms, self.sleep_ms = n, spin_ms, sleep_ms
        self.slow_every, self.slow_ms = slow_every, slow_ms
        self.base = make(shape, dtype)

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        if self.spin_ms:
            spin(self.spin_ms)
        if self.sleep_ms:
            time.sleep(self.sleep_ms / 1e3)
        if self.slow_every and i % self.slow_every == 0:
            time.sleep(self.slow_ms / 1e3)
        return self.base.clone(), i % 10


class Parts(Samples):
    """Each sample as a dict of six tensors: several copies a step."""

    def __getitem__(self, i: int) -> dict[str, Any]:  # type: ignore[override]
        x, y = super().__getitem__(i)
        return {**{f"part{k}": x for k in range(5)}, "label": y}


def make(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Random data of this kind."""
    if dtype.is_floating_point:
        return torch.rand(shape, dtype=dtype)
    return torch.randint(0, 255, shape, dtype=dtype)


def slow_collate(batch: list[Any]) -> Any:
    """Tokenising-like work in collate: 10 ms of Python."""
    spin(10.0)
    return torch.utils.data.default_collate(batch)


def mlp(width: int = 2048, depth: int = 4) -> nn.Module:
    """Plain perceptron on MNIST-sized input."""
    dims = [784] + [width] * depth
    layers = [m for a, b in pairwise(dims) for m in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(width, 10))


def convnet(width: int = 64) -> nn.Module:
    """Three convolutions with batch norm."""

    def block(i: int, o: int) -> list[nn.Module]:
        return [nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU()]

    return nn.Sequential(
        *block(3, width), nn.MaxPool2d(2), *block(width, width), nn.MaxPool2d(2),
        *block(width, width), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10),
    )  # fmt: skip


def resnet50() -> nn.Module:
    """From torchvision, random weights."""
    from torchvision.models import resnet50

    return resnet50(num_classes=10)


class SideStream:
    """Copies the next batch on a stream of its own while this one computes.

    With `half`, only the second half of (images, labels) goes that way; the first waits in line.
    """

    def __init__(self, source: Any, *, half: bool) -> None:
        self.source, self.half = source, half

    def __iter__(self) -> Iterator[Any]:
        stream = torch.cuda.Stream()
        batches = iter(self.source)

        def load() -> Any:
            try:
                batch = next(batches)
            except StopIteration:
                return None
            with torch.cuda.stream(stream):
                if isinstance(batch, dict):
                    return {k: v.to(DEVICE, non_blocking=True) for k, v in batch.items()}
                x, y = batch
                if not self.half:
                    return x.to(DEVICE, non_blocking=True), y.to(DEVICE, non_blocking=True)
                n = len(x) // 2
                return x[:n], x[n:].to(DEVICE, non_blocking=True), y.to(DEVICE, non_blocking=True)

        following = load()
        while following is not None:
            torch.cuda.current_stream().wait_stream(stream)
            current = following
            for tensor in current.values() if isinstance(current, dict) else current:
                if tensor.is_cuda:
                    tensor.record_stream(torch.cuda.current_stream())
            following = load()
            if self.half:
                front, back, y = current
                yield torch.cat([front.to(DEVICE, non_blocking=True), back]), y
            else:
                yield current


class Forever:
    """The same batch again and again."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield self.batch


def synchronize() -> None:
    """Wait for the device, if there is one."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
