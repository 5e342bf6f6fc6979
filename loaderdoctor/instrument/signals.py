"""SIGTERM and SIGHUP end a command as Ctrl-C does: by unwinding, leaving no process behind."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType
from typing import Any


class Signals:
    """Catches them between `catch` and `release`, where nobody else does."""

    def __init__(self) -> None:
        self._handlers: dict[int, Any] = {}

    def catch(self) -> None:
        """From now on they raise SystemExit; only the main thread can say so."""
        if threading.current_thread() is not threading.main_thread():
            return
        for name in ("SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) == signal.SIG_DFL:
                self._handlers[number] = signal.signal(number, _leave)

    def release(self) -> None:
        """As it was before."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)
