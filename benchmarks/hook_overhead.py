"""What our hooks cost a training loop: hooked against unhooked blocks of one ~2 ms step.

Blocks of the same loop alternate between "hooks live, a plain window being measured" and "hooks
off" in random order within each pair, so drift of the machine cancels. The figure is the median of
the pairs' differences with its distribution-free 95 % interval, in microseconds and in % of the
unhooked step. What is timed is the training thread's CPU time, which other processes can't
stretch: the step spins for its length, so nothing of the hooks hides behind a device or a wait.
With `--device cuda` model and batch are on the GPU, and the hooks record their timing events.
Worker records are measured apart (`--record-workers`), since they can be turned off.

    python benchmarks/hook_overhead.py [--device cuda] [--pairs 200] [--record-workers]
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

from loaderdoctor.instrument.session import Session
from loaderdoctor.instrument.session.hooks import Hooks
from loaderdoctor.instrument.wire.protocol import FromRun, Measure, Stop, WindowRequest

BLOCK_STEPS = 20


class Ready(Dataset[torch.Tensor]):
    """One sample that costs nothing to get."""

    def __init__(self) -> None:
        self.sample = torch.zeros(16)

    def __len__(self) -> int:
        return 10**7

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.sample


class OneWindow:
    """A link that asks for one endless plain window, and throws away what is sent."""

    lost = False
    n_above = 1

    def __init__(self) -> None:
        self.asked = False

    def forget_in_fork(self) -> None:
        pass

    def send(self, message: FromRun) -> None:
        pass

    def receive(self, timeout_s: float) -> Measure | Stop | None:
        # In a window the session looks for Stop at most every 50 ms through a real connection;
        # here that look is free, which spares less than 0.1 us a step.
        if self.asked or timeout_s == 0.0:
            return None
        self.asked = True
        return Measure(requests=(WindowRequest(id=1, mode="plain", n_steps=10**9),))


def steps(device: torch.device, step_s: float) -> Iterator[None]:
    """The loop: each `next` is one step of about `step_s`, on the CPU or the device."""
    model = torch.nn.Linear(16, 16).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    for batch in DataLoader(Ready(), batch_size=8):
        x = batch.to(device)
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        begun = time.thread_time()
        while time.thread_time() - begun < step_s:
            pass
        yield


def block_us(loop: Iterator[None]) -> float:
    """Microseconds of the thread's CPU time a step, over one block."""
    begun = time.thread_time()
    for _ in range(BLOCK_STEPS):
        next(loop)
    return (time.thread_time() - begun) / BLOCK_STEPS * 1e6


def median(differences: list[float]) -> tuple[float, float, float]:
    """Median and its 95 % interval from order statistics: no assumption on the noise."""
    ordered = sorted(differences)
    n = len(ordered)
    reach = math.ceil(1.96 * math.sqrt(n) / 2)
    low, high = max(0, n // 2 - reach), min(n - 1, n // 2 + reach)
    return statistics.median(ordered), ordered[low], ordered[high]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--record-workers", action="store_true")
    parser.add_argument("--step-ms", type=float, default=2.0)
    options = parser.parse_args()
    device = torch.device(options.device)
    if device.type == "cuda":
        torch.cuda.init()
        device = torch.device("cuda", torch.cuda.current_device())
    with tempfile.TemporaryDirectory() as folder:
        session = Session(OneWindow(), run_dir=Path(folder), records_workers=options.record_workers)
        hooks = Hooks(session)
        hooks.watch()
        loop = steps(device, options.step_ms / 1e3)
        for _ in range(40):  # roles, settling, the window's own warm-up
            next(loop)
        if session.window.fetches is None:
            raise SystemExit("the window did not begin")
        hooked: list[float] = []
        unhooked: list[float] = []
        for _ in range(options.pairs):
            for live in random.sample((True, False), 2):
                session.live = live
                (hooked if live else unhooked).append(block_us(loop))
        hooks.remove()
    cost, low, high = median([a - b for a, b in zip(hooked, unhooked, strict=True)])
    base = statistics.median(unhooked)
    what = "hooks and worker records" if options.record_workers else "hooks"
    print(
        f"{what} on {options.device}: {cost:.1f} us a step [{low:.1f}, {high:.1f}], "
        f"{100 * cost / base:.2f} % [{100 * low / base:.2f}, {100 * high / base:.2f}] "
        f"of {base:.0f} us"
    )


if __name__ == "__main__":
    main()
