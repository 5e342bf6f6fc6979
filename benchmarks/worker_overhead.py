"""What recording inside workers costs: loading time with and without it, interleaved.

    OMP_NUM_THREADS=1 python benchmarks/worker_overhead.py [--rounds 30] [--parts] [--only TEXT]

First, what recording costs the worker: two processes run torch's own worker loop, one recorded, and
take turns of 25 ms or one batch in shuffled order; the CPU time of the process from turn to turn is
compared, so all of its threads count. They live through all rounds, so that what a worker pays once
(its file, its threads) does not count as a batch's. With --parts more processes take turns, each
without one part of recording. Then whole loaders: rounds of one
recorded and one unrecorded epoch in turn (which goes first is shuffled), each over a fresh pool.
Printed is recorded / unrecorded with a 95 % interval over rounds, for wall time without the
workers' start-up, and for CPU time of all processes, which other load on the machine disturbs less.
"""

from __future__ import annotations

import argparse
import io
import math
import multiprocessing
import os
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torch.utils.data._utils import worker as torch_worker

from loaderdoctor.instrument import fetch_clock, worker
from loaderdoctor.instrument.record_file import RecordWriter
from loaderdoctor.instrument.worker_sampling import LineSampler


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


class _Turns:
    """An index queue that hands out as many batches as the other end of a pipe says, each time.

    Answers with the CPU time of this process, when all batches of the turn before are made.
    """

    def __init__(self, pipe: Any, batch_size: int, done: threading.Event) -> None:
        self.pipe = pipe
        self.batch = list(range(batch_size))
        self.done = done
        self.n_left = self.n_made = 0

    def get(self, timeout: float | None = None) -> Any:
        if not self.n_left:
            self.pipe.send(time.process_time_ns())
            self.n_left = self.pipe.recv()
            if not self.n_left:
                self.done.set()
                return None
        self.n_left -= 1
        self.n_made += 1
        return self.n_made, self.batch

    def put(self, item: Any) -> None:
        raise NotImplementedError("a worker only takes indices")


class _Counting(Dataset[int]):
    """Counts bytes that stay in a core's own cache: as fast in one process as in the next."""

    def __init__(self, n_times: int) -> None:
        self.n_times = n_times
        self.data = b"-" * 70_000  # 20 us where a byte takes 0.3 ns

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, i: int) -> int:
        for _ in range(self.n_times):
            i += self.data.count(b"x")
        return i


def _first(samples: list[int]) -> int:
    return samples[0]


# Parts of recording, and how each is switched off: owner, name, what takes its place.
PARTS: dict[str, tuple[Any, str, Any]] = {
    "sample times": (fetch_clock, "MAX_STAMP_SHARE", 1e-9),
    "CPU clocks": (worker, "MAX_CPU_READ_SHARE", 1e-9),
    "looks": (LineSampler, "begin", lambda *_: None),
    "writing": (RecordWriter, "add", lambda *_: None),
}
PLAIN = "not recorded"
FIRST_TURNS = 20  # left out: threads start, and the first looks come closer together


def _work(
    pipe: Any, data_queue: Any, off: Sequence[str] | None, batch_size: int, data: Any
) -> None:
    """A worker process: torch's own loop, recorded but for the parts `off`; None: not recorded."""
    done = threading.Event()
    loop: Any = torch_worker._worker_loop
    with tempfile.TemporaryDirectory() as folder:
        if off is not None:
            for part in off:
                setattr(*PARTS[part])
            loop = worker.RecordedLoop(loop, folder, serial=1)
        indices = _Turns(pipe, batch_size, done)
        loop(0, [data], indices, data_queue, done, True, _first, False, 1, None, 0, 1, False, None)


def cpu_of_turns(
    variants: Mapping[str, Sequence[str] | None],
    n_rounds: int,
    batch_size: int,
    data: Dataset[Any],
    n_batches: int,
) -> dict[str, list[float]]:
    """CPU time of a batch (us) in each round by variant: worker processes that take turns.

    Each lives through all rounds, so that what a worker pays once does not count as a batch's.
    """
    context = multiprocessing.get_context("fork")
    pipes, processes, queues = {}, [], []
    for name, off in variants.items():
        pipes[name], theirs = context.Pipe()
        queues.append(queue := context.Queue())
        arguments = (theirs, queue, off, batch_size, data)
        processes.append(context.Process(target=_work, args=arguments))
        processes[-1].start()
        threading.Thread(target=_drain, args=(queue,), daemon=True).start()
    before = {name: pipe.recv() for name, pipe in pipes.items()}
    took: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(n_rounds + FIRST_TURNS):
        for name in random.sample(list(variants), len(variants)):
            pipes[name].send(n_batches)
            now_ns = pipes[name].recv()
            if number >= FIRST_TURNS:
                took[name].append((now_ns - before[name]) / n_batches / 1000)
            before[name] = now_ns
    for pipe in pipes.values():
        pipe.send(0)
    for process in processes:
        process.join()
    return took


def _drain(queue: Any) -> None:
    """Takes what a worker sends, as the training process would."""
    while True:
        queue.get()


def print_hook_costs(n_rounds: int, parts: bool) -> None:
    """What recording adds to a batch: to short ones of one sample, like MNIST's, like JPEG's."""
    variants: dict[str, Sequence[str] | None] = {PLAIN: None, "all": ()}
    if parts:
        variants.update({f"all but {part}": (part,) for part in PARTS}, nothing=tuple(PARTS))
    # Samples of about 60, 100 and 5000 us; turns of 25 ms or one batch.
    for batch_size, n_times, n_batches in ((1, 3, 400), (64, 5, 4), (32, 240, 1)):
        data = _Counting(n_times)
        n_turns = n_rounds * (30 if n_batches > 1 else 6)
        took = cpu_of_turns(variants, n_turns, batch_size, data, n_batches)
        plain = took.pop(PLAIN)
        print(f"{batch_size} samples, {statistics.median(plain):.1f} us of CPU a batch")
        for name, ours in took.items():
            pairs = list(zip(ours, plain, strict=True))
            more = statistics.median([a - b for a, b in pairs])
            print(f"  {name:22s} CPU {median_ratio([a / b for a, b in pairs])}, {more:+.1f} us")


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
    parser.add_argument("--parts", action="store_true", help="also without each part of recording")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    print("recorded / unrecorded, median and 95 % interval")
    if not options.only:
        print_hook_costs(options.rounds, options.parts)
    for name, source in loaders().items():
        if options.only in name:
            wall, cpu = overhead(source, options.rounds)
            print(f"{name:38s} wall {wall}, CPU {cpu}")
    print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
