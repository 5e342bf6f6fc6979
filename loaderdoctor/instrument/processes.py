"""Processes below one: CPU time of the DataLoader's workers, and how to end them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

import psutil


def children_cpu_ns() -> int | None:
    """User and system time of all children, ended ones included, so that differences add up.

    A worker that ends between two readings moves from "alive" to what the system sums for
    children that were waited for. None where the system tells neither.
    """
    try:
        times = os.times()
        total = times.children_user + times.children_system
        for child in psutil.Process().children(recursive=True):
            try:
                cpu = child.cpu_times()
            except psutil.Error:
                continue
            total += cpu.user + cpu.system
    except (OSError, psutil.Error):
        return None
    return round(total * 1e9)


def kill(processes: Iterable[psutil.Process]) -> None:
    """SIGKILL to each, but for multiprocessing's resource trackers.

    A tracker ends by itself once all that it serves are gone, and takes out of /dev/shm what they
    left there: named semaphores of spawned workers, shared memory.
    """
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if not is_resource_tracker(process):
                process.kill()


def is_resource_tracker(process: psutil.Process) -> bool:
    """Whether a process is Python's own that cleans up behind others. Raises psutil.Error."""
    return any("multiprocessing.resource_tracker" in word for word in process.cmdline())
