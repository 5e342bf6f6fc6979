"""A process of ours that ends when the one that started it does."""

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
