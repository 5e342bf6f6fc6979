"""Memory of this process: what torch's allocator takes of a GPU, and what malloc does. Bytes."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from time import thread_time_ns

import torch

from loaderdoctor.instrument.system.cpu_use import thread_faults
from loaderdoctor.instrument.wire.records import Allocator


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPeaks:
    """Peaks of torch's caching allocator since the last reset."""

    allocated_bytes: int  # tensors
    reserved_bytes: int  # taken from the device, tensors or not


def reset_gpu_peaks(device: torch.device | None) -> None:
    """Start the allocator's peaks again; its cache stays, without which the next steps are slow."""
    if device is not None and device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def empty_gpu_cache(device: torch.device | None) -> None:
    """Give back what the allocator keeps, and start its peaks again: a trial owns what it reads."""
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def gpu_peaks(device: torch.device | None) -> GpuPeaks | None:
    """Peaks since the last reset; None without a CUDA or ROCm device."""
    if device is None or device.type != "cuda":
        return None
    return GpuPeaks(
        allocated_bytes=torch.cuda.max_memory_allocated(device),
        reserved_bytes=torch.cuda.max_memory_reserved(device),
    )


def gpu_free_bytes(device: torch.device) -> int | None:
    """Device memory a new tensor can have: the driver's free memory and the allocator's own."""
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


# Which malloc this process has, and what a page fault of memory fetched anew costs here.
#
# glibc gives the top of its heap back to the system when more than a threshold of it is free, and
# maps each larger block by itself and unmaps it on free. A loop whose tensors come and go that way
# takes a page fault for each of their pages, in each step.

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
