"""How long a thread stood ready to run and no CPU was free, told while it runs. Linux; no torch.

The kernel counts it as soon as the thread has a CPU again, so two readings around a wait say how
much of it was waiting for a CPU and not for what the thread asked for. A reading takes about a
microsecond, as its file stays open.
"""

from __future__ import annotations

import os
from threading import get_ident

_MAX_BYTES = 64  # three numbers: ns it ran, ns it waited to, how often it was given a CPU
_UNREADABLE = (OSError, ValueError, IndexError)


class RunQueue:
    """Reads it for whichever thread asks; holds a file open for each until it is closed."""

    def __init__(self) -> None:
        self._files: dict[int, int] = {}  # by thread; -1: the system tells nothing
        self._closed = False
        self.waited_ns()  # opening the first takes ten times as long as reading it

    def waited_ns(self) -> int | None:
        """Of the calling thread, since it began; None where the system does not tell."""
        file = self._files.get(get_ident())
        if file is None:
            file = self._files[get_ident()] = -1 if self._closed else _open()
        if file < 0:
            return None
        try:  # in place, not in a function of its own: this runs twice in each fetch
            return int(os.pread(file, _MAX_BYTES, 0).split()[1])
        except _UNREADABLE:
            return None  # closed meanwhile

    def close(self) -> None:
        """No file stays open; readings are None from then on."""
        self._closed = True
        files, self._files = self._files, dict.fromkeys(self._files, -1)
        for file in files.values():
            if file >= 0:
                os.close(file)


def _open() -> int:
    """The calling thread's counters; -1 where there are none, or none that count."""
    try:
        file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
    if _counts(file):
        return file
    os.close(file)
    return -1


def _counts(file: int) -> bool:
    """Whether the kernel counts: a thread that runs was given a CPU, if it never waited for one."""
    try:
        return int(os.pread(file, _MAX_BYTES, 0).split()[2]) > 0
    except _UNREADABLE:
        return False
