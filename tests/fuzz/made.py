"""Seeds of kinds of events that the recorded traces lack, spelt as profilers spell them.

Python frames, worker lanes, memory, collectives of ranks, a CPU without accelerator, ROCm and XPU.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

Event = dict[str, Any]
BATCH = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
N_STEPS = 6  # a verdict needs five
STEP_US = 1000.0


def made() -> dict[str, bytes]:
    """The made seeds by name; a few kilobytes each."""
    return {name: _text(events, rank) for name, (events, rank) in _MADE.items()}


def _text(events: Callable[[], Iterator[Event]], rank: int | None) -> bytes:
    about: dict[str, Any] = {"schemaVersion": 1, "baseTimeNanoseconds": 1790857026000000000}
    if events is _frames:  # our own sampler's, in traces that we recorded
        about["loaderdoctorLooks"] = {
            "marks": [f"ProfilerStep#{n}" for n in range(N_STEPS)],
            "places": [["train.py", 31, "log_line"], ["train.py", 12, "main"]],
            "looks": [[n, at_ns, n % 2] for n in range(N_STEPS) for at_ns in (860_000, 900_000)],
        }
    if rank is not None:
        about["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": 2}
        about["host_name"] = "node1"
    document = {**about, "traceEvents": sorted(events(), key=lambda e: float(e["ts"]))}
    return json.dumps(document, separators=(",", ":")).encode()


def _span(cat: str, name: str, ts: float, dur: float, tid: int | str = 1, **args: Any) -> Event:
    where = {"pid": args.pop("pid", 7), "tid": tid}
    return {"ph": "X", "cat": cat, "name": name, **where, "ts": ts, "dur": dur, "args": args}


def _loop() -> Iterator[Event]:
    """Steps of a loop on the CPU."""
    for n in range(N_STEPS):
        at = n * STEP_US
        yield _span("user_annotation", f"ProfilerStep#{n}", at, STEP_US - 1)
        yield _span("user_annotation", BATCH, at + 5, 300)
        yield _span("cpu_op", "aten::linear", at + 320, 200, **{"External id": 10 * n})
        yield _span("cpu_op", "aten::addmm", at + 340, 150, **{"External id": 10 * n + 1})
        yield _span("user_annotation", "Optimizer.step#SGD.step", at + 700, 100)
        yield _span("user_annotation", "Optimizer.zero_grad#SGD.zero_grad", at + 810, 20)
    yield {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "ts": 0, "args": {"name": "py"}}
    yield {"ph": "M", "name": "thread_name", "pid": 7, "tid": 1, "ts": 0, "args": {"name": "main"}}


def _frames() -> Iterator[Event]:
    """With Python stacks, workers' lanes and our own spans, and the allocator's memory events."""
    yield from _loop()
    for n in range(N_STEPS):
        at = n * STEP_US
        yield _span("python_function", "train.py(12): main", at, 990, **{"Python id": n})
        yield _span("python_function", "torch/utils/data/dataloader.py(735): __next__", at + 5, 290)
        yield _span("python_function", "train.py(30): log_line", at + 850, 90)
        yield _span("dataloader_worker", "fetch", at, 600, tid=100, pid=9)
        yield _span("user_annotation", "loaderdoctor: create iterator", at + 1, 3)
        yield _span("user_annotation", "my range", at + 320, 300)
        memory = {"Device Type": 1, "Device Id": 0, "Total Allocated": 900 + n, "Bytes": 4}
        yield {
            "ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 7, "tid": 1,
            "ts": at + 330, "s": "t", "args": {**memory, "Total Reserved": 4096},
        }  # fmt: skip


def _gloo() -> Iterator[Event]:
    yield from _loop()
    for n in range(N_STEPS):
        yield _span("cpu_op", "c10d::allreduce_", n * STEP_US + 560, 30)
        yield _span("user_annotation", "gloo:all_reduce", n * STEP_US + 560, 120, tid=2)


def _device(launch: str, copy: str, collective: str) -> Callable[[], Iterator[Event]]:
    """Kernels, copies and collectives launched by calls of that runtime."""
    runtime = "cuda_runtime" if launch.startswith("cuda") else "xpu_runtime"

    def events() -> Iterator[Event]:
        yield from _loop()
        for n in range(N_STEPS):
            at, first = n * STEP_US, 100 * n
            on = {"device": 0, "stream": 7, "pid": 0}
            for k, (cat, name, begin, dur) in enumerate(
                (
                    ("gpu_memcpy", copy, 330, 90),
                    ("kernel", "gemm", 430, 250),
                    ("kernel", collective, 680, 120),
                    ("gpu_memset", "Memset (Device)", 810, 2),
                )
            ):
                called = "Memcpy" if cat == "gpu_memcpy" else launch
                args = {"correlation": first + k, "External id": first + k}
                yield _span(runtime, called, at + begin - 10, 8, **args)
                yield _span(cat, name, at + begin, dur, tid=7, **args, **on, bytes=1 << 20)
            yield _span(runtime, launch.replace("LaunchKernel", "StreamSynchronize"), at + 690, 110)

    return events


_MADE: dict[str, tuple[Callable[[], Iterator[Event]], int | None]] = {
    "cpu": (_loop, None),
    "frames": (_frames, None),
    "gloo": (_gloo, 0),
    "nccl": (
        _device(
            "cudaLaunchKernel",
            "Memcpy HtoD (Pinned -> Device)",
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        ),
        1,
    ),
    "rocm": (_device("hipLaunchKernel", "CopyHostToDevice", "ncclKernel_Generic_4"), None),
    "xpu": (_device("urEnqueueKernelLaunch", "Memcpy M2D", "oneccl_allreduce"), None),
}
