"""What a page fault of malloc'd memory costs here, and what glibc's thresholds make of a loop.

    OMP_NUM_THREADS=1 python benchmarks/allocator.py [--runs 5] [--steps 60] [--batch 32]
        [SCRIPT ARGS…]

First the cost of a fault: fresh anonymous memory, touched and given back, in pages of 4 KiB and
with transparent huge pages where the kernel gives them. Then SCRIPT (without one, a small convnet
on the CPU) in processes of their own with glibc as it is and with its thresholds set, in turns:
time and CPU time a step by the optimizer's steps, minor page faults of the training thread a step.
Medians over the steps of a run, without the first third, and over the runs, with the smallest and
largest run. Rows of one run compare; SCRIPT is ended after its steps.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import mmap
import os
import resource
import runpy
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

VARIANTS: dict[str, dict[str, str]] = {
    "as it is": {},
    "thresholds": {
        "MALLOC_TRIM_THRESHOLD_": "1000000000",
        "MALLOC_MMAP_THRESHOLD_": "33554432",
    },
    "no mmap": {"MALLOC_TRIM_THRESHOLD_": "4000000000", "MALLOC_MMAP_MAX_": "0"},
}
CHILD = "LOADERDOCTOR_BENCH_STEPS"
PROBED_BYTES, PROBES = 4 << 20, 15
_ADVICE = {"as the system does": None, "4 KiB pages": "MADV_NOHUGEPAGE", "huge": "MADV_HUGEPAGE"}


def main() -> None:
    if CHILD in os.environ:
        child(sys.argv[1:], *map(int, os.environ.pop(CHILD).split()))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=32, help="of the convnet")
    parser.add_argument("script", nargs=argparse.REMAINDER)
    told = parser.parse_args()
    print(f"{'a fault of':24}{'faults':>8}{'KiB each':>10}{'µs touch':>10}{'µs release':>12}")
    for name, advice in _ADVICE.items():
        n, touch_us, release_us = fault_cost(advice)
        kib = PROBED_BYTES / 1024 / n
        print(f"{name:24}{n:8.0f}{kib:10.0f}{touch_us:10.2f}{release_us:12.2f}")
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in VARIANTS}
    for _ in range(told.runs):
        for name, settings in VARIANTS.items():
            rows[name].append(run(told.script, told.steps, told.batch, settings))
    print(f"\n{'':14}{'faults':>10}{'of runs':>14}{'ms':>10}{'of runs':>14}", end="")
    print(f"{'CPU ms':>10}{'of runs':>14}")
    for name, found in rows.items():
        print(f"{name:14}", end="")
        for figure, digits in (("faults", 0), ("ms", 1), ("cpu_ms", 1)):
            values = [r[figure] for r in found]
            spread = f"{min(values):.{digits}f}-{max(values):.{digits}f}"
            print(f"{statistics.median(values):10.{digits}f}{spread:>14}", end="")
        print()


def fault_cost(advice: str | None) -> tuple[float, float, float]:
    """(faults, µs of touching, µs of giving back), the latter two for each fault; medians."""
    rows = []
    for _ in range(PROBES):
        memory = mmap.mmap(-1, PROBED_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if advice is not None:
            memory.madvise(getattr(mmap, advice))
        held = (ctypes.c_char * PROBED_BYTES).from_buffer(memory)
        times, before = [time.thread_time_ns()], faults_so_far()
        for _ in range(2):
            ctypes.memset(held, 1, PROBED_BYTES)
            times.append(time.thread_time_ns())
        n = max(1, faults_so_far() - before)
        del held
        start_ns = time.thread_time_ns()
        memory.close()
        released_ns = time.thread_time_ns() - start_ns
        first_ns, again_ns = times[1] - times[0], times[2] - times[1]
        rows.append((n, (first_ns - again_ns) / n / 1e3, released_ns / n / 1e3))
    n, touch_us, release_us = (statistics.median(column) for column in zip(*rows, strict=True))
    return n, touch_us, release_us


def faults_so_far() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt


def run(script: list[str], n_steps: int, batch: int, settings: dict[str, str]) -> dict[str, float]:
    """One process: its medians of a step."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, __file__, *script],
        env={**kept, **settings, CHILD: f"{n_steps} {batch}"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(done.stderr)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def child(script: list[str], n_steps: int, batch: int) -> None:
    """Runs the script until its optimizer has made these steps, and prints what one took."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    seen: list[tuple[int, int, int]] = []

    def stepped(*_: Any) -> None:
        seen.append((time.perf_counter_ns(), time.thread_time_ns(), faults_so_far()))
        if len(seen) > n_steps:
            raise SystemExit

    register_optimizer_step_post_hook(stepped)
    sys.argv = script or [__file__]
    try:
        if script:
            sys.path.insert(0, str(Path(script[0]).resolve().parent))
            runpy.run_path(script[0], run_name="__main__")
        else:
            convnet(batch)
    except SystemExit:
        pass
    if len(seen) < 4:
        sys.exit("the script made too few optimizer steps")
    kept = seen[len(seen) // 3 :]
    steps = [
        [b - a for a, b in zip(one, two, strict=True)] for one, two in itertools.pairwise(kept)
    ]
    wall, cpu, faults = (statistics.median(column) for column in zip(*steps, strict=True))
    print(json.dumps({"ms": wall / 1e6, "cpu_ms": cpu / 1e6, "faults": faults}))


def convnet(batch: int) -> None:
    """A few layers over images of 64 pixels; the largest activations take 256 KiB an image."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 16 * 16, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images, labels = torch.randn(batch, 3, 64, 64), torch.randint(10, (batch,))
    while True:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


if __name__ == "__main__":
    main()
