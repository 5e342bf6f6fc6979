"""The page cache of files: dropped without root, and looked at. Linux only."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

PAGE_BYTES = mmap.PAGESIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class Cached:
    """Pages of some files, and how many of them lie in memory."""

    n_pages: int
    n_in_memory: int

    @property
    def share(self) -> float:
        """Of the pages, 0…1; 0 of none."""
        return self.n_in_memory / self.n_pages if self.n_pages else 0.0


def can_drop() -> bool:
    """Whether this system lets a process drop pages of files it may only read."""
    return hasattr(os, "posix_fadvise")


def drop(paths: Iterable[Path]) -> Cached:
    """Drop the pages of these files, and say what stayed.

    Pages stay where another process maps them, or where the file system itself is memory (tmpfs).
    Not yet written ones are written first. Files that can't be opened are passed over.
    """
    n_pages = n_stayed = 0
    for path in paths:
        try:
            fd = os.open(path, os.O_RDONLY)
        except OSError:
            continue
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
        finally:
            os.close(fd)
    return Cached(n_pages=n_pages, n_in_memory=n_stayed)


def in_memory(paths: Iterable[Path]) -> Cached:
    n_pages = n_found = 0
    for path in paths:
        try:
            fd = os.open(path, os.O_RDONLY)
        except OSError:
            continue
        try:
            size = os.fstat(fd).st_size
            n_pages += -(-size // PAGE_BYTES)
            n_found += _in_memory(fd, size)
        finally:
            os.close(fd)
    return Cached(n_pages=n_pages, n_in_memory=n_found)


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
