"""A script in the user's terminal: it may ask for its width, and is not stopped by a question."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

from tests.scripts.running import SHAPES


def test_a_script_finds_the_terminal_and_a_question_to_it_is_an_end_of_file(
    tmp_path: Path,
) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 117, 0, 0))
    command = (sys.executable, "-m", "loaderdoctor", "diagnose", SHAPES / "terminal_width.py")

    def own_terminal() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    with subprocess.Popen(
        command, cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs, preexec_fn=own_terminal
    ) as process:
        os.close(theirs)
        said = b""
        try:
            while part := os.read(ours, 65536):
                said += part
        except OSError:  # a terminal whose other end is closed
            pass
    os.close(ours)
    assert process.returncode == 7, said
    assert b"columns 117\r\n" in said
    assert b"nobody answers\r\n" in said
