"""What recording inside workers costs: loading time with and without it, interleaved.

    OMP_NUM_THREADS=1 python benchmarks/worker_overhead.py [--rounds 30] [--parts] [--shape NAME]
                                                           [--only TEXT]

First, what recording costs the worker: a process runs torch's own worker loop in turns of some 50
ms, recorded and not, in pairs of shuffled order; the CPU time of the process is compared, so all of
its threads count. Shorter than a busy machine takes to change its speed, such turns hold few looks
for hot lines: their own thread's CPU time is read after some seconds without turns. A process lives
through all rounds, so that what a worker pays once (its file, its threads) does not count as a
batch's. With --parts more such processes run in between, each without one part of recording. Then
whole loaders: rounds of one
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

from loaderdoctor.instrument.wire.record_file import RecordWriter
from loaderdoctor.instrument.workers import fetch_clock, worker
from loaderdoctor.instrument.workers.worker_sampling import LineSampler


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
    """An index queue that hands out batches in turns, recorded or not, as a pipe's other end says.

    Answers with the CPU time of this process for the batches of a turn after its first: one process
    is compared with itself, since two differ by some percent in how their memory lies in caches.
    """

    def __init__(self, pipe: Any, data_queue: Any, batch_size: int, done: threading.Event) -> None:
        self.pipe = pipe
        self.data_queue = data_queue
        self.batch = list(range(batch_size))
        self.done = done
        self.wrapper: worker.WorkerWrapper | None = None
        self.hooks: dict[Any, tuple[str, Any]] = {}
        self.n_left = self.n_measured = self.n_made = self.began_ns = 0

    def get(self, timeout: float | None = None) -> Any:
        if self.wrapper is not None and "get" not in vars(self):
            self.wrapper._making = False  # began with the last recorded call
            self.wrapper._lines.end()
        if self.n_left == self.n_measured:
            self.began_ns = time.process_time_ns()
        if not self.n_left:
            cpu_ns = (time.process_time_ns() - self.began_ns) / max(1, self.n_measured)
            self.pipe.send((cpu_ns, self.wrapper._lines._cpu_ns if self.wrapper is not None else 0))
            self.n_left, self.n_measured, recorded = self.pipe.recv()
            self.switch(recorded)
            if not self.n_left:
                self.done.set()
                return None
        self.n_left -= 1
        self.n_made += 1
        return self.n_made, self.batch

    def switch(self, recorded: bool) -> None:
        """Puts the hooks of recording in their places, or takes them out."""
        if not self.hooks:
            self.hooks = {
                queue: (name, vars(queue)[name])
                for queue, name in ((self, "get"), (self.data_queue, "put"))
            }
        for queue, (name, hook) in self.hooks.items():
            if recorded:
                setattr(queue, name, hook)
            else:
                vars(queue).pop(name, None)

    def put(self, item: Any) -> None:
        raise NotImplementedError("a worker only takes indices")


class _Recorded(worker.RecordedLoop):
    """Tells the index queue what records, so that it can be paused."""

    def _open(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> worker.WorkerWrapper | None:
        wrapper = super()._open(args, kwargs)
        args[2].wrapper = wrapper
        return wrapper


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
FIRST_PAIRS = 20  # left out: threads start, and the first looks come closer together
LOOKED_AT_S = 8.0


def _work(pipe: Any, data_queue: Any, off: Sequence[str], batch_size: int, data: Any) -> None:
    """A worker process: torch's own loop, recorded in some turns but for the parts `off`."""
    done = threading.Event()
    with tempfile.TemporaryDirectory() as folder:
        for part in off:
            setattr(*PARTS[part])
        loop = _Recorded(torch_worker._worker_loop, folder, serial=1)
        indices = _Turns(pipe, data_queue, batch_size, done)
        loop(0, [data], indices, data_queue, done, True, _first, False, 1, None, 0, 1, False, None)


def cpu_of_turns(
    variants: Mapping[str, Sequence[str]],
    n_pairs: int,
    batch_size: int,
    data: Dataset[Any],
    n_batches: int,
) -> tuple[dict[str, list[tuple[float, float]]], float]:
    """CPU time of a batch (us) in pairs of turns by variant, (recorded, not recorded); of looks.

    The latter is the share of the recorded worker's CPU time that the looking thread has taken, in
    the first variant. A turn's first batch is left out.
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
        pipes[name].recv()
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in variants}
    for number in range(n_pairs + FIRST_PAIRS):
        for name in random.sample(list(variants), len(variants)):
            of = {}
            for recorded in random.sample((False, True), 2):
                pipes[name].send((n_batches, n_batches - 1, recorded))
                of[recorded] = pipes[name].recv()[0] / 1000
            if number >= FIRST_PAIRS:
                took[name].append((of[True], of[False]))
    first = next(iter(variants))
    n_long = int(LOOKED_AT_S * 1e6 / statistics.median(of for of, _ in took[first]))
    looked_ns = 0
    for _ in range(2):  # how much more the second turn took
        pipes[first].send((n_long, n_long - 1, True))
        cpu_ns, so_far_ns = pipes[first].recv()
        share, looked_ns = (so_far_ns - looked_ns) / (n_long * cpu_ns), so_far_ns
    for pipe in pipes.values():
        pipe.send((0, 0, False))
    for process in processes:
        process.join()
    return took, share


def _drain(queue: Any) -> None:
    """Takes what a worker sends, as the training process would."""
    while True:
        queue.get()


def print_hook_costs(n_pairs: int, parts: bool, only: str) -> None:
    """What recording adds to a batch: to short ones of one sample, like MNIST's, like JPEG's."""
    variants: dict[str, Sequence[str]] = {"all": ()}
    if parts:
        variants.update({f"all but {part}": (part,) for part in PARTS}, nothing=tuple(PARTS))
    # Samples of about 60, 100 and 5000 us; turns of about 50 ms or two batches.
    shapes = {"one": (1, 3, 800), "MNIST": (64, 5, 8), "JPEG": (32, 240, 2)}
    for shape, (batch_size, n_times, n_batches) in shapes.items():
        if only not in shape:
            continue
        some = n_pairs if n_batches > 2 else math.ceil(n_pairs / 4)
        took, stack_samples = cpu_of_turns(
            variants, some, batch_size, _Counting(n_times), n_batches
        )
        plain = statistics.median(b for pairs in took.values() for _, b in pairs)
        print(f"{shape}: {batch_size} samples, {plain:.1f} us of CPU a batch")
        for name, pairs in took.items():
            more = statistics.median([a - b for a, b in pairs])
            print(f"  {name:22s} CPU {median_ratio([a / b for a, b in pairs])}, {more:+.1f} us")
        print(f"  looks alone, their own thread: {stack_samples:.2%} of the worker's CPU time")


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
    parser.add_argument("--shape", default="", help="of batches: one, MNIST or JPEG")
    parser.add_argument("--parts", action="store_true", help="also without each part of recording")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    print("recorded / unrecorded, median and 95 % interval")
    if not options.only:
        print_hook_costs(10 * options.rounds, options.parts, options.shape)
    for name, source in loaders().items():
        if options.only in name:
            wall, cpu = overhead(source, options.rounds)
            print(f"{name:38s} wall {wall}, CPU {cpu}")
    print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
