"""Which malloc this process has, and what a page fault of memory fetched again costs here.

glibc gives the top of its heap back to the system when more than a threshold of it is free, and
maps each larger block by itself and unmaps it on free. A loop whose tensors come and go that way
takes a page fault for each of their pages, in each step.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import statistics
import sys
from pathlib import Path
from time import thread_time_ns

from loaderdoctor.instrument.system.cpu_use import thread_faults
from loaderdoctor.instrument.wire.records import Allocator

MAPS = Path("/proc/self/maps")
_OTHERS = ("jemalloc", "tcmalloc", "mimalloc", "snmalloc", "hoard", "tbbmalloc")
# A fault takes some 2 µs: 512 of them a few milliseconds in all, once in a run.
PROBED_BYTES, PROBES = 512 * 1024, 4


def allocator() -> Allocator | None:
    """None where it is neither glibc's nor one known by name."""
    try:
        loaded = MAPS.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    if any(name in loaded for name in _OTHERS):
        return "other"
    if not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"):
        return None
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    told = any(name.startswith("MALLOC_") for name in os.environ) or "glibc.malloc" in tunables
    return "glibc-tuned" if told else "glibc"


def fault_us() -> float | None:
    """CPU time of a fault in a page of the usual size, with giving it back (µs); None if unknown.

    Less than one costs that fills a huge page; of those a loop takes few.
    """
    if sys.platform != "linux":
        return None
    found = [us for _ in range(PROBES) if (us := _probe()) is not None]
    return statistics.median(found) if found else None


def _probe() -> float | None:
    try:
        memory = mmap.mmap(-1, PROBED_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:
        return None
    with contextlib.suppress(OSError, AttributeError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    held = (ctypes.c_char * PROBED_BYTES).from_buffer(memory)
    before = thread_faults()
    times = [thread_time_ns()]
    for _ in range(2):
        ctypes.memset(held, 1, PROBED_BYTES)
        times.append(thread_time_ns())
    after = thread_faults()
    del held
    start_ns = thread_time_ns()
    memory.close()
    release_ns = thread_time_ns() - start_ns
    if before is None or after is None or after <= before:
        return None
    touch_ns = times[1] - times[0] - (times[2] - times[1])
    return max(0, touch_ns + release_ns) / (after - before) / 1e3
