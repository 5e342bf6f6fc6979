"""Records how long each step of a few loops takes, in a row: what intervals are calibrated on.

    python benchmarks/step_series.py [--seconds 40] [--only NAME;…] [--into FILE]

Loops of unlike kinds (steps of 1 to 150 ms; computing alone, workers that fall short, batches made
in the loop's own process, two threads, another program beside it) are timed by the wall clock, step
by step, without a profiler. Added to `benchmarks/step_series.json.gz` by name and machine:
microseconds, the first seconds left out, and where Linux tells it how long the loop's thread stood
ready without a CPU in each (a quiet machine's steps are those without it).
`benchmarks/coverage.py` reads them.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from contention import HOG
from torch import nn
from torch.utils.data import DataLoader, Dataset

SERIES = Path(__file__).with_name("step_series.json.gz")
WARM_S = 3.0
WAITED = Path("/proc/thread-self/schedstat")


class Made(Dataset[torch.Tensor]):
    """Samples that take some CPU time to make, `spread` of it by the sample."""

    def __init__(self, sample_ms: float, shape: tuple[int, ...], spread: float = 0.0) -> None:
        self.sample_s, self.shape, self.spread = sample_ms / 1e3, shape, spread

    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: int) -> torch.Tensor:
        factor = 1.0 + self.spread * (2.0 * (index * 0.6180339887 % 1.0) - 1.0)
        end = time.thread_time() + self.sample_s * factor
        x = torch.full(self.shape, float(index % 7))
        while time.thread_time() < end:
            x.add_(0.1)
        return x


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """One loop: its samples, its loader, and how much its model computes."""

    sample_ms: float
    shape: tuple[int, ...] = (256,)
    spread: float = 0.0
    batch: int = 16
    workers: int = 0
    width: int = 256
    layers: int = 2
    threads: int = 1
    beside: float = 0.0  # another program is busy for this part of its time


LOOPS = {
    "compute": Loop(sample_ms=0.0, width=768, layers=3, batch=64),
    "compute, two threads": Loop(sample_ms=0.0, width=1024, layers=4, batch=64, threads=2),
    "small steps": Loop(sample_ms=0.01, batch=8, width=64),
    "in process": Loop(sample_ms=0.5, batch=16, spread=0.5),
    "one worker short": Loop(sample_ms=1.0, batch=16, workers=1, spread=0.5),
    "two workers short": Loop(sample_ms=4.0, batch=16, workers=2, spread=0.8),
    "two workers, slow": Loop(sample_ms=12.0, batch=16, workers=2, width=1024, layers=4),
    "slow steps": Loop(sample_ms=5.0, batch=24, width=512, layers=2),
    "compute beside a program": Loop(sample_ms=0.0, width=768, layers=3, batch=64, beside=0.5),
    "workers beside a program": Loop(sample_ms=1.0, batch=16, workers=2, beside=0.5, spread=0.5),
}


def steps(loop: Loop) -> Iterator[None]:
    """The loop; each `next` is one step."""
    torch.set_num_threads(loop.threads)
    n_in = 1
    for n in loop.shape:
        n_in *= n
    sizes = [n_in, *[loop.width] * loop.layers, 10]
    layers = [nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(sizes)]
    model = nn.Sequential(nn.Flatten(), *layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    data = Made(loop.sample_ms, loop.shape, loop.spread)
    for x in DataLoader(data, batch_size=loop.batch, num_workers=loop.workers):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        yield


@contextlib.contextmanager
def neighbour(part: float) -> Iterator[None]:
    """Another program beside the loop, busy for this part of each tenth of a second."""
    if not part:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", HOG, str(part)])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def waited_ns() -> int:
    """How long this thread has stood ready without a CPU; 0 where the system does not tell."""
    try:
        return int(WAITED.read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def record(loop: Loop, seconds: float) -> dict[str, Any]:
    """Microseconds of each step after the warm-up, and of those without a CPU."""
    each: Callable[[], Any] = steps(loop).__next__
    took, waited = [], []
    with neighbour(loop.beside):
        begun = last = time.perf_counter()
        had_waited = waited_ns()
        while last - begun < WARM_S + seconds:
            each()
            now, has_waited = time.perf_counter(), waited_ns()
            if last - begun >= WARM_S:
                took.append(round((now - last) * 1e6))
                waited.append(round((has_waited - had_waited) / 1e3))
            last, had_waited = now, has_waited
    return {"cycle": max(1, loop.workers), "us": took, "waited_us": waited}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--only", type=lambda text: text.split(";"), default=list(LOOPS))
    parser.add_argument("--into", type=Path, default=SERIES)
    parser.add_argument("--machine", default=f"{os.cpu_count()} CPUs", help="how to call it")
    args = parser.parse_args()
    known = json.loads(gzip.decompress(args.into.read_bytes())) if args.into.is_file() else {}
    for name in args.only:
        found = record(LOOPS[name], args.seconds)
        us = found["us"]
        known[f"{name} ({args.machine})"] = found
        print(f"{name}: {len(us)} steps of {sum(us) / len(us) / 1e3:.2f} ms", flush=True)
        args.into.write_bytes(gzip.compress(json.dumps(known).encode(), mtime=0))


if __name__ == "__main__":
    main()
