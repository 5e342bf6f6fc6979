"""What recording inside workers costs: loading time with and without it, interleaved.

    OMP_NUM_THREADS=1 python benchmarks/worker_overhead.py [--rounds 12]

First, what the hooks themselves cost: torch's own worker loop is run here, with queues that hold
everything at once, and the CPU time of the thread is compared. Then whole loaders: rounds of one
recorded and one unrecorded epoch in turn (which goes first is shuffled), each over a fresh pool.
Printed is recorded / unrecorded with a 95 % interval over rounds, for wall time without the
workers' start-up, and for CPU time of all processes, which other load on the machine disturbs less.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torch.utils.data._utils import worker as torch_worker

from loaderdoctor.instrument import fetch_clock, worker


class Decoding(Dataset[Any]):
    """About 1 ms of CPU work for each sample, like decoding and augmenting a small picture."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.source = torch.randint(0, 255, (3, 64, 64), dtype=torch.uint8)

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> torch.Tensor:
        image = self.source
        for _ in range(25):
            image = image.flip(2).float().div(255).mul(200).to(torch.uint8)
        return image


def loaders() -> dict[str, DataLoader[Any]]:
    """The loaders measured, by name: what one batch costs spans two orders of magnitude."""
    tiny = TensorDataset(torch.rand(25_600, 8))
    return {
        "1 worker, 32 samples of 1 ms": DataLoader(Decoding(1280), batch_size=32, num_workers=1),
        "0 workers, 32 samples of 1 ms": DataLoader(Decoding(640), batch_size=32),
        "1 worker, 4 samples of 1 ms": DataLoader(Decoding(640), batch_size=4, num_workers=1),
        "1 worker, TensorDataset, 256 a batch": DataLoader(tiny, batch_size=256, num_workers=1),
        "0 workers, TensorDataset, 256 a batch": DataLoader(tiny, batch_size=256),
    }


class _Indices:
    """An index queue that holds every request already, and ends the loop after the last."""

    def __init__(self, n_batches: int, batch_size: int, done: threading.Event) -> None:
        batch = list(range(batch_size))
        self.requests: list[Any] = [(i, batch) for i in range(n_batches)][::-1]
        self.done = done

    def get(self, timeout: float | None = None) -> Any:
        if self.requests:
            return self.requests.pop()
        self.done.set()
        return None

    def put(self, item: Any) -> None:
        raise NotImplementedError


class _Sink:
    """A data queue that forgets."""

    def get(self) -> Any:
        raise NotImplementedError

    def put(self, item: Any) -> None:
        pass

    def cancel_join_thread(self) -> None:
        pass

    def close(self) -> None:
        pass


class _Nothing(Dataset[int]):
    def __init__(self, spin: int) -> None:
        self.spin = spin

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, i: int) -> int:
        for _ in range(self.spin):
            pass
        return i


def _first(samples: list[int]) -> int:
    return samples[0]


def loop_cpu_ns(loop: Any, n_batches: int, batch_size: int, spin: int) -> float:
    """CPU time of the calling thread for one batch through a worker loop."""
    done = threading.Event()
    indices = _Indices(n_batches, batch_size, done)
    began = time.thread_time_ns()
    loop(
        0, [_Nothing(spin)], indices, _Sink(), done, True, _first, False, 1, None, 0, 1, False, None
    )
    return (time.thread_time_ns() - began) / n_batches


def hook_ratio(n_rounds: int, batch_size: int, spin: int, n_batches: int) -> Ratio:
    """CPU time of torch's worker loop, recorded / unrecorded."""
    plain_loop = torch_worker._worker_loop
    ratios = []
    for _ in range(n_rounds):
        took = {}
        for recorded in random.sample((False, True), 2):
            with tempfile.TemporaryDirectory() as folder:
                loop = worker.RecordedLoop(plain_loop, folder, serial=1) if recorded else plain_loop
                took[recorded] = loop_cpu_ns(loop, n_batches, batch_size, spin)
                fetch_clock.remove_clocks()
        ratios.append(took[True] / took[False])
    return median_ratio(ratios)


@dataclass(frozen=True)
class Ratio:
    """A median with its distribution-free 95 % interval: other load makes wild outliers."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


def median_ratio(ratios: Sequence[float]) -> Ratio:
    """Median, and the order statistics that hold the true one with 95 % (binomial) probability."""
    ordered = sorted(ratios)
    n = len(ordered)
    reach = math.ceil(0.98 * math.sqrt(n))  # 1.96 sqrt(n) / 2 ranks either side of the middle
    low, high = max(0, n // 2 - reach), min(n - 1, (n - 1) // 2 + reach)
    return Ratio((ordered[(n - 1) // 2] + ordered[n // 2]) / 2, ordered[low], ordered[high])


def loading_s(source: DataLoader[Any], records: Path | None) -> tuple[float, float]:
    """Wall time from the first batch to the end of the epoch; CPU time of it all."""
    if records is not None:
        worker.install(records)
    try:
        cpu_began = sum(os.times()[:4])
        iterator = iter(source)
        next(iterator)
        began = time.perf_counter()
        for _ in iterator:
            pass
        took = time.perf_counter() - began
        del iterator  # joins the workers: only then does their CPU time count as children's
        return took, sum(os.times()[:4]) - cpu_began
    finally:
        if records is not None:
            worker.remove()


def overhead(source: DataLoader[Any], n_rounds: int) -> tuple[Ratio, Ratio]:
    """Recorded / unrecorded over rounds: wall time, CPU time."""
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        loading_s(source, None)
        for number in range(n_rounds):
            took: dict[bool, tuple[float, float]] = {}
            for recorded in random.sample((False, True), 2):
                path = Path(folder) / str(number) if recorded else None
                took[recorded] = loading_s(source, path)
            ratios.append([a / b for a, b in zip(took[True], took[False], strict=True)])
    wall, cpu = (median_ratio(column) for column in zip(*ratios, strict=True))
    return wall, cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    n_rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    print("recorded / unrecorded, median and 95 % interval")
    for batch_size, spin, n_batches in ((1, 3_000, 2000), (32, 3_000, 100), (32, 60_000, 6)):
        us = loop_cpu_ns(torch_worker._worker_loop, n_batches, batch_size, spin) / 1000
        ratio = hook_ratio(n_rounds, batch_size, spin, n_batches)
        print(f"hooks alone, {batch_size:2d} samples, {us:8.0f} us a batch: CPU {ratio}")
    for name, source in loaders().items():
        wall, cpu = overhead(source, n_rounds)
        print(f"{name:38s} wall {wall}, CPU {cpu}")


if __name__ == "__main__":
    main()
