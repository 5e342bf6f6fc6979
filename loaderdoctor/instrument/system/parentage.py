"""What a process of ours owes to the one that started it, and to the terminal they share."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it


def die_with_parent(parent: int) -> None:
    """Ask Linux for SIGTERM when the parent dies, however it dies; elsewhere do nothing."""
    if not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(EXIT_INTERRUPTED)


def outlive_terminal_reads() -> None:
    """In the measuring process: reading the terminal, which is its stdin, is an end of file.

    Scripts ask it for its width (`stty size`), which any process group may. One that is not in the
    foreground and reads it, or sets it up to be read, is stopped by the system, for good: with
    these signals ignored both fail instead, `input()` with EOFError.
    """
    for name in ("SIGTTIN", "SIGTTOU"):
        number = getattr(signal, name, None)  # Windows has neither
        if number is not None:
            signal.signal(number, signal.SIG_IGN)
