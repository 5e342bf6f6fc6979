"""What `loaderdoctor run` costs a step, and whether its memory grows.

    python benchmarks/run_overhead.py [--pairs 300] [--device cuda]
    python benchmarks/run_overhead.py --long 1000000

One loop over a DataLoader without workers, recorded; blocks of 50 steps with the hooks at work and
without take turns, in random order within each pair. Printed: the median of the pairs' differences
in CPU time of the thread, microseconds a step (other programs can't stretch that much). With --long
that many recorded steps in a row, and the resident memory of this process at each tenth of them.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import thread_time_ns

import psutil
import torch
from torch.utils.data import DataLoader, TensorDataset

from loaderdoctor.instrument.recording.recorder import Recorder
from loaderdoctor.instrument.session.hooks import Hooks
from loaderdoctor.instrument.session.session import Session
from loaderdoctor.instrument.wire.channel import ToChild
from loaderdoctor.instrument.wire.protocol import Beat, FromRun, Observed

BLOCK = 50
WARM_STEPS = 4000


class Nobody:
    """Listens, and forgets; counts beats."""

    lost = False
    n_above = 0

    def __init__(self) -> None:
        self.n_beats = 0
        self.warm = False

    def send(self, message: FromRun) -> None:
        self.n_beats += isinstance(message, Beat)
        self.warm = self.warm or isinstance(message, Observed)

    def receive(self, timeout_s: float) -> ToChild | None:
        return None

    def forget_in_fork(self) -> None:
        self.lost = True


def loop(n_steps: int, each: Callable[[int], None], device: str) -> None:
    """Train; `each` is told after each step how many there were."""
    model = torch.nn.Linear(4, 2).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(8192, 4), torch.randint(0, 2, (8192,)))
    n = 0
    while n < n_steps:
        for batch in DataLoader(data, 8, shuffle=True, pin_memory=device != "cpu"):
            x, y = (part.to(device, non_blocking=True) for part in batch)
            optimizer.zero_grad()
            torch.autograd.backward(torch.nn.functional.cross_entropy(model(x), y))
            optimizer.step()
            n += 1
            each(n)


def recorded(n_steps: int, each: Callable[[int, Session], None], device: str) -> None:
    """The same, recorded."""
    with tempfile.TemporaryDirectory() as folder:
        link = Nobody()
        session = Session(link, run_dir=Path(folder))
        session.record_to_end(Recorder)
        hooks = Hooks(session)
        hooks.watch()
        session.workers.start()
        try:
            loop(n_steps, lambda n: each(n, session), device)
        finally:
            session.script_over("script-ended", 0)
            hooks.remove()
        assert link.n_beats, "the loop was never recorded"


def compare(n_pairs: int, device: str) -> None:
    """Blocks in turns, and their differences."""
    rng = random.Random(0)
    differences: list[float] = []
    pair: dict[bool, int] = {}
    since = 0
    on = True

    def each(n: int, session: Session) -> None:
        nonlocal since, on
        if n < WARM_STEPS or n % BLOCK:
            return
        now = thread_time_ns()
        if since:
            pair[on] = now - since
            if len(pair) == 2:
                differences.append((pair[True] - pair[False]) / BLOCK / 1e3)
                pair.clear()
        on = (not on) if pair else rng.random() < 0.5
        session.live = on
        since = thread_time_ns()

    recorded(WARM_STEPS + 2 * BLOCK * (n_pairs + 1), each, device)
    found = sorted(differences)
    n = len(found)
    off = round(0.98 * n**0.5)
    low, high = found[n // 2 - off], found[n // 2 + off]
    print(f"{median(found):.1f} us a step ({low:.1f} to {high:.1f}; {n} pairs), "
          f"{median(found) / 20:.2f} % of a step of 2 ms")  # fmt: skip


def long(n_steps: int, device: str) -> None:
    """Resident memory over many steps."""
    process = psutil.Process(os.getpid())

    def each(n: int, session: Session) -> None:
        if n % (n_steps // 10) == 0:
            gc.collect()
            print(f"{n:>10,} steps  {process.memory_info().rss / 1e6:7.1f} MB", flush=True)

    recorded(n_steps, each, device)


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=300)
    parser.add_argument("--long", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.long:
        long(options.long, options.device)
    else:
        compare(options.pairs, options.device)


if __name__ == "__main__":
    main()
