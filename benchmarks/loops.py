"""Training loops whose cost is known by construction; each also runs alone as a plain script.

    python benchmarks/loops.py NAME [--steps N]             the loop as a user would write it
    python benchmarks/loops.py NAME --truth                 what its parts truly cost (ablation)
    python benchmarks/loops.py NAME --record FILE.json.gz   20 steps of it under torch.profiler

`--truth` times the loop three ways without a profiler, in fresh loops, repeated and interleaved:
as written; its loader replaced by one batch already in host memory of the same kind; and the
batch already on the device. loader = full - cached, copy = cached - resident, rest = resident.
It prints one JSON object, and another for each line that it then reads, until its standard input
ends. loaderdoctor's own ablation is not involved.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from loop_parts import (
    DEVICE,
    Forever,
    Parts,
    Samples,
    SideStream,
    convnet,
    make,
    mlp,
    resnet50,
    slow_collate,
    spin,
    synchronize,
)
from prefetch_generator import BackgroundGenerator
from torch import nn
from torch.utils.data import DataLoader

MNIST = (1, 28, 28)
SMALL = (3, 64, 64)
PHOTO = (3, 224, 224)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """One loop: dataset, loader settings, how batches are moved, and the model."""

    shape: tuple[int, ...]
    model: Callable[[], nn.Module]
    data: dict[str, Any]
    workers: int
    batch: int = 64
    n: int = 64 * 4000
    pin: bool = False
    non_blocking: bool = False
    moved: str = "same"  # same | side | half: which stream the copies use
    item: bool = False
    recreate: bool = False
    resident: bool = False
    background: bool = False
    accumulate: int = 1
    amp: bool = False
    parts: bool = False
    work_ms: float = 0.0  # Python between one batch and the next, in the loop itself
    collate: Callable[[list[Any]], Any] | None = None
    dtype: torch.dtype = torch.float32
    slow_to_measure: bool = False


LOOPS: dict[str, Loop] = {
    "sync_loader_decode": Loop(
        shape=MNIST, data={"spin_ms": 0.15}, workers=0, model=mlp, slow_to_measure=True
    ),
    "enough_workers": Loop(
        shape=SMALL, data={"spin_ms": 0.1}, workers=8, pin=True, non_blocking=True,
        model=lambda: convnet(256),
    ),
    "pageable_big_copy": Loop(
        shape=PHOTO, data={}, batch=128, workers=8, model=lambda: convnet(32),
        slow_to_measure=True,
    ),
    "pageable_nonblocking": Loop(
        shape=PHOTO, data={}, batch=128, workers=8, non_blocking=True,
        model=lambda: convnet(32), slow_to_measure=True,
    ),
    "pinned_same_stream": Loop(
        shape=PHOTO, data={}, batch=128, workers=12, pin=True, non_blocking=True,
        model=convnet, slow_to_measure=True,
    ),
    "side_stream_overlap": Loop(
        shape=PHOTO, data={}, batch=128, workers=12, pin=True, non_blocking=True, moved="side",
        model=convnet, slow_to_measure=True,
    ),
    "item_every_step": Loop(
        shape=SMALL, data={"spin_ms": 0.05}, workers=8, pin=True, non_blocking=True, item=True,
        model=lambda: convnet(256),
    ),
    "launch_bound_tiny": Loop(
        shape=MNIST, data={}, workers=4, pin=True, non_blocking=True,
        model=lambda: mlp(64, 30),
    ),
    "respawn_each_epoch": Loop(
        shape=MNIST, data={"spin_ms": 0.05}, n=256, workers=8, pin=True, non_blocking=True,
        model=mlp, slow_to_measure=True,
    ),
    "one_slow_sample": Loop(
        shape=MNIST, data={"spin_ms": 0.02, "slow_every": 512, "slow_ms": 120}, workers=4,
        pin=True, non_blocking=True, model=mlp,
    ),
    "recreated_iterator": Loop(
        shape=MNIST, data={"spin_ms": 0.05}, workers=2, recreate=True, model=mlp,
        slow_to_measure=True,
    ),
    "gpu_resident": Loop(shape=MNIST, data={}, workers=0, resident=True, model=mlp),
    # beyond the recorded cases
    "half_overlap": Loop(
        shape=PHOTO, data={}, batch=256, workers=14, pin=True, non_blocking=True, moved="half",
        model=lambda: convnet(32), slow_to_measure=True,
    ),
    "background_gil": Loop(
        shape=MNIST, data={"spin_ms": 0.05}, workers=0, background=True,
        model=lambda: mlp(64, 30), slow_to_measure=True,
    ),
    "collate_bound": Loop(
        shape=MNIST, data={}, workers=1, pin=True, non_blocking=True, collate=slow_collate,
        model=mlp,
    ),
    "head_of_line": Loop(
        shape=MNIST, data={"slow_every": 256, "slow_ms": 60}, workers=3, pin=True,
        non_blocking=True, model=mlp,
    ),
    "uint8_copy": Loop(
        shape=PHOTO, data={}, batch=128, workers=12, pin=True, non_blocking=True,
        dtype=torch.uint8, model=convnet, slow_to_measure=True,
    ),
    "amp_resnet50": Loop(
        shape=PHOTO, data={"spin_ms": 1.0}, workers=8, pin=True, non_blocking=True, amp=True,
        model=resnet50, slow_to_measure=True,
    ),
    "grad_accumulation": Loop(
        shape=SMALL, data={"spin_ms": 0.3}, workers=2, pin=True, non_blocking=True,
        accumulate=4, model=lambda: convnet(128), slow_to_measure=True,
    ),
    "work_between_steps": Loop(
        shape=MNIST, data={}, workers=4, pin=True, non_blocking=True, work_ms=10.0, model=mlp,
    ),
    "several_copies": Loop(
        shape=PHOTO, data={}, batch=32, workers=8, parts=True, model=lambda: convnet(32),
        slow_to_measure=True,
    ),
    # waits of storage, alone and beside other costs: no CPU time, so they cost the same anywhere
    "storage_bound": Loop(
        shape=MNIST, data={"sleep_ms": 1.0}, workers=4, pin=True, non_blocking=True, model=mlp,
        slow_to_measure=True,
    ),
    "storage_main_process": Loop(
        shape=MNIST, data={"sleep_ms": 0.1}, workers=0, model=lambda: mlp(64, 30),
        slow_to_measure=True,
    ),
    "half_fed": Loop(
        shape=SMALL, data={"sleep_ms": 0.6}, workers=2, pin=True, non_blocking=True,
        model=lambda: convnet(256), slow_to_measure=True,
    ),
    "fed_by_a_thread": Loop(
        shape=SMALL, data={"sleep_ms": 0.3}, workers=0, background=True,
        model=lambda: convnet(256), slow_to_measure=True,
    ),
    "side_stream_starved": Loop(
        shape=PHOTO, data={"sleep_ms": 2.0}, batch=64, workers=4, pin=True, non_blocking=True,
        moved="side", model=convnet, slow_to_measure=True,
    ),
    "work_and_wait": Loop(
        shape=MNIST, data={"sleep_ms": 0.4}, workers=2, pin=True, non_blocking=True, work_ms=5.0,
        model=mlp, slow_to_measure=True,
    ),
    "item_starved": Loop(
        shape=MNIST, data={"sleep_ms": 0.2}, workers=2, item=True, model=mlp,
        slow_to_measure=True,
    ),
    # copies beside other costs
    "main_process_photos": Loop(
        shape=PHOTO, data={}, batch=32, workers=0, model=lambda: convnet(32),
        slow_to_measure=True,
    ),
    "pinned_blocking": Loop(
        shape=PHOTO, data={}, batch=64, workers=4, pin=True, model=convnet, slow_to_measure=True,
    ),
    "accumulated_copies": Loop(
        shape=PHOTO, data={}, batch=32, workers=4, accumulate=4, model=lambda: convnet(32),
        slow_to_measure=True,
    ),
}  # fmt: skip


def loader_of(loop: Loop) -> DataLoader[Any]:
    """The loop's DataLoader, as a user would write it."""
    kind = Parts if loop.parts else Samples
    dataset = kind(loop.n, loop.shape, dtype=loop.dtype, **loop.data)
    return DataLoader(
        dataset,
        batch_size=loop.batch,
        shuffle=loop.recreate,
        num_workers=loop.workers,
        pin_memory=loop.pin,
        collate_fn=loop.collate,
    )


