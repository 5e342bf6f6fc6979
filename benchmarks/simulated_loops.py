"""Traces of loops that are computed, not run: their truth is exact, and no GPU is needed.

    python benchmarks/simulated_loops.py FOLDER [--only NAME,…]
    python benchmarks/simulated_loops.py FOLDER --drawn 60 --seed 1000    loops drawn at random

`simulation.py` runs a loop in simulated time, with the profiler for the trace. Without it, with
ready batches, and with batches on the device, it says what loader and copies cost, and with other
settings what each would bring (`helps`). FOLDER gets a trace for each loop and `truth.json`, in the
form of `traces/truth.json`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from simulation import PID, Loop, Simulation

LOOPS: dict[str, Loop] = {
    "three_workers_too_slow": Loop(
        workers=3,
        make_ms=60.0,
        n_kernels=150,
        kernel_us=25.0,
        about="3 workers, a batch takes each of them 60 ms",
    ),
    "one_worker_nearly_keeps_up": Loop(
        workers=1,
        make_ms=7.5,
        about="one worker makes a batch in 7.5 ms, the step takes 5.3",
    ),
    "no_workers_light": Loop(
        workers=0,
        make_ms=6.0,
        about="the loop makes its batches itself, 6 ms each",
    ),
    "slow_batches_now_and_then": Loop(
        workers=4,
        make_ms=3.0,
        slow_every=5,
        slow_ms=90.0,
        about="each fifth batch takes 90 ms more",
    ),
    "workers_on_all_cores": Loop(
        workers=4,
        cpus=5.0,
        make_ms=18.0,
        n_kernels=160,
        kernel_us=70.0,
        ops_per_kernel=5.0,
        op_us=10.5,
        profiler_us=8.5,
        about="computes 82 % of the step; workers on all CPUs, recording is slow",
    ),
    "blocking_pinned_copy": Loop(
        non_blocking=False,
        n_kernels=120,
        kernel_us=45.0,
        op_us=9.0,
        batch_bytes=38_000_000,
        about="pinned batches, .to() without non_blocking",
    ),
    "pageable_accumulation": Loop(
        workers=2,
        make_ms=26.0,
        pinned=False,
        non_blocking=False,
        batch_bytes=16_000_000,
        pageable_gb_per_s=3.0,
        accumulate=4,
        n_kernels=110,
        kernel_us=12.0,
        about="pageable copies that fault their pages in, accumulation over 4 batches",
    ),
    "small_copies_pinned": Loop(
        n_copies=96,
        batch_bytes=600_000,
        non_blocking=False,
        n_kernels=40,
        kernel_us=20.0,
        about="96 small pinned copies a step, each waited for",
    ),
    "side_stream_healthy": Loop(
        side_stream=True,
        kernel_us=120.0,
        about="copies behind compute",
    ),
    "long_waits_hidden": Loop(
        workers=8,
        make_ms=40.0,
        kernel_us=160.0,
        about="the loop waits long in its fetches, ten steps ahead of the device",
    ),
    "copy_on_the_same_stream": Loop(
        batch_bytes=150_000_000,
        kernel_us=60.0,
        workers=8,
        about="150 MB pinned, non_blocking, on the stream that computes",
    ),
    "tiny_kernels": Loop(
        n_kernels=260,
        kernel_us=3.0,
        ops_per_kernel=4.5,
        op_us=7.6,
        make_ms=2.0,
        batch_bytes=200_000,
        about="launching takes longer than computing",
    ),
    "tiny_kernels_input": Loop(
        n_kernels=200,
        kernel_us=3.0,
        ops_per_kernel=4.0,
        op_us=7.6,
        workers=2,
        make_ms=30.0,
        batch_bytes=200_000,
        about="launches and a loader that is too slow",
    ),
    "work_between": Loop(
        work_ms=7.0,
        about="7 ms of Python between batch and forward pass",
    ),
    "collection_pauses": Loop(
        pause_every=5,
        pause_ms=60.0,
        about="a full garbage collection of 60 ms each fifth step",
    ),
    "item_each_step": Loop(
        item=True,
        n_kernels=90,
        kernel_us=40.0,
        about=".item() each step",
    ),
    "short_epochs": Loop(
        steps_per_epoch=5,
        startup_ms=120.0,
        make_ms=3.0,
        about="workers started again each 5 steps",
    ),
    "stacks_input": Loop(
        workers=3,
        make_ms=36.0,
        stacks=True,
        n_kernels=110,
        kernel_us=20.0,
        about="recorded with stacks, which slows the loop and not its workers",
    ),
    "stacks_compute": Loop(
        stacks=True,
        n_kernels=80,
        kernel_us=80.0,
        about="computes; recorded with stacks, the host looks busy",
    ),
    "memory_profiled_compute": Loop(
        memory_events=True,
        n_kernels=110,
        kernel_us=55.0,
        profiler_us=7.0,
        about="computes; recorded with profile_memory",
    ),
    "three_steps": Loop(
        workers=1,
        make_ms=16.0,
        n_steps=4,
        about="three steps, one worker",
    ),
    "no_step_marks": Loop(
        workers=2,
        make_ms=24.0,
        mark_steps=False,
        about="profiler.step() is never called",
    ),
    "enough_workers_small": Loop(
        workers=6,
        make_ms=6.0,
        about="six workers keep up",
    ),
    "pageable_small_batch": Loop(
        pinned=False,
        non_blocking=False,
        batch_bytes=30_000_000,
        kernel_us=90.0,
        about="30 MB from pageable memory each step",
    ),
    "large_pageable_parts": Loop(
        workers=8,
        make_ms=30.0,
        pinned=False,
        non_blocking=False,
        batch_bytes=96_000_000,
        n_copies=5,
        pageable_gb_per_s=5.8,
        map_ms_per_mb=0.06,
        free_ms_per_mb=0.24,
        n_kernels=60,
        kernel_us=130.0,
        about="96 MB a batch in five pageable parts: mapping and freeing them costs most",
    ),
    "large_pageable_hidden": Loop(
        workers=8,
        make_ms=30.0,
        pinned=False,
        non_blocking=False,
        batch_bytes=77_000_000,
        pageable_gb_per_s=6.5,
        map_ms_per_mb=0.033,
        free_ms_per_mb=0.19,
        n_kernels=90,
        kernel_us=290.0,
        about="77 MB pageable, freed while the device still computes",
    ),
    "large_pageable_dropped_at_once": Loop(
        workers=6,
        make_ms=30.0,
        pinned=False,
        non_blocking=False,
        batch_bytes=58_000_000,
        pageable_gb_per_s=5.8,
        map_ms_per_mb=0.06,
        free_ms_per_mb=0.24,
        dropped_by="copy",
        n_kernels=70,
        kernel_us=90.0,
        about="58 MB pageable, each tensor dropped once it is copied",
    ),
    "pageable_own_work": Loop(
        workers=6,
        make_ms=20.0,
        pinned=False,
        non_blocking=False,
        batch_bytes=58_000_000,
        pageable_gb_per_s=8.0,
        work_ms=12.0,
        kernel_us=90.0,
        about="58 MB pageable, and 12 ms of the loop's own Python behind the copies",
    ),
    "pageable_own_work_most": Loop(
        workers=6,
        make_ms=20.0,
        pinned=False,
        non_blocking=False,
        batch_bytes=30_000_000,
        pageable_gb_per_s=20.0,
        work_ms=9.0,
        n_kernels=30,
        kernel_us=15.0,
        about="30 MB pageable, and 9 ms of the loop's own Python behind the copies",
    ),
    "pageable_own_work_least": Loop(
        workers=6,
        make_ms=20.0,
        pinned=False,
        non_blocking=False,
        batch_bytes=40_000_000,
        pageable_gb_per_s=20.0,
        work_ms=4.5,
        kernel_us=30.0,
        about="40 MB pageable, and 0.11 ms a MB of the loop's own Python",
    ),
    "pageable_own_work_stacks": Loop(
        workers=6,
        make_ms=20.0,
        pinned=False,
        non_blocking=False,
        batch_bytes=30_000_000,
        pageable_gb_per_s=20.0,
        work_ms=9.0,
        n_kernels=40,
        kernel_us=160.0,
        stacks=True,
        n_steps=7,
        about="30 MB pageable, and 9 ms in a function of the user's, recorded with stacks",
    ),
    "crowded_launches": Loop(
        workers=8,
        cpus=4.0,
        make_ms=72.0,
        crowding=True,
        n_kernels=320,
        kernel_us=42.0,
        ops_per_kernel=4.0,
        op_us=9.0,
        batch_bytes=38_000_000,
        about="launches nearly as long as kernels: slower beside workers on all CPUs",
    ),
}


def drawn(seed: int) -> Loop:
    """A loop drawn at random, to judge rules that were not made by it."""
    r = random.Random(seed)
    workers = r.choice([0, 1, 2, 3, 4, 8])
    pinned = r.random() < 0.6
    n_kernels = r.choice([40, 70, 110, 160, 220])
    loop = Loop(
        n_kernels=n_kernels,
        kernel_us=r.choice([4.0, 12.0, 25.0, 45.0, 80.0, 150.0]),
        ops_per_kernel=r.choice([3.0, 4.0, 5.0]),
        op_us=r.uniform(6.5, 11.0),
        profiler_us=r.uniform(3.0, 8.0),
        workers=workers,
        make_ms=max(1, workers) * r.choice([0.5, 2.0, 5.0, 12.0, 30.0]),
        slow_every=r.choice([0, 0, 0, 6]),
        slow_ms=60.0,
        cpus=r.choice([4.0, 16.0]),
        receive_us=r.choice([80.0, 150.0, 300.0]),
        steps_per_epoch=r.choice([100_000] * 6 + [6]),
        batch_bytes=r.choice([50_000, 1_000_000, 10_000_000, 40_000_000, 77_000_000]),
        n_copies=r.choice([2, 2, 2, 2, 60]),
        pinned=pinned,
        non_blocking=r.random() < (0.7 if pinned else 0.3),
        side_stream=r.random() < 0.15,
        item=r.random() < 0.15,
        work_ms=r.choice([0.0] * 5 + [3.0]),
        stacks=r.random() < 0.15,
        memory_events=r.random() < 0.1,
        mark_steps=r.random() < 0.85,
        about=f"drawn by {seed}",
    )
    return replace(
        loop,
        free_ms_per_mb=r.uniform(0.18, 0.24),
        map_ms_per_mb=r.uniform(0.03, 0.09),
        dropped_by=r.choice(["fetch", "copy"]),
    )


# -- what each change brings ---------------------------------------------------------------------


def _more_workers(loop: Loop) -> Loop:
    return replace(
        loop, workers=2 * loop.workers or 4, persistent=loop.persistent or not loop.workers
    )


def _any_order(loop: Loop) -> Loop:
    """What slow batches take is spread over all."""
    extra = loop.slow_ms / loop.slow_every if loop.slow_every else 0.0
    return replace(loop, slow_every=0, make_ms=loop.make_ms + extra)


CHANGES: dict[str, Callable[[Loop], Loop]] = {
    "num_workers": _more_workers,
    "fewer_workers": lambda x: replace(x, workers=max(1, min(x.workers // 2, int(x.cpus) - 1))),
    "less_work": lambda x: replace(x, make_ms=x.make_ms / 2, slow_ms=x.slow_ms / 2),
    "in_order": _any_order,
    "persistent_workers": lambda x: replace(x, persistent=True),
    "pin_memory": lambda x: replace(x, pinned=True, non_blocking=True),
    "non_blocking": lambda x: replace(x, non_blocking=True),
    "side_stream": lambda x: replace(x, pinned=True, non_blocking=True, side_stream=True),
    "uint8": lambda x: replace(x, batch_bytes=x.batch_bytes // 4),
    "packed": lambda x: replace(x, n_copies=1),
    "no_sync": lambda x: replace(x, item=False),
    "own_work": lambda x: replace(x, work_ms=0.0),
    "launches": lambda x: replace(x, n_kernels=x.n_kernels // 4, kernel_us=4 * x.kernel_us),
}


def truth_of(loop: Loop) -> dict[str, Any]:
    """What the parts cost without the profiler, and what each change brings (as fast as now)."""

    def ms(loop: Loop, how: str = "full") -> float:
        n = 40 * 5 if loop.steps_per_epoch > 1000 else 20 * loop.steps_per_epoch
        return Simulation(loop, how, profiled=False, seed=7).run(n) / 1e3

    full, cached, resident = (ms(loop, how) for how in ("full", "cached", "resident"))
    copies_free = ms(loop, "copies-free")  # the loader as it is
    parts = {
        "input": (full - cached) / full,
        "copy": (cached - resident) / full,
        "host": max(0.0, resident - loop.n_kernels * loop.kernel_us / 1e3) / full,
    }
    # What each part brings by itself, too: a loader that sets the pace hides the copies.
    alone = {**parts, "copy": (full - copies_free) / full}
    return {
        "step_ms": round(full, 3),
        "input_ms": round(full - cached, 3),
        "copy_ms": round(cached - resident, 3),
        "rest_ms": round(resident, 3),
        "input_share": round((full - cached) / full, 3),
        "copy_share": round((cached - resident) / full, 3),
        "rest_share": round(resident / full, 3),
        "about": loop.about,
        "expect_bound": sorted({*bounds_of(parts), *bounds_of(alone)}),
        "helps": {name: round(full / ms(change(loop)), 2) for name, change in CHANGES.items()},
    }


# A share this near a threshold may fall to either side of it, in a trace as in another run.
NEAR = 0.04


def bounds_of(parts: dict[str, float]) -> list[str]:
    """What a verdict may be: the rule of the design, with each share a little more or less."""

    def rule(of: dict[str, float]) -> str:
        fed = max(("input", "copy"), key=of.__getitem__)
        if of[fed] >= 0.20:
            return fed
        if of["host"] >= 0.20:
            return "host"
        return fed if of[fed] >= 0.05 else "compute"

    steps = [-NEAR, 0.0, NEAR]
    found = {
        rule({"input": parts["input"] + a, "copy": parts["copy"] + b, "host": parts["host"] + c})
        for a in steps
        for b in steps
        for c in steps
        if parts["input"] + a + parts["copy"] + b + parts["host"] + c <= 1.0 + 2 * NEAR
    }
    return sorted(found)


def document_of(loop: Loop) -> dict[str, Any]:
    """The trace, as a file."""
    simulation = Simulation(loop, "full", profiled=True, seed=11)
    simulation.run(loop.n_steps)
    events = sorted(simulation.record.events, key=lambda e: float(e["ts"]))
    named: dict[str, Any] = {"ph": "M", "name": "process_name", "pid": PID, "tid": 0, "ts": 0}
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "simulated", "totalGlobalMem": 80 << 30}],
        "traceEvents": [{**named, "args": {"name": "python"}}, *events],
        "traceName": "simulated",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default=",".join(LOOPS))
    parser.add_argument(
        "--drawn", type=int, default=0, help="so many drawn at random in their place"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the first of them")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    loops = {name: LOOPS[name] for name in options.only.split(",")}
    if options.drawn:
        seeds = range(options.seed, options.seed + options.drawn)
        loops = {f"drawn_{seed}": drawn(seed) for seed in seeds}
    cases = {}
    for name, loop in loops.items():
        cases[name] = truth_of(loop)
        path = options.folder / f"{name}.pt.trace.json.gz"
        with gzip.GzipFile(path, "wb", mtime=0) as file:
            file.write(json.dumps(document_of(loop)).encode())
        print(f"{name:28s} {path.stat().st_size >> 10:4d} KiB {json.dumps(cases[name])[:150]}")
    about = {"gpu": "simulated", "torch": None, "cpus": None, "cases": cases}
    (options.folder / "truth.json").write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
