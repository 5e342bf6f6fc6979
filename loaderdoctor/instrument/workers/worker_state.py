"""What a worker tells of itself now and then: CPUs, threads, reads, what its dataset holds.

Asked after its start, after 4, 8, 16 … batches and at its end: a fraction of a millisecond each.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import os
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import torch

from loaderdoctor.instrument.workers.worker_sampling import python_threads

MAX_NAMES = 16
MAX_ASKING_S = 0.001  # of CPU time; commonly 0.05 to 0.1 ms
MAX_DEPTH = 3  # datasets that wrap one another
_CONTAINERS = (list, dict, set, deque, bytearray)


class Collecting:
    """Counts what Python's garbage collector does in this worker, by a callback of its own."""

    def __init__(self) -> None:
        self.n_full = 0
        self.ns = 0
        self._began_ns = 0
        gc.callbacks.append(self._called)

    def _called(self, phase: str, info: dict[str, Any]) -> None:
        now = time.perf_counter_ns()
        if phase == "start":
            self._began_ns = now
        elif self._began_ns:
            self.ns += now - self._began_ns
            self.n_full += info["generation"] == 2
            self._began_ns = 0


def state(
    n_batches: int, dataset: object, collecting: Collecting, heap_free: HeapFree
) -> dict[str, Any]:
    """As it is recorded; None for what the system does not tell."""
    return {
        "collected": [n_batches, collecting.n_full, collecting.ns],
        "cores": _affinity(),
        "torch_threads": torch.get_num_threads(),
        "native_threads": _native_threads(),
        "run_wait_ns": _run_wait_ns(),
        "reads": _reads(n_batches),
        "held": _held(dataset),
        "heap_free": heap_free(),
    }


def lengths(dataset: object) -> dict[str, int]:
    """Entries by attribute path; of a method behind `functools.lru_cache` what it keeps."""
    found: dict[str, int] = {}
    holder: Any = dataset
    prefix = ""
    for _ in range(MAX_DEPTH):
        attributes = getattr(holder, "__dict__", None)
        if not isinstance(attributes, dict):
            break
        for name, value in list(attributes.items()):
            if isinstance(value, _CONTAINERS) and len(found) < MAX_NAMES:
                found[prefix + name] = len(value)
        for name, member in list(vars(type(holder)).items()):
            # Anything else that has a `cache_info` is the user's code.
            if type(member) is functools._lru_cache_wrapper and len(found) < MAX_NAMES:
                found[f"{prefix}{name}()"] = int(member.cache_info().currsize)
        holder, prefix = attributes.get("dataset"), f"{prefix}dataset."
    return found


def _affinity() -> list[int] | None:
    if not hasattr(os, "sched_getaffinity"):  # macOS, Windows
        return None
    return sorted(os.sched_getaffinity(0))


def _run_wait_ns() -> int | None:
    """How long this process's main thread has stood in a run queue: ready, and no CPU free."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None


def _reads(n_batches: int) -> list[int] | None:
    """Batches made so far, and what this process has read: bytes, calls, bytes from a disk.

    Of files, pipes and sockets that are read like files; not by `recv`, nor through a mapping.
    """
    try:
        rows = Path("/proc/self/io").read_text().split()
        counts = dict(zip(rows[::2], map(int, rows[1::2]), strict=True))
        return [n_batches, *(counts[name] for name in ("rchar:", "syscr:", "read_bytes:"))]
    except (OSError, KeyError, ValueError):
        return None


def _held(dataset: object) -> dict[str, int] | None:
    try:
        return lengths(dataset)
    except Exception:  # a container of the user's own making
        return None


class _Heap(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd",
            "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    )  # fmt: skip


class HeapFree:
    """Bytes that malloc has from the system and nobody uses; None where it is not glibc's.

    It looks at each free piece: 18 ms for 100,000 of them. Where it takes long it is asked once.
    """

    def __init__(self) -> None:
        self._ask: Any = None
        with contextlib.suppress(OSError, AttributeError, TypeError):
            self._ask = ctypes.CDLL(None).mallinfo2  # glibc 2.33
            self._ask.restype = _Heap

    def __call__(self) -> int | None:
        """As of now."""
        if self._ask is None:
            return None
        began = time.thread_time()
        free = int(self._ask().fordblks)
        if time.thread_time() - began > MAX_ASKING_S:
            self._ask = None
        return free


def _native_threads() -> int | None:
    """Threads of this process that Python did not start: pools of BLAS, OpenMP, codecs."""
    try:
        there = {int(task.name) for task in Path("/proc/self/task").iterdir()}
    except (OSError, ValueError):
        return None
    python_threads.update(t.native_id for t in threading.enumerate() if t.native_id is not None)
    return len(there - python_threads)
