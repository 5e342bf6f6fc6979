"""Starts and ends the measuring process, with everything it started; where it connects to us."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing import AuthenticationError
from multiprocessing.connection import (
    Client,
    Connection,
    Listener,
    answer_challenge,
    deliver_challenge,
)
from pathlib import Path

import msgspec
import psutil

import loaderdoctor
from loaderdoctor.errors import RunError
from loaderdoctor.instrument.system.processes import kill
from loaderdoctor.instrument.wire.channel import Address, encoded
from loaderdoctor.instrument.wire.protocol import FromRun, ToRun

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
    "ours.{function}()"
)
LET_GO_S = 0.1
# Ranks of a job call at about the same time.
BACKLOG = 128
# A socket's whole path has at most 104 bytes (macOS; Linux: 108), 30 of them below this folder.
MAX_FOLDER_BYTES = 73


def package_root() -> str:
    return str(Path(loaderdoctor.__file__).resolve().parent.parent)


def bootstrap(module: str, function: str = "main") -> str:
    """Code for `python -c` that runs a function of a module of `instrument`."""
    return _BOOTSTRAP.format(root=package_root(), module=module, function=function)


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


class MessagePipe:
    """One connection, for messages; that the other end is gone is remembered, not raised."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.lost = False

    def send(self, message: ToRun) -> None:
        """Send one message; where nobody listens any more, nothing happens."""
        if self.lost:
            return
        try:
            self.connection.send_bytes(encoded(message))
        except (OSError, EOFError):
            self.lost = True

    def receive(self, timeout_s: float = 0.0) -> FromRun | None:
        """The next message if it comes in time."""
        if self.lost:
            return None
        try:
            if not self.connection.poll(timeout_s):
                return None
            data = self.connection.recv_bytes()
        except (OSError, EOFError):
            self.lost = True
            return None
        try:
            message: FromRun = msgspec.json.decode(data, type=FromRun)
        except msgspec.DecodeError as error:
            raise RunError(
                f"What the script's process sent can't be read ({error}). This is an error of "
                "loaderdoctor's, not of the script: please report it."
            ) from error
        return message


class ConnectionListener:
    """A private address where callers that know the key are let in, until it is closed.

    With `host` a port of that address is opened, for ranks on other machines; without, a socket
    in a folder that only this user can enter.
    """

    def __init__(self, host: str | None = None) -> None:
        """Raises RunError where it can't be opened."""
        self.authkey = secrets.token_bytes(32)
        self._folder: str | None = None
        try:
            if host is not None:
                self._listener = Listener((host, 0), "AF_INET", BACKLOG)
            elif sys.platform == "win32":
                self._listener = Listener(None, "AF_PIPE", BACKLOG)
            else:
                usual = tempfile.gettempdir()
                place = usual if len(os.fsencode(usual)) <= MAX_FOLDER_BYTES else "/tmp"
                self._folder = tempfile.mkdtemp(prefix="loaderdoctor-", dir=place)  # mode 0700
                address = str(Path(self._folder) / "socket")
                self._listener = Listener(address, "AF_UNIX", BACKLOG)
        except OSError as error:
            self._remove_folder()
            where = host or self._folder or tempfile.gettempdir()
            raise RunError(f"{where}: processes can't be listened to there ({error}).") from error
        self.address: Address = self._listener.address
        self._accepted: list[Connection] = []
        self._closing = False
        # accept() can't be given a time limit, so it waits in a thread and we wait for that.
        self._one_more = threading.Event()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float) -> MessagePipe | None:
        """The next caller, if one came in time."""
        if not self._accepted:
            self._one_more.wait(timeout_s)
        self._one_more.clear()
        return MessagePipe(self._accepted.pop(0)) if self._accepted else None

    def close(self) -> None:
        self._closing = True
        if self._thread.is_alive():
            with contextlib.suppress(OSError):
                Client(self.address).close()  # lets the thread go
            self._thread.join(LET_GO_S)
        self._listener.close()
        for connection in self._accepted:
            connection.close()
        self._remove_folder()

    def _remove_folder(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _accept(self) -> None:
        while not self._closing:
            try:
                connection = self._listener.accept()
            except OSError:
                time.sleep(POLL_S)  # no more files may be open, or it left before it was let in
                continue
            # Whoever calls and then says nothing keeps none of the others waiting.
            threading.Thread(target=self._let_in, args=(connection,), daemon=True).start()

    def _let_in(self, connection: Connection) -> None:
        """A caller that knows the key."""
        try:
            deliver_challenge(connection, self.authkey)
            answer_challenge(connection, self.authkey)
        except (AuthenticationError, EOFError, OSError):
            connection.close()
            return
        self._accepted.append(connection)
        self._one_more.set()