def batches_of(loop: Loop, loader: DataLoader[Any]) -> Iterator[Any]:
    """Endless batches as the loop's author gets them."""
    while True:
        if loop.recreate:
            yield next(iter(loader))
            continue
        source: Any = loader
        if loop.background:
            source = BackgroundGenerator(iter(loader), max_prefetch=2)
        if loop.moved != "same":
            source = SideStream(source, half=loop.moved == "half")
        yield from source


def ready_batch(loop: Loop, *, on_device: bool) -> Any:
    """One batch of the loop's kind, in host memory of the same kind or on the device."""
    x = make((loop.batch, *loop.shape), loop.dtype)
    y = torch.randint(0, 10, (loop.batch,))
    if on_device:
        x, y = x.to(DEVICE), y.to(DEVICE)
    elif loop.pin and DEVICE.type == "cuda":
        x, y = x.pin_memory(), y.pin_memory()
    if loop.parts:
        return {**{f"part{k}": x.clone() for k in range(5)}, "label": y}
    return x, y


def source_of(loop: Loop, how: str) -> Iterator[Any]:
    """Batches for `full`, `cached` (host) or `resident` (device) runs."""
    if how == "full" and not loop.resident:
        return batches_of(loop, loader_of(loop))
    batch = ready_batch(loop, on_device=how == "resident" or loop.resident)
    # Below any wrapper of the loop's own: a background thread stays, only what it fetches is ready.
    source: Any = Forever(batch)
    if loop.background:
        source = BackgroundGenerator(iter(source), max_prefetch=2)
    if how == "cached" and loop.moved != "same":
        source = SideStream(source, half=loop.moved == "half")
    return iter(source)


