"""Whether the script read from its standard input: then it can't be run again, nobody would answer.

What the script reads with Python's own means is seen at once. What other processes or os.read take
shows where standard input is a file, by its position; of a pipe or a terminal it is not known.
"""

from __future__ import annotations

import builtins
import io
import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

_FD = 0


class _NotedReads(io.FileIO):
    """Standard input, which remembers that it was read."""

    was_read = False

    def readinto(self, buffer: Any) -> int | None:
        self.was_read = True
        return super().readinto(buffer)

    def readall(self) -> bytes:
        self.was_read = True
        return super().readall()

    def read(self, size: int | None = -1) -> bytes:
        self.was_read = True
        return super().read(-1 if size is None else size)


class StdinWatch:
    """Put in place before the script runs; asked once it is over."""

    def __init__(self) -> None:
        self._raw: _NotedReads | None = None
        self._asked = False
        self._at = _position()

    def watch(self) -> None:
        """Watch `sys.stdin` and `input`; where there is no standard input, nothing."""
        own = sys.stdin
        try:
            if own is None or own.fileno() != _FD:
                return
            raw = _NotedReads(_FD, closefd=False)
        except (OSError, ValueError):
            return
        raw.name = own.name
        self._raw = raw
        sys.stdin = io.TextIOWrapper(
            io.BufferedReader(raw),
            encoding=own.encoding,
            errors=own.errors,
            line_buffering=bool(own.line_buffering),
        )
        builtins.input = self._noting(builtins.input)

    def was_read(self) -> bool:
        """Whether the script read from it, as far as this process can tell."""
        return (
            self._asked or (self._raw is not None and self._raw.was_read) or _position() != self._at
        )

    def _noting(self, original: Callable[..., str]) -> Callable[..., str]:
        """`input`, which reads from a terminal without `sys.stdin`."""

        @wraps(original)
        def noting(*args: object) -> str:
            self._asked = True
            return original(*args)

        return noting


def _position() -> int | None:
    """Where a file stands; None of a pipe or a terminal."""
    try:
        return os.lseek(_FD, 0, os.SEEK_CUR)
    except OSError:
        return None
