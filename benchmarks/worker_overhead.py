"""What recording inside workers costs: loading time with and without it, interleaved.

    OMP_NUM_THREADS=1 python benchmarks/worker_overhead.py [--rounds 30] [--only TEXT]

First, what the hooks themselves cost: torch's own worker loop is run here, with queues that hold
everything at once, and the CPU time of the thread is compared. Each round runs a short and a long
epoch, recorded and not; a batch's cost is the difference of long and short, so that what a worker
pays once (its file, its threads) does not count as a batch's. Then whole loaders: rounds of one
recorded and one unrecorded epoch in turn (which goes first is shuffled), each over a fresh pool.
Printed is recorded / unrecorded with a 95 % interval over rounds, for wall time without the
workers' start-up, and for CPU time of all processes, which other load on the machine disturbs less.
"""

from __future__ import annotations

import argparse
import io
import math
import os
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
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


class Digits(Dataset[Any]):
    """A picture of 28 x 28 turned into floats and normalised: what a sample of MNIST costs."""

    def __init__(self, n: int) -> None:
        self.images = torch.randint(0, 255, (n, 28, 28), dtype=torch.uint8)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        image = Image.fromarray(self.images[i].numpy(), mode="L")
        array = torch.from_numpy(np.asarray(image, dtype=np.float32)).div_(255)
        return array.sub_(0.1307).div_(0.3081).unsqueeze(0), i % 10


class Photographs(Dataset[Any]):
    """A JPEG of 500 x 375 decoded and scaled to 224: what a sample of ImageNet costs."""

    def __init__(self, n: int) -> None:
        self.n = n
        noise = np.random.default_rng(0).integers(0, 255, (48, 64, 3), dtype=np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(noise).resize((500, 375)).save(buffer, "JPEG", quality=90)
        self.file = buffer.getvalue()

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> torch.Tensor:
        image = Image.open(io.BytesIO(self.file)).convert("RGB").resize((224, 224))
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def loaders() -> dict[str, DataLoader[Any]]:
    """The loaders measured, by name: what one batch costs spans two orders of magnitude."""
    tiny = TensorDataset(torch.rand(25_600, 8))
    return {
        "1 worker, MNIST, 64 a batch": DataLoader(Digits(12_800), batch_size=64, num_workers=1),
        "1 worker, JPEG, 32 a batch": DataLoader(Photographs(320), batch_size=32, num_workers=1),
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
        raise NotImplementedError("a worker only takes indices")


class _Sink:
    """A data queue that forgets."""

    def get(self) -> Any:
        raise NotImplementedError("a worker only hands batches over")

    def put(self, item: Any) -> None:
        pass

    def cancel_join_thread(self) -> None:
        pass

    def close(self) -> None:
        pass


class _Nothing(Dataset[int]):
    """Counts bytes: compiled work, which runs as fast in one epoch as in the next."""

    def __init__(self, n_bytes: int) -> None:
        self.data = bytes(n_bytes)

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, i: int) -> int:
        return i + self.data.count(b"x")


def _first(samples: list[int]) -> int:
    return samples[0]


def loop_cpu_ns(loop: Any, n_batches: int, batch_size: int, n_bytes: int) -> float:
    """CPU time of the calling thread for one epoch of a worker loop."""
    done = threading.Event()
    indices = _Indices(n_batches, batch_size, done)
    # A worker's queue has a thread of its own, beside which looks ask for the interpreter as usual.
    feeder = threading.Thread(target=done.wait, name="QueueFeederThread", daemon=True)
    feeder.start()
    began = time.thread_time_ns()
    data = _Nothing(n_bytes)
    loop(0, [data], indices, _Sink(), done, True, _first, False, 1, None, 0, 1, False, None)
    took = time.thread_time_ns() - began
    done.set()
    feeder.join()
    return took


def hook_cost(
    n_rounds: int, batch_size: int, n_bytes: int, n_batches: int
) -> tuple[Ratio, float, float]:
    """One batch through torch's worker loop: recorded / unrecorded, and both in us (medians)."""
    plain_loop = torch_worker._worker_loop
    lengths = (n_batches // 5, n_batches)
    recorded, unrecorded = [], []
    for _ in range(n_rounds):
        took = {}
        order = [(wanted, n) for wanted in (False, True) for n in lengths]
        for wanted, n in random.sample(order, len(order)):
            with tempfile.TemporaryDirectory() as folder:
                loop = worker.RecordedLoop(plain_loop, folder, serial=1) if wanted else plain_loop
                took[wanted, n] = loop_cpu_ns(loop, n, batch_size, n_bytes)
                fetch_clock.remove_clocks()
        short, long = lengths
        for wanted, column in ((True, recorded), (False, unrecorded)):
            column.append((took[wanted, long] - took[wanted, short]) / (long - short) / 1000)
    ratio = median_ratio([a / b for a, b in zip(recorded, unrecorded, strict=True)])
    return ratio, statistics.median(recorded), statistics.median(unrecorded)


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
    parser.add_argument("--only", default="", help="loaders whose name holds this")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    print("recorded / unrecorded, median and 95 % interval")
    # Samples of 60, 100 and 5000 us where a byte takes 0.3 ns.
    work = ((1, 200_000, 2000), (64, 350_000, 100), (32, 17_000_000, 6))
    for batch_size, n_bytes, n_batches in work if not options.only else ():
        ratio, ours, plain = hook_cost(options.rounds, batch_size, n_bytes, n_batches)
        print(
            f"hooks alone, {batch_size:2d} samples: CPU {ratio}, "
            f"{ours - plain:.1f} us more than {plain:.0f} us a batch"
        )
    for name, source in loaders().items():
        if options.only in name:
            wall, cpu = overhead(source, options.rounds)
            print(f"{name:38s} wall {wall}, CPU {cpu}")
    print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
