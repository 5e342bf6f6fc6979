"""Memory of this process: what torch's allocator takes of a GPU, and what malloc does. Bytes.

Also what a trial left behind of it, and the page cache of files (Linux only): dropped without root,
and looked at.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
import os
import statistics
import sys
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import thread_time_ns
from typing import Any

import numpy as np
import torch

from loaderdoctor.instrument.system.cpu_use import thread_faults
from loaderdoctor.instrument.wire.records import Allocator

PAGE_BYTES = mmap.PAGESIZE


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Cached:
    """Pages of some files, and how many of them lie in memory."""

    n_pages: int
    n_in_memory: int

    @property
    def share(self) -> float:
        """Of the pages, 0…1; 0 of none."""
        return self.n_in_memory / self.n_pages if self.n_pages else 0.0


def can_drop_pages() -> bool:
    """Whether this system lets a process drop pages of files it may only read."""
    return hasattr(os, "posix_fadvise")


def drop_pages(paths: Iterable[Path]) -> Cached:
    """Drop the pages of these files, and say what stayed.

    Pages stay where another process maps them, or where the file system itself is memory (tmpfs).
    Not yet written ones are written first. Files that can't be opened are passed over.
    """
    n_pages = n_stayed = 0
    for fd in _opened(paths):
        try:
            size = os.fstat(fd).st_size
            stayed = 0
            for attempt in range(2):
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                stayed = _in_memory(fd, size)
                if not stayed or attempt:
                    break
                os.fsync(fd)  # only clean pages can be dropped
            n_pages += -(-size // PAGE_BYTES)
            n_stayed += stayed
        except OSError:
            n_pages += 1
            n_stayed += 1
    return Cached(n_pages=n_pages, n_in_memory=n_stayed)


def pages_in_memory(paths: Iterable[Path]) -> Cached:
    n_pages = n_found = 0
    for fd in _opened(paths):
        size = os.fstat(fd).st_size
        n_pages += -(-size // PAGE_BYTES)
        n_found += _in_memory(fd, size)
    return Cached(n_pages=n_pages, n_in_memory=n_found)


def _opened(paths: Iterable[Path]) -> Iterator[int]:
    """Those that can be opened, one after the other."""
    for path in paths:
        try:
            fd = os.open(path, os.O_RDONLY)
        except OSError:
            continue
        try:
            yield fd
        finally:
            os.close(fd)


def _in_memory(fd: int, size: int) -> int:
    """Pages of an open file that lie in memory (mincore); mapping it reads nothing."""
    if not size:
        return 0
    n_pages = -(-size // PAGE_BYTES)
    with mmap.mmap(fd, size, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED) as mapped:
        view = np.frombuffer(mapped, dtype=np.uint8)
        flags = (ctypes.c_ubyte * n_pages)()
        libc = ctypes.CDLL(None, use_errno=True)
        failed = libc.mincore(
            ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(size), ctypes.byref(flags)
        )
        del view  # else the map can't be closed
    if failed:
        raise OSError(ctypes.get_errno(), "mincore")
    return sum(flag & 1 for flag in bytes(flags))


class LeakCheck:
    """Whether what the trial before held is gone, without asking the garbage collector.

    A full collection walks every object of the script: 150 to 250 ms of CPU with torch and
    torchvision imported, at each measurement of each trial. What a trial opens is nearly always
    freed when its source is closed. So the collector runs only where something is left: in a cycle
    (a dataset that refers to itself, the traceback of a trial that failed), or as memory of the
    accelerator.
    """

    def __init__(self) -> None:
        self.n_collections = 0
        self._opened: list[weakref.ref[Any]] = []  # by the trial before
        self._allocated_bytes: int | None = None  # on the device, from before it
        self._known = False  # False: the loop ran on its own until now

    def opened(self, made: object) -> None:
        """Something a trial holds that must be gone before the next."""
        try:
            self._opened.append(weakref.ref(made))
        except TypeError:  # it can't be asked whether it lives
            self._known = False

    def clear(self, device: torch.device | None) -> None:
        """Free what is left; the trial before is closed."""
        alive = any(ref() is not None for ref in self._opened)
        before = self._allocated_bytes
        grown = before is not None and (_allocated_bytes(device) or 0) > before
        if alive or grown or not self._known:
            gc.collect()
            self.n_collections += 1
        self._opened.clear()
        self._known = True
        self._allocated_bytes = _allocated_bytes(device)


def _allocated_bytes(device: torch.device | None) -> int | None:
    """Of tensors, by the allocator's own count; None without a CUDA or ROCm device."""
    if device is None or device.type != "cuda":
        return None
    return torch.cuda.memory_allocated(device)
