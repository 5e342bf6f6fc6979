"""Starts and ends the measuring process, with everything it started, from the command's side."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

import loaderdoctor
from loaderdoctor.instrument.system.processes import kill

POLITE_S = 8.0  # after Stop: the script's own clean-up, then ours (stopping.GRACE_S) and some
TERM_S = 3.0
KILL_S = 5.0
TRACKER_S = 2.0  # what a resource tracker needs to clean up, once all others are gone
POLL_S = 0.05

# The package's parent goes first for this one import, in case the command runs from a checkout;
# `python -m` would put the current folder first, where a file may shadow what we need.
_BOOTSTRAP = (
    "import sys; root = {root!r}; sys.path[0] = root; "
    "import loaderdoctor.instrument.{module} as ours; "
    "del sys.path[0]; root in sys.path or sys.path.append(root); "
    "ours.main()"
)


def package_root() -> str:
    """The folder that holds this package."""
    return str(Path(loaderdoctor.__file__).resolve().parent.parent)


def bootstrap(module: str) -> str:
    """Code for `python -c` that runs `main` of a module of `instrument`."""
    return _BOOTSTRAP.format(root=package_root(), module=module)


class MeasuringProcess:
    """The process that runs the user's script, leader of its own process group.

    `module`: which of ours it runs; `entry.launcher` starts several that do, with torch's own.
    """

    def __init__(
        self,
        *,
        environment: Mapping[str, str],
        stdout: int | None,
        module: str = "entry.child",
        arguments: Sequence[str] = (),
    ) -> None:
        group: dict[str, object] = {}
        if os.name == "posix":
            # Python 3.10 can only make a whole new session.
            newer = sys.version_info >= (3, 11)
            group = {"process_group": 0} if newer else {"start_new_session": True}
        self._popen = subprocess.Popen(
            [sys.executable, "-c", bootstrap(module), *arguments],
            env=dict(environment),
            stdout=stdout,
            **group,  # type: ignore[call-overload]
        )
        self.pid = self._popen.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code as a shell reports it (128 + signal); None while it runs."""
        code: int | None = self._popen.poll()
        if code is None:
            return None
        return code if code >= 0 else 128 - code

    @property
    def killed_by(self) -> str | None:
        """Name of the signal that ended it, if one did."""
        code = self._popen.poll()
        if code is None or code >= 0:
            return None
        with contextlib.suppress(ValueError):
            return signal.Signals(-code).name
        return f"signal {-code}"

    def wait(self, timeout_s: float | None) -> bool:
        """Whether it ended in time. Polls, so that Ctrl-C gets through."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while self._popen.poll() is None:
            if end is not None and time.monotonic() >= end:
                return False
            time.sleep(POLL_S)
        return True

    def descendants(self) -> list[psutil.Process]:
        """Its children and theirs, workers first of all; [] once it is gone."""
        try:
            return list(psutil.Process(self.pid).children(recursive=True))
        except psutil.Error:
            return []

    def end(self, *, polite_s: float) -> None:
        """Wait, then SIGTERM, then SIGKILL, to the whole group and whatever left it."""
        left = self.descendants()
        try:
            if not self.wait(polite_s):
                left = self.descendants()
                self._signal(signal.SIGTERM)
                if not self.wait(TERM_S):
                    self._kill_all(left)
                    self.wait(KILL_S)
        finally:
            # Workers outlive a killed parent for some seconds; nothing may be left behind, also
            # where the user has no patience for this.
            self._kill_all(left)

    def _kill_all(self, left: Sequence[psutil.Process]) -> None:
        if self._popen.poll() is None:
            self._popen.kill()
        connections = [*left, *self._group()]
        kill(connections)
        _, slow = psutil.wait_procs(connections, timeout=TRACKER_S)
        for process in slow:
            with contextlib.suppress(psutil.Error):
                process.kill()

    def _group(self) -> list[psutil.Process]:
        """Others of its process group. Itself is waited for by Popen alone, or its code is lost."""
        found = []
        for pid in psutil.pids() if os.name == "posix" else ():
            with contextlib.suppress(OSError, psutil.Error):
                if pid != self.pid and os.getpgid(pid) == self.pid:
                    found.append(psutil.Process(pid))
        return found

    def _signal(self, number: int) -> None:
        with contextlib.suppress(OSError):
            if os.name == "posix":
                os.killpg(self.pid, number)
            elif self._popen.poll() is None:
                self._popen.terminate()
