"""Asking for the interpreter soon: else samples miss code that gives it up for microseconds.

A thread that waits for the GIL has it handed over 5 ms after asking, but begins to wait again each
time the holder lets it go and takes it back, as torch does in most operations. So it gets its turn
only where the holder stays away for long: samples of a dataset that parsed JSON for 13 ms a batch
all fell on the 0.3 ms of torch.stack behind it. With 0.1 ms, 41 of 45 fell on the parsing.

A worker is never without another thread: its queue has one that sends, its tensors one that hands
out file descriptors. Were the wait short all along, they would get the interpreter sooner than
without samples: batches of a worker that parses JSON seemed to be sent in 2 ms instead of 3. Hence
in a worker it is short only for some milliseconds before a sample.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Final

SOON_S: Final = 1e-4
_OURS: Final = "loaderdoctor"  # names of our threads, which sleep, begin so
# A worker's queue has a thread that sends, and its tensors one that hands out file descriptors.
_QUEUES: Final = ("multiprocessing.queues", "multiprocessing.resource_sharer")

_usual_s: float | None = None
_forgets_in_children = False


def ask_soon(*, beside_queues: bool = False, beside_any: bool = False) -> bool:
    """Shortens the wait for the GIL while only one thread is there to give it to ours.

    Beside other threads of the script it stays, or becomes again, what the script has: theirs
    would get shorter turns too. So would the threads with which multiprocessing sends what a
    worker made; `beside_queues` looks past those, for callers that are back to usual soon.
    Called before each sample, by the sampling thread. Returns whether the wait is short now.
    """
    global _usual_s, _forgets_in_children
    others = [t for t in threading.enumerate() if not t.name.startswith(_OURS)]
    if beside_queues:
        others = [t for t in others if _module_run_by(t) not in _QUEUES]
    if len(others) > 1 and not beside_any:
        ask_as_usual()
        return False
    if sys.getswitchinterval() > SOON_S:
        _usual_s = sys.getswitchinterval()
        sys.setswitchinterval(SOON_S)
        if not _forgets_in_children:
            _forgets_in_children = True
            os.register_at_fork(after_in_child=ask_as_usual)
    return True


def _module_run_by(thread: threading.Thread) -> str | None:
    """Where the function comes from that the thread was started with (all of CPython keep it)."""
    return getattr(getattr(thread, "_target", None), "__module__", None)


def ask_as_usual() -> None:
    """What the script had, unless it has set something else meanwhile."""
    global _usual_s
    usual_s, _usual_s = _usual_s, None
    if usual_s is not None and abs(sys.getswitchinterval() - SOON_S) < SOON_S / 2:
        sys.setswitchinterval(usual_s)
