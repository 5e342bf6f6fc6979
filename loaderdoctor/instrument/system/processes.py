"""Processes of a run: whose parent is whose, signals, and how to end them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

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


class Terminated(KeyboardInterrupt):
    """A signal other than SIGINT asked the command to end."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number


def exit_code_of(interrupt: BaseException | None) -> int:
    """Exit code of an interrupted command, as shells report it: 128 + the signal's number."""
    return 128 + (interrupt.number if isinstance(interrupt, Terminated) else signal.SIGINT)


class Signals:
    """Catches them between `catch` and `release`, where nobody else does."""

    def __init__(self) -> None:
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        self.catch()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def catch(self) -> None:
        """From now on they raise Terminated; only the main thread can say so."""
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


@contextmanager
def held() -> Iterator[list[KeyboardInterrupt]]:
    """Put off the first signal until the block's end, for work of some seconds that must be whole.

    What came is in the list, for the exit code; nothing is raised for it. A second signal does not
    wait: somebody wants out.
    """
    came: list[KeyboardInterrupt] = []
    if threading.current_thread() is not threading.main_thread():
        yield came
        return

    def note(number: int, frame: FrameType | None) -> None:
        interrupt = KeyboardInterrupt() if number == signal.SIGINT else Terminated(number)
        if came:
            raise interrupt
        came.append(interrupt)

    before = {
        number: signal.getsignal(number)
        for name in ("SIGINT", "SIGTERM", "SIGHUP")
        if (number := getattr(signal, name, None)) is not None
    }
    taken = {n: h for n, h in before.items() if h in (_leave, signal.default_int_handler)}
    try:
        for number in taken:
            signal.signal(number, note)
        yield came
    finally:
        for number, handler in taken.items():
            signal.signal(number, handler)


def _leave(number: int, frame: FrameType | None) -> None:
    raise Terminated(number)
