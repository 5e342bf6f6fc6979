"""The command's end of the connections to measuring processes, and where they call."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import sys
import tempfile
import threading
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

import msgspec

from loaderdoctor.instrument.wire.channel import Address
from loaderdoctor.instrument.wire.protocol import FromRun, ToRun

POLL_S = 0.1
# Ranks of a job call at about the same time.
BACKLOG = 128


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
            self.connection.send_bytes(msgspec.json.encode(message))
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
        message: FromRun = msgspec.json.decode(data, type=FromRun)
        return message


class ConnectionListener:
    """A private address where callers that know the key are let in, until it is closed.

    With `host` a port of that address is opened, for ranks on other machines; without, a socket
    in a folder that only this user can enter.
    """

    def __init__(self, host: str | None = None) -> None:
        self.authkey = secrets.token_bytes(32)
        self._folder: str | None = None
        if host is not None:
            self._listener = Listener((host, 0), "AF_INET", BACKLOG, self.authkey)
        elif sys.platform == "win32":
            self._listener = Listener(None, "AF_PIPE", BACKLOG, self.authkey)
        else:
            self._folder = tempfile.mkdtemp(prefix="loaderdoctor-")  # mode 0700
            address = str(Path(self._folder) / "socket")
            self._listener = Listener(address, "AF_UNIX", BACKLOG, self.authkey)
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
        """Nobody is let in any more."""
        self._closing = True
        if self._thread.is_alive():
            with contextlib.suppress(OSError, EOFError, AuthenticationError):
                Client(self.address, authkey=self.authkey).close()  # lets the thread go
            self._thread.join(POLL_S)
        self._listener.close()
        for connection in self._accepted:
            connection.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _accept(self) -> None:
        while not self._closing:
            with contextlib.suppress(AuthenticationError, EOFError):
                try:
                    self._accepted.append(self._listener.accept())
                except OSError:
                    return
                self._one_more.set()
