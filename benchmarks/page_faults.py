"""What batches in fresh shared memory cost the training thread, and what helps.

    OMP_NUM_THREADS=1 python benchmarks/page_faults.py [--megabytes 16] [--batches 40]

A loop with two workers reads each batch once and works on something else. Printed, medians of a
batch: the first read, a second one, dropping it, the loop's wait, minor page faults of the training
thread. Then the same loop with what might help. Rows of one run compare; the machine's load changes
times by far more than remedies do, so read faults first.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

BATCH, WORKERS, PREFETCH = 16, 2, 2
SKIPPED = 4  # first batches: workers start, allocators warm up


class Rows(Dataset[Any]):
    """The same row again and again: nothing but handing over."""

    def __init__(self, n_bytes: int, n_batches: int, dtype: torch.dtype) -> None:
        self.row = torch.ones(n_bytes // 4 // BATCH, dtype=dtype)
        self.n = n_batches * BATCH

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        return self.row


class WithSlot(Rows):
    def __getitem__(self, index: Any) -> Any:
        return index[0], self.row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=16)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--work", type=int, default=8, help="products of 500 x 500 a step")
    parser.add_argument("--sharing", choices=("file_descriptor", "file_system"))
    told = parser.parse_args()
    torch.set_num_threads(1)
    if told.sharing:
        torch.multiprocessing.set_sharing_strategy(told.sharing)  # type: ignore[no-untyped-call]
    n_bytes, n = told.megabytes << 20, told.batches
    replay_buffer = [
        torch.zeros(BATCH, n_bytes // 4 // BATCH).share_memory_()  # type: ignore[no-untyped-call]
        for _ in range(WORKERS * PREFETCH + 2)
    ]

    def slots() -> list[list[tuple[int, int]]]:
        return [[(k % len(replay_buffer), i) for i in range(BATCH)] for k in range(n)]

    def into_buffers(samples: list[tuple[int, torch.Tensor]]) -> int:
        torch.stack([row for _, row in samples], out=replay_buffer[samples[0][0]])
        return samples[0][0]

    def plain(dtype: torch.dtype, workers: int = WORKERS) -> DataLoader[Any]:
        return DataLoader(Rows(n_bytes, n, dtype), BATCH, num_workers=workers)

    print(f"{'':24}{'read':>8}{'again':>8}{'drop':>8}{'wait':>8}{'step ms':>9}{'faults':>9}")
    loop(told.work, "as is", plain(torch.float32))
    loop(told.work, "never read", plain(torch.float32), read=False)
    loop(told.work, "half as wide", plain(torch.float16))
    loop(told.work, "no workers", plain(torch.float32, 0))
    shared: DataLoader[Any] = DataLoader(
        WithSlot(n_bytes, n, torch.float32),
        batch_sampler=slots(),
        collate_fn=into_buffers,
        num_workers=WORKERS,
    )
    loop(told.work, "shared tensors reused", shared, get=replay_buffer.__getitem__)


def loop(
    work: int,
    name: str,
    loader: DataLoader[Any],
    get: Callable[[Any], torch.Tensor] | None = None,
    *,
    read: bool = True,
) -> None:
    other, rows = torch.randn(500, 500), []
    batches: Iterator[Any] = iter(loader)
    while True:
        faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        times = [time.perf_counter()]
        batch = next(batches, None)
        if batch is None:
            break
        times.append(time.perf_counter())
        held = [get(batch) if get is not None else batch]
        del batch
        for _ in range(2):
            if read:
                held[0].view(torch.int64).max()
            times.append(time.perf_counter())
        for _ in range(work):
            other @ other
        times.append(time.perf_counter())
        held.clear()
        times.append(time.perf_counter())
        faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - faults
        wait, first, again, _, drop = (b - a for a, b in itertools.pairwise(times))
        rows.append((first, again, drop, wait, times[-1] - times[0], faults))
    middle = [statistics.median(column) for column in zip(*rows[SKIPPED:], strict=True)]
    figures = "".join(f"{1e3 * x:8.2f}" for x in middle[:4])
    print(f"{name:24}{figures}{1e3 * middle[4]:9.1f}{middle[5]:9.0f}")


if __name__ == "__main__":
    main()
