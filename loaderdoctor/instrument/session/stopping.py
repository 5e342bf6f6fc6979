"""Ends the script from inside a hook: politely first, then for good."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time

# A script that catches everything, or cleans up for longer than this, is ended without it.
GRACE_S = 5.0


class StopTraining(BaseException):
    """Raised out of a hook to end the script; the script's `finally` blocks run."""


def exit_now() -> None:
    """Flush the standard streams, kill our children (workers), and leave with exit code 0."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    with contextlib.suppress(Exception):
        import psutil

        from loaderdoctor.instrument.system.processes import kill

        kill(psutil.Process().children(recursive=True))
    os._exit(0)


def exit_after_grace() -> None:
    """Start the daemon thread that ends the process if the script has not ended by itself.

    From now on a thread of the script's that `StopTraining` ends prints no traceback of ours.
    """
    shown = threading.excepthook

    def quietly(ended: threading.ExceptHookArgs) -> None:
        if not isinstance(ended.exc_value, StopTraining):
            shown(ended)

    threading.excepthook = quietly

    def wait() -> None:
        time.sleep(GRACE_S)
        exit_now()

    threading.Thread(target=wait, name="loaderdoctor-stop", daemon=True).start()
