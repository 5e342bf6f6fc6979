"""What is found out in a worker beside its batches: hotspots, by stack samples, and its own state.

A thread samples where the fetching thread is, every 10 ms and later less often. A sample counts for
the deepest frame in the user's own code below torch's fetcher, and for the leaf frame below it (the
library function it was in). Where no frame is the user's, the deepest frame of an installed package
counts, so that a library's dataset still shows its line. Biased as every sampler within the
interpreter: it runs when the watched thread gives up the GIL, or some time after asking for it (see
`system.ask_soon`).

The state (CPUs, threads, reads, what the dataset holds) is asked for after the start, after 4, 8,
16 … batches and at the end: a fraction of a millisecond each.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import os
import random
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, Final

import torch

from loaderdoctor.instrument.system import ask_as_usual, ask_soon, wake_in_time
from loaderdoctor.instrument.wire.record_file import Kind, RecordWriter
from loaderdoctor.instrument.workers.fetch_clock import (
    BOTH_OVER_OWN,
    MAX_SAMPLING_SHARE,
    FetchClock,
)
from loaderdoctor.instrument.workers.user_code import Place, locate
from loaderdoctor.units import NS_PER_S

INTERVAL_S: Final = 0.010
MAX_INTERVAL_S: Final = 0.300
# It wakes where the interpreter was given up, so it samples at some moment of this time behind
# that, and asks for the interpreter soon only so long: a worker's queue would else be served faster
# than without recording. That it woke late tells nothing: where each sample of 4 ms gives it up, it
# was had behind all of them, while they were collated.
SOON_WITHIN_S: Final = 0.004
# Shares of lines are good to 5 points after 100 samples; each doubling of them from there on
# doubles the interval, so that a long run pays ever less.
STACK_SAMPLES_AT_FULL_RATE: Final = 100
# A short run shall see its hotspots: so many come first whatever they cost.
STACK_SAMPLES_AT_ANY_COST: Final = 16
IDLE_STACK_SAMPLES: Final = 5  # in a row without a fetch, then it sleeps until the next one
REPORT_EVERY_NS: Final = 500_000_000
Watched = tuple[int, FetchClock | None, int]  # thread, clock, serial of the iterator

# Native ids of threads that Python started here: some live for a moment after it forgot them.
python_threads: set[int] = set()


class LineSampler:
    """Watches one fetching thread at a time; its own thread starts with the first `begin`."""

    def __init__(self, writer: RecordWriter) -> None:
        self._writer = writer
        self._watched: Watched | None = None
        self._asleep = False
        self._wake = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None
        # By the serial of the iterator that the batch is for: loaders share processes.
        self._counts: dict[tuple[int, str, Place, Place], int] = {}
        self._counts_since_ns = time.perf_counter_ns()
        self._probed: list[tuple[int, FetchClock]] = []
        self._cpu_ns = 0
        self._lock = threading.Lock()

    def begin(self, thread: int, clock: FetchClock | None, serial: int) -> None:
        """`thread` (threading.get_ident) begins to make a batch; without a clock, to draw one.

        `serial` is that of the iterator which the batch is for.
        """
        self._watched = (thread, clock, serial)
        if self._asleep:
            self._wake.set()
        elif self._thread is None:
            self._start()

    def end(self) -> None:
        self._watched = None

    def report_transforms_of(self, clock: FetchClock, serial: int) -> None:
        """Has the transform times of this clock, of that iterator, written with the lines."""
        if clock.probe is not None:
            self._probed = [*self._probed[-15:], (serial, clock)]

    def stop(self) -> None:
        """Ends the thread (without waiting) and queues what it counted."""
        if self._stopping:
            return
        self._stopping = True
        self._watched = None
        ask_as_usual()
        self._wake.set()
        self.report()

    def report(self) -> None:
        """Queues the counts since the last report."""
        now = time.perf_counter_ns()
        with self._lock:
            counts, self._counts = self._counts, {}
            since, self._counts_since_ns = self._counts_since_ns, now
            transforms = [(s, clock.probe.take()) for s, clock in self._probed if clock.probe]
        stretch = {"since_ns": since, "until_ns": now}
        for serial in sorted({key[0] for key in counts}):
            hotspots = [
                [phase, *user, *leaf, n]
                for (of, phase, user, leaf), n in counts.items()
                if of == serial
            ]
            about = {**stretch, "serial": serial, "spots": hotspots, "cpu_ns": self._cpu_ns}
            self._writer.add_json(Kind.LINES, about)
        for serial, taken in transforms:
            if taken:
                about = {**stretch, "serial": serial, "transforms": taken}
                self._writer.add_json(Kind.TRANSFORMS, about)

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="loaderdoctor-lines", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        python_threads.add(threading.get_native_id())
        wake_in_time()
        chance = random.Random()  # not the module's: the user's random numbers stay theirs
        interval_s = INTERVAL_S
        idle = n_stack_samples = 0
        try:
            while not self._stopping:
                time.sleep(interval_s * (0.5 + chance.random()))
                if self._watched is None:
                    idle += 1
                    if idle < IDLE_STACK_SAMPLES:
                        self._writer.flush_if_due(time.perf_counter_ns())
                        continue
                    self._sleep_until_begin()
                    idle = 0
                    continue
                idle = 0
                if ask_soon(beside_queues=True):
                    time.sleep(SOON_WITHIN_S * chance.random())
                    ask_as_usual()
                watched = self._watched
                if watched is None:
                    continue
                self._sample(watched)
                n_stack_samples += 1
                now = time.perf_counter_ns()
                if now - self._counts_since_ns > REPORT_EVERY_NS:
                    self.report()
                self._writer.flush_if_due(now)
                cpu_before, self._cpu_ns = self._cpu_ns, time.thread_time_ns()
                if n_stack_samples <= STACK_SAMPLES_AT_ANY_COST:
                    continue
                cost_s = BOTH_OVER_OWN * (self._cpu_ns - cpu_before) / NS_PER_S
                rate_s = INTERVAL_S * max(1.0, n_stack_samples / STACK_SAMPLES_AT_FULL_RATE)
                wanted_s = min(MAX_INTERVAL_S, max(rate_s, cost_s / MAX_SAMPLING_SHARE))
                interval_s += (wanted_s - interval_s) / 8  # one dear sample must not blind it
        except Exception:
            if not sys.is_finalizing():
                raise
        finally:
            ask_as_usual()

    def _sleep_until_begin(self) -> None:
        self.report()
        self._writer.flush()
        self._wake.clear()
        self._asleep = True
        if self._watched is None and not self._stopping:
            self._wake.wait()
        self._asleep = False

    def _sample(self, watched: Watched) -> None:
        thread, clock, serial = watched
        frame = sys._current_frames().get(thread)
        if frame is None or self._watched is not watched:  # the batch was done meanwhile
            return
        phase = "sampler" if clock is None else "collate" if clock.collate_ns else "fetch"
        found = locate(frame)
        if found is not None:
            with self._lock:
                key = (serial, phase, *found)
                self._counts[key] = self._counts.get(key, 0) + 1


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
