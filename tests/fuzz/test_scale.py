"""Time in proportion to the trace, however it is made: shapes that once took the square of it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz import subject

Event = dict[str, Any]


def event(cat: str, name: str, ts: float, dur: float, tid: int = 1, **args: int) -> Event:
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 1,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        "args": args,
    }


def steps(n: int) -> list[Event]:
    """Four step marks over n microseconds."""
    return [event("user_annotation", f"ProfilerStep#{i}", i * n / 4, n / 4 - 0.1) for i in range(4)]


def nested(cat: str, name: str) -> Callable[[int], list[Event]]:
    return lambda n: [*steps(2 * n), *(event(cat, name, i, 2 * n - 2 * i) for i in range(n))]


COPY = "Memcpy HtoD (Pageable -> Device)"
FETCH = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
SHAPES: dict[str, Callable[[int], list[Event]]] = {
    "nested ops": nested("cpu_op", "aten::a"),
    "nested ranges": nested("user_annotation", "mine"),
    "nested frames": nested("python_function", "train.py(3): f"),
    "nested fetches": nested("user_annotation", FETCH),
    "copies on as many streams": lambda n: [
        event("gpu_memcpy", COPY, i, 0.5, device=i % 3, stream=i, correlation=i, bytes=i)
        for i in range(n)
    ],
    "kernels on as many streams": lambda n: [
        *steps(n),
        *(event("kernel", "k", i, 0.5, device=0, stream=i, correlation=i) for i in range(n)),
        event("gpu_memcpy", COPY, 1, 0.5, device=0, stream=1, correlation=1, bytes=9),
    ],
    "fetches in many threads": lambda n: [
        event("user_annotation", FETCH, i, 0.5, tid=i % 900) for i in range(n)
    ],
    "as many names": lambda n: [
        *steps(n),
        *(event("cpu_op", f"aten::{i}", i, 0.5) for i in range(n)),
    ],
    "as many steps": lambda n: [
        event("user_annotation", f"ProfilerStep#{i}", i, 1) for i in range(n)
    ],
    "one launch of all": lambda n: [
        *(event("kernel", "k", i, 0.5, device=0, stream=7, correlation=1) for i in range(n)),
        *(event("cuda_runtime", "cudaLaunchKernel", i, 0.1, correlation=1) for i in range(n)),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_eight_times_the_events_take_about_eight_times_as_long(shape: str, tmp_path: Path) -> None:
    """CPU time; the square would be 64 times."""
    path = tmp_path / "run.json"
    took_s = []
    for n in (4_000, 32_000):
        path.write_text(json.dumps({"traceEvents": SHAPES[shape](n)}))
        subject.analyzed(path)  # imports, caches
        began = time.process_time()
        subject.analyzed(path)
        took_s.append(time.process_time() - began)
    assert took_s[1] < 24 * max(took_s[0], 0.005)
