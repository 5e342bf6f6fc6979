"""Asking for the interpreter soon: without it looks miss code that gives it up for microseconds.

A thread that waits for the GIL has it handed over 5 ms after asking, but begins to wait anew each
time the holder lets it go and takes it back, as torch does in most operations. So it gets its turn
only where the holder stays away for long: looks at a dataset that parsed JSON for 13 ms a batch all
fell on the 0.3 ms of torch.stack behind it. With 0.1 ms, 41 of 45 fell on the parsing.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Final

SOON_S: Final = 1e-4
_OURS: Final = "loaderdoctor"  # names of our threads, which sleep, begin so

_usual_s: float | None = None
_forgets_in_children = False


def ask_soon() -> None:
    """Shortens the wait for the GIL while only one thread is there to give it to ours.

    Beside other threads of the script it stays, or becomes again, what the script has: theirs
    would get shorter turns too. Called before each look, by the looking thread.
    """
    global _usual_s, _forgets_in_children
    others = [t for t in threading.enumerate() if not t.name.startswith(_OURS)]
    if len(others) > 1:
        ask_as_usual()
    elif sys.getswitchinterval() > SOON_S:
        _usual_s = sys.getswitchinterval()
        sys.setswitchinterval(SOON_S)
        if not _forgets_in_children:
            _forgets_in_children = True
            os.register_at_fork(after_in_child=ask_as_usual)


def ask_as_usual() -> None:
    """What the script had, unless it has set something else meanwhile."""
    global _usual_s
    usual_s, _usual_s = _usual_s, None
    if usual_s is not None and abs(sys.getswitchinterval() - SOON_S) < SOON_S / 2:
        sys.setswitchinterval(usual_s)
