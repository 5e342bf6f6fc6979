"""Sessions in a process that was not started by us: in its forks, DataLoader workers, none acts."""

from __future__ import annotations

import os
import weakref

from loaderdoctor.instrument.session.session import Session

_sessions: weakref.WeakSet[Session] = weakref.WeakSet()
_registered = False


def disable_in_forks(session: Session) -> None:
    """From now on, for as long as it lives; what is registered with `os` stays."""
    global _registered
    _sessions.add(session)
    if not _registered and hasattr(os, "register_at_fork"):
        _registered = True
        os.register_at_fork(after_in_child=_disable_all)


def _disable_all() -> None:
    for session in _sessions:
        session.disable_in_fork()
