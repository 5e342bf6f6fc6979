"""Reads what a command writes to a terminal."""

from __future__ import annotations

import os


def read_to_end(terminal: int) -> bytes:
    """All that is written to the other end until that is closed, and then this end too."""
    said = b""
    try:
        while part := os.read(terminal, 65536):
            said += part
    except OSError:  # how a terminal whose other end is closed says so
        pass
    finally:
        os.close(terminal)
    return said
