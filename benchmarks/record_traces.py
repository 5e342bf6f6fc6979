"""Records traces of loops with their truth, of kinds that people send, in one command.

    python benchmarks/record_traces.py FOLDER [--only NAME,…] [--rounds 2]

Each kind is a loop of `loops.py`, changed where it says so. Three ways without a profiler, in fresh
loops, give its truth (as written, ready batches in host memory, ready batches on the device), the
loop with each of a few settings says which of them help, and it runs once under torch.profiler.
FOLDER gets `NAME.pt.trace.json.gz` and `truth.json`, in the form of `traces/truth.json`; what is
there stays, but for kinds recorded anew. `judge_traces.py FOLDER` holds `analyze` against it.
Without an accelerator the kinds named `cpu_…` are recorded, and what copying costs is 0. About a
minute a kind on an H200.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from loop_parts import DEVICE, convnet, mlp
from loops import LOOPS, MNIST, PHOTO, SMALL, Loop, source_of, train
from simulated_loops import bounds_of

CPUS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A loop, how it is recorded, and the changes that are tried."""

    loop: Loop
    about: str
    helps: tuple[str, ...] = ()
    active: int = 12
    profiler: dict[str, Any] = field(default_factory=dict)
    marks: bool = True  # whether profiler.step() is called


CHANGES: dict[str, Callable[[Loop], Loop]] = {
    "num_workers": lambda x: replace(x, workers=min(2 * x.workers or 4, max(4, CPUS - 1))),
    "fewer_workers": lambda x: replace(x, workers=max(1, min(x.workers // 2, CPUS - 1))),
    "less_work": lambda x: replace(
        x,
        data={
            k: v / 2 if k in ("spin_ms", "sleep_ms", "slow_ms") else v for k, v in x.data.items()
        },
    ),
    "pin_memory": lambda x: replace(x, pin=True, non_blocking=True),
    "non_blocking": lambda x: replace(x, non_blocking=True),
    "side_stream": lambda x: replace(x, pin=True, non_blocking=True, moved="side"),
    "uint8": lambda x: replace(x, dtype=torch.uint8),
    "no_sync": lambda x: replace(x, item=False),
    "own_work": lambda x: replace(x, work_ms=0.0),
    "persistent_workers": lambda x: replace(x, n=64 * 4000),  # as one long epoch
    "iterator": lambda x: replace(x, recreate=False),
}
_INPUT = ("num_workers", "less_work")
_COPY = ("pin_memory", "non_blocking", "side_stream", "uint8")
_STARVED = Loop(
    shape=PHOTO,
    data={"spin_ms": 2.0},
    workers=3,
    pin=True,
    non_blocking=True,
    batch=32,
    model=lambda: convnet(32),
    slow_to_measure=True,
)

KINDS: dict[str, Kind] = {
    "three_workers": Kind(loop=_STARVED, about="3 workers, 2 ms a sample", helps=_INPUT),
    "one_worker_light": Kind(
        loop=replace(_STARVED, workers=1, data={"spin_ms": 0.2}), about="one worker", helps=_INPUT
    ),
    "no_workers": Kind(
        loop=replace(_STARVED, workers=0, data={"spin_ms": 0.3}), about="no workers", helps=_INPUT
    ),
    "blocking_pinned": Kind(
        loop=Loop(
            shape=PHOTO,
            data={},
            batch=96,
            workers=12,
            pin=True,
            model=lambda: convnet(24),
            slow_to_measure=True,
        ),
        about="pinned batches, .to() without non_blocking",
        helps=_COPY,
    ),
    "pageable_accumulation": Kind(
        loop=Loop(
            shape=PHOTO,
            data={"spin_ms": 0.4},
            batch=64,
            workers=4,
            accumulate=4,
            model=lambda: convnet(16),
            slow_to_measure=True,
        ),
        about="pageable batches, one optimizer step for four of them",
        helps=(*_INPUT, *_COPY),
    ),
    "workers_on_all_cores": Kind(
        loop=Loop(
            shape=SMALL,
            data={"spin_ms": 0.6},
            batch=64,
            workers=CPUS,
            pin=True,
            non_blocking=True,
            model=lambda: convnet(512),
        ),
        about="computes; as many busy workers as CPUs",
    ),
    "same_stream": Kind(
        loop=Loop(
            shape=PHOTO,
            data={},
            batch=256,
            workers=12,
            pin=True,
            non_blocking=True,
            model=lambda: convnet(8),
            slow_to_measure=True,
        ),
        about="154 MB pinned on the stream that computes",
        helps=_COPY,
    ),
    "stacks_three_workers": Kind(
        loop=_STARVED, about="the first, with stacks", helps=_INPUT, profiler={"with_stack": True}
    ),
    "memory_enough_workers": Kind(
        loop=LOOPS["enough_workers"],
        about="healthy, with profile_memory and shapes",
        profiler={"profile_memory": True, "record_shapes": True},
    ),
    "stacks_enough_workers": Kind(
        loop=LOOPS["enough_workers"], about="healthy, with stacks", profiler={"with_stack": True}
    ),
    "three_steps": Kind(loop=_STARVED, about="the first, three steps", helps=_INPUT, active=3),
    "no_marks": Kind(
        loop=_STARVED, about="the first, profiler.step() never called", helps=_INPUT, marks=False
    ),
    "work_between": Kind(
        loop=LOOPS["work_between_steps"], about="10 ms of Python", helps=("own_work",)
    ),
    "slow_samples": Kind(
        loop=LOOPS["head_of_line"], about="a slow sample now and then", helps=_INPUT
    ),
    "several_copies": Kind(loop=LOOPS["several_copies"], about="five pageable parts", helps=_COPY),
    "amp": Kind(
        loop=LOOPS["amp_resnet50"],
        about="a real network, mixed precision",
        helps=(*_INPUT, "fewer_workers"),
    ),
    "item": Kind(loop=LOOPS["item_every_step"], about=".item() each step", helps=("no_sync",)),
    "cpu_three_workers": Kind(
        loop=Loop(
            shape=MNIST, data={"sleep_ms": 2.0}, batch=32, workers=3, model=lambda: mlp(64, 3)
        ),
        about="3 workers that wait 2 ms a sample",
        helps=_INPUT,
    ),
    "cpu_no_workers": Kind(
        loop=Loop(
            shape=MNIST, data={"sleep_ms": 0.5}, batch=32, workers=0, model=lambda: mlp(256, 4)
        ),
        about="no workers",
        helps=_INPUT,
    ),
    "cpu_three_steps": Kind(
        loop=Loop(
            shape=MNIST, data={"sleep_ms": 0.5}, batch=32, workers=0, model=lambda: mlp(256, 4)
        ),
        about="no workers, three steps",
        helps=_INPUT,
        active=3,
    ),
    "cpu_stacks": Kind(
        loop=Loop(
            shape=MNIST, data={"sleep_ms": 2.0}, batch=32, workers=3, model=lambda: mlp(64, 12)
        ),
        about="3 workers, recorded with stacks",
        helps=_INPUT,
        profiler={"with_stack": True},
    ),
    "cpu_memory": Kind(
        loop=Loop(shape=MNIST, data={}, batch=64, workers=1, model=lambda: mlp(1024, 6)),
        about="computes, recorded with profile_memory",
        profiler={"profile_memory": True},
    ),
    "cpu_accumulation": Kind(
        loop=Loop(
            shape=MNIST,
            data={"sleep_ms": 1.5},
            batch=32,
            workers=2,
            accumulate=4,
            model=lambda: mlp(128, 4),
        ),
        about="2 workers, one optimizer step for four batches",
        helps=_INPUT,
    ),
    "cpu_work_between": Kind(
        loop=Loop(
            shape=MNIST, data={}, batch=32, workers=1, work_ms=25.0, model=lambda: mlp(128, 3)
        ),
        about="25 ms of Python a step",
        helps=("own_work",),
    ),
    "cpu_no_marks": Kind(
        loop=Loop(
            shape=MNIST, data={"sleep_ms": 1.5}, batch=32, workers=2, model=lambda: mlp(128, 4)
        ),
        about="2 workers, profiler.step() never called",
        helps=_INPUT,
        marks=False,
    ),
    "cpu_short_epochs": Kind(
        loop=Loop(shape=MNIST, data={}, n=128, batch=32, workers=2, model=lambda: mlp(64, 3)),
        about="workers started again each four steps",
        helps=("persistent_workers",),
    ),
}


def measured_ms(loop: Loop, how: str, steps: int) -> float:
    return train(loop, source_of(loop, how), steps, max(8, 4 * loop.workers))


def truth_of(kind: Kind, rounds: int) -> dict[str, Any]:
    """What the parts cost, and how many times as fast each change makes the loop."""
    loop = kind.loop
    steps = 24 if loop.slow_to_measure or loop.data or loop.work_ms else 60
    ways = ("full", "cached", "resident") if DEVICE.type == "cuda" else ("full", "cached")
    runs: dict[str, list[float]] = {how: [] for how in ways}
    changed: dict[str, list[float]] = {name: [] for name in kind.helps}
    for _ in range(rounds):
        for how, found in runs.items():
            found.append(measured_ms(loop, how, steps))
        for name, found in changed.items():
            found.append(measured_ms(CHANGES[name](loop), "full", steps))
    full, cached = (statistics.median(runs[how]) for how in ("full", "cached"))
    resident = statistics.median(runs["resident"]) if "resident" in runs else cached
    input_share, copy_share = (full - cached) / full, (cached - resident) / full
    return {
        "step_ms": round(full, 3),
        "input_ms": round(full - cached, 3),
        "copy_ms": round(cached - resident, 3),
        "rest_ms": round(resident, 3),
        "input_share": round(input_share, 3),
        "copy_share": round(copy_share, 3),
        "rest_share": round(resident / full, 3),
        "spread_ms": {how: round(max(found) - min(found), 3) for how, found in runs.items()},
        "active_steps": kind.active,
        "about": kind.about,
        "expect_bound": bounds_of(
            {
                "input": input_share,
                "copy": copy_share,
                "host": min(loop.work_ms, resident) / full,
            }
        ),
        "helps": {n: round(full / statistics.median(x), 2) for n, x in changed.items()},
    }


def record(kind: Kind, target: Path) -> None:
    """So many steps of the loop as written, under torch.profiler."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if DEVICE.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    warm, loop = max(8, 4 * kind.loop.workers), kind.loop
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "trace.json"
        if kind.marks:
            with torch.profiler.profile(
                activities=activities,
                schedule=torch.profiler.schedule(wait=warm, warmup=2, active=kind.active, repeat=1),
                on_trace_ready=lambda p: p.export_chrome_trace(str(plain)),
                **kind.profiler,
            ) as profiler:
                train(loop, source_of(loop, "full"), warm + 2 + kind.active + 1, profiler=profiler)
        else:
            source = source_of(loop, "full")
            train(loop, source, warm)
            with torch.profiler.profile(activities=activities, **kind.profiler) as profiler:
                train(loop, source, kind.active)
            profiler.export_chrome_trace(str(plain))
        with gzip.GzipFile(target, "wb", mtime=0) as file:
            file.write(plain.read_bytes())


def begun(file: Path, machine: dict[str, Any]) -> dict[str, Any]:
    """What is to be told of all traces of a folder, with the cases that are there already.

    Cases of another machine say so themselves: the file's own lines are those of the last call.
    """
    before = json.loads(file.read_text()) if file.exists() else {}
    were = {k: v for k, v in before.items() if k != "cases" and v != machine.get(k)}
    return {**machine, "cases": {n: {**were, **c} for n, c in before.get("cases", {}).items()}}


def main() -> int:
    on_cpu = DEVICE.type != "cuda"
    mine = [name for name in KINDS if name.startswith("cpu_") == on_cpu]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default=",".join(mine))
    parser.add_argument("--rounds", type=int, default=2, help="of each measurement (default 2)")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    machine = {
        "torch": torch.__version__,
        "gpu": None if on_cpu else torch.cuda.get_device_name(),
        "cpus": CPUS,
    }
    about = begun(options.folder / "truth.json", machine)
    failed: list[str] = []
    for name in options.only.split(","):
        kind, target = KINDS[name], options.folder / f"{name}.pt.trace.json.gz"
        try:
            record(kind, target)
            case = truth_of(kind, options.rounds)
        except OSError as error:  # a loop left in mid-epoch: its pin thread asks an ended worker
            target.unlink(missing_ok=True)
            failed.append(name)
            print(f"{name:24s} left out: {error!r}", flush=True)
            continue
        about["cases"][name] = case
        (options.folder / "truth.json").write_text(json.dumps(about, indent=1) + "\n")
        print(
            f"{name:24s} {json.dumps({k: case[k] for k in ('step_ms', 'expect_bound', 'helps')})}",
            flush=True,
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
