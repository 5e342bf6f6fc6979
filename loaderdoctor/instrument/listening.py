"""The command's side of the connection, until the measuring process has called."""

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

POLL_S = 0.1


class Doorway:
    """A private address where one caller that knows the key is let in."""

    def __init__(self) -> None:
        self.authkey = secrets.token_bytes(32)
        self._folder: str | None = None
        family, address = "AF_PIPE", None
        if sys.platform != "win32":
            family = "AF_UNIX"
            self._folder = tempfile.mkdtemp(prefix="loaderdoctor-")  # mode 0700
            address = str(Path(self._folder) / "socket")
        self._listener = Listener(address, family, authkey=self.authkey)
        self.address = str(self._listener.address)
        self._accepted: list[Connection] = []
        # accept() can't be given a time limit, so it waits in a thread and we wait for that.
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def wait(self) -> Connection | None:
        """The caller's connection, if it came within a tenth of a second."""
        self._thread.join(POLL_S)
        return self._accepted[0] if self._accepted else None

    def close(self) -> None:
        """Nobody is let in any more."""
        if self._thread.is_alive():
            with contextlib.suppress(OSError, EOFError, AuthenticationError):
                Client(self.address, authkey=self.authkey).close()  # lets the thread go
            self._thread.join(POLL_S)
        self._listener.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _accept(self) -> None:
        while not self._accepted:
            with contextlib.suppress(AuthenticationError, EOFError):
                try:
                    self._accepted.append(self._listener.accept())
                except OSError:
                    return