def train(
    loop: Loop,
    source: Iterator[Any],
    steps: int,
    warmup: int = 0,
    profiler: torch.profiler.profile | None = None,
) -> float:
    """The training loop. Returns milliseconds per step after `warmup` steps."""
    torch.manual_seed(0)
    model = loop.model().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loss_fn = nn.CrossEntropyLoss()
    start = time.perf_counter()
    for i in range(warmup + steps):
        if i == warmup:
            synchronize()
            start = time.perf_counter()
        batch = next(source)
        if loop.parts:
            moved = {k: v.to(DEVICE, non_blocking=loop.non_blocking) for k, v in batch.items()}
            x = sum(moved[f"part{k}"] for k in range(5)) / 5.0
            y = moved["label"]
        else:
            x, y = batch
            x = x.to(DEVICE, non_blocking=loop.non_blocking)
            y = y.to(DEVICE, non_blocking=loop.non_blocking)
        if loop.dtype == torch.uint8:
            x = x.float().div_(255).sub_(0.5).div_(0.5)
        with torch.autocast(DEVICE.type, dtype=torch.bfloat16, enabled=loop.amp):
            loss = loss_fn(model(x), y) / loop.accumulate
        loss.backward()
        if (i + 1) % loop.accumulate == 0:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if loop.item:
            loss.item()
        if loop.work_ms:
            spin(loop.work_ms)
        if profiler is not None:
            profiler.step()
    synchronize()
    return (time.perf_counter() - start) * 1e3 / steps


def truth(loop: Loop, rounds: int) -> dict[str, list[float]]:
    """Milliseconds a step of each way, one for each round."""
    runs: dict[str, list[float]] = {"full": [], "cached": [], "resident": []}
    steps, warmup = (60, 16) if loop.slow_to_measure else (152, 32)
    for _ in range(rounds):
        for how in runs:
            runs[how].append(train(loop, source_of(loop, how), steps, warmup))
    return runs


def record(loop: Loop, target: str) -> None:
    """Twenty steps of the loop as written, under torch.profiler."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if DEVICE.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(
        activities=activities,
        schedule=torch.profiler.schedule(wait=10, warmup=3, active=20, repeat=1),
        on_trace_ready=lambda p: p.export_chrome_trace(target),
    ) as profiler:
        train(loop, source_of(loop, "full"), 34, profiler=profiler)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("name", choices=LOOPS)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--truth", action="store_true")
    parser.add_argument("--rounds", type=int, default=3, help="of --truth")
    parser.add_argument("--record", metavar="FILE")
    args = parser.parse_args()
    loop = LOOPS[args.name]
    if args.truth:
        print(json.dumps(truth(loop, args.rounds)), flush=True)
        for _ in sys.stdin:
            print(json.dumps(truth(loop, args.rounds)), flush=True)
    elif args.record:
        record(loop, args.record)
    else:
        train(loop, source_of(loop, "full"), args.steps)


if __name__ == "__main__":
    main()
