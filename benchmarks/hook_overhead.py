"""What our hooks cost a training loop: hooked against unhooked blocks of one ~2 ms step.

Blocks of the same loop alternate between "hooks live, a plain window being measured" and "hooks
off" in random order within each pair, so drift of the machine cancels; the figure is the mean of
the pairs' differences with its 95 % interval, in % of the unhooked step and in microseconds. On
the CPU it is the training thread's CPU time, which other processes can't stretch; with a GPU it
is wall time to the end of the queued work.
Worker records are measured apart (`--record-workers`), since they can be turned off.

    python benchmarks/hook_overhead.py [--device cuda] [--pairs 40] [--step-ms 2] [--record-workers]
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

from loaderdoctor.estimate import paired_difference
from loaderdoctor.instrument.channel import Channel
from loaderdoctor.instrument.hooks import Hooks
from loaderdoctor.instrument.protocol import FromRun, Measure, Stop, WindowRequest
from loaderdoctor.instrument.session import Session

BLOCK_STEPS = 50


class Ready(Dataset[torch.Tensor]):
    """One sample that costs nothing to get."""

    def __init__(self) -> None:
        self.sample = torch.zeros(16)

    def __len__(self) -> int:
        return 10**7

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.sample


class OneWindow(Channel):
    """Asks for one endless plain window, and throws away what is sent."""

    def __init__(self) -> None:
        self.asked = False

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
    matrix = torch.randn(4096, 4096, device=device) if device.type == "cuda" else None
    for batch in DataLoader(Ready(), batch_size=8):
        if matrix is not None:
            for _ in range(_matmuls(matrix, step_s)):
                torch.mm(matrix, matrix)
        x = batch.to(device)
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        if matrix is None:
            begun = time.thread_time()
            while time.thread_time() - begun < step_s:
                pass
        yield


_n_matmuls: int | None = None


def _matmuls(matrix: torch.Tensor, step_s: float) -> int:
    """Products that take the device about a step's time."""
    global _n_matmuls
    if _n_matmuls is None:
        torch.mm(matrix, matrix)
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(20):
            torch.mm(matrix, matrix)
        torch.cuda.synchronize()
        _n_matmuls = max(1, round(step_s / ((time.perf_counter() - begun) / 20)))
    return _n_matmuls


def block_us(loop: Iterator[None], device: torch.device) -> float:
    """Microseconds a step, over one block."""
    clock = time.thread_time
    if device.type == "cuda":
        clock = time.perf_counter
        torch.cuda.synchronize()
    begun = clock()
    for _ in range(BLOCK_STEPS):
        next(loop)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (clock() - begun) / BLOCK_STEPS * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--pairs", type=int, default=40)
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
        if session.recorder is None:
            raise SystemExit("the window did not begin")
        hooked: list[float] = []
        unhooked: list[float] = []
        for _ in range(options.pairs):
            for live in random.sample((True, False), 2):
                session.live = live
                (hooked if live else unhooked).append(block_us(loop, device))
        hooks.remove()
    cost = paired_difference(hooked, unhooked)
    base = sum(unhooked) / len(unhooked)
    what = "hooks and worker records" if options.record_workers else "hooks"
    print(
        f"{what} on {options.device}: {cost.value:.1f} us a step "
        f"[{cost.low:.1f}, {cost.high:.1f}], {100 * cost.value / base:.2f} % "
        f"[{100 * cost.low / base:.2f}, {100 * cost.high / base:.2f}] of {base:.0f} us"
    )


if __name__ == "__main__":
    main()
