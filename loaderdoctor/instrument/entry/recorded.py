"""A process that is recorded to its end: what records it, and its wait for the report.

Nothing here imports torch, or numpy: what these read of the environment, the script sets first.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from loaderdoctor.errors import EXIT_RUN_FAILED
from loaderdoctor.instrument.session import Session
from loaderdoctor.instrument.wire.channel import Channel, ConnectionLostError, LaunchConfig
from loaderdoctor.instrument.wire.protocol import Reported

if TYPE_CHECKING:
    from loaderdoctor.instrument.session import Recording

TRACE = "baseline.json"
# For the report: some seconds, and more of a long trace.
REPORT_S = 120.0
UNJUDGED = "loaderdoctor: --fail-on was not judged: there is no report of this run.\n"
_sessions: weakref.WeakSet[Session] = weakref.WeakSet()
_registered = False


def record(session: Session, launch_config: LaunchConfig) -> None:
    """Have the session record its loop, once it is warm."""
    trace_path = str(session.run_dir / TRACE) if launch_config.profile else None

    def recording(session: Session) -> Recording:
        from loaderdoctor.instrument.recording import Recorder

        if not launch_config.tune:
            return Recorder(session, trace_path=trace_path)
        from loaderdoctor.instrument.recording.loop_tuner import LoopTuner

        tuner = LoopTuner(session, exact=launch_config.tune == "exact")
        return Recorder(session, trace_path=trace_path, tuner=tuner)

    session.record_to_end(recording)
    if launch_config.sums_dir:
        session.workers.sums_folder = Path(launch_config.sums_dir) / str(os.getpid())


def verdict(
    channel: Channel | None, launch_config: LaunchConfig, came: Sequence[object] = ()
) -> int:
    """The command's exit code, once its report is written. `channel`: None where nobody listens.

    `came`: signals, of which the first ends the wait. Without a report nothing has passed that it
    was to judge: that is said, and is no success.
    """
    code = _reported(channel, came) if channel is not None else None
    if code is None and launch_config.judged and not came:
        sys.stderr.write(UNJUDGED)
        return EXIT_RUN_FAILED
    return code or 0


def _reported(channel: Channel, came: Sequence[object]) -> int | None:
    """None where it never comes."""
    end_s = monotonic() + REPORT_S
    while not came and monotonic() < end_s:
        try:
            message = channel.receive(0.5)
        except ConnectionLostError:
            return None
        if isinstance(message, Reported):
            return message.exit_code
    return None


def disable_in_forks(session: Session) -> None:
    """In forks of this process, DataLoader workers, it does nothing; what `os` was told stays."""
    global _registered
    _sessions.add(session)
    if not _registered and hasattr(os, "register_at_fork"):
        _registered = True
        os.register_at_fork(after_in_child=_disable_all)


def _disable_all() -> None:
    for session in _sessions:
        session.disable_in_fork()
