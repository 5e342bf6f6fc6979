"""How to end processes of a run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import psutil


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
