"""Datasets, loaders and loops for the tests of trials; importable by spawned workers."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import psutil
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from loaderdoctor.instrument.wire.records import TransferRecord


class Squares(Dataset[tuple[Tensor, int]]):
    """Sample i is (i² three times, i)."""

    def __init__(self, n: int = 32, sleep_s: float = 0.0, hang_at: int | None = None) -> None:
        self.n = n
        self.sleep_s = sleep_s
        self.hang_at = hang_at

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if index == self.hang_at:
            time.sleep(600)
        time.sleep(self.sleep_s)
        return torch.full((3,), float(index * index)), index


class WorkerIds(Dataset[int]):
    """The process that made the sample."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> int:
        return os.getpid()


class Unsharded(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(16))


class Sharded(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(first, 16, step))


class Failing(Dataset[int]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index == 3:
            raise ValueError("sample 3 is broken")
        return index


def raw_iterator(loader: DataLoader[Any]) -> Any:
    """What the session's hooks hand to a trial: torch's own iterator."""
    return DataLoader.__iter__(loader)


def children() -> set[int]:
    """Processes of ours that are alive, multiprocessing's own helpers left out."""
    found = set()
    for child in psutil.Process().children(recursive=True):
        try:
            line = " ".join(child.cmdline())
        except psutil.Error:
            continue
        if child.status() == psutil.STATUS_ZOMBIE:
            continue
        if "resource_tracker" in line or "forkserver" in line:
            continue
        found.add(child.pid)
    return found


def background_threads() -> list[threading.Thread]:
    """Threads of ours, and torch's pin-memory threads."""
    return [
        thread
        for thread in threading.enumerate()
        if thread.name.startswith("loaderdoctor") or "_pin_memory_loop" in thread.name
    ]


def moved(path: str, shape: tuple[int, ...], dtype: str) -> TransferRecord:
    """The loop copies that tensor of its batch."""
    return TransferRecord(
        call="to", site="train.py:1", code=None, shape=shape, dtype=dtype, n_bytes=0,
        pinned=False, non_blocking=False, path=path,
    )  # fmt: skip
