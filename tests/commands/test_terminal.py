"""The same report in terminals of two widths, with and without colour, and in a pipe."""

from __future__ import annotations

import ast
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from functools import cache
from pathlib import Path

import pytest

import loaderdoctor
from tests.commands.reading import read_to_end
from tests.report.conftest import trace_path

CODE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])[;m]")
COMMAND = (
    sys.executable, "-m", "loaderdoctor", "analyze", str(trace_path("gpu_resident")),
)  # fmt: skip


def environment(**more: str) -> dict[str, str]:
    unset = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")
    kept = {name: value for name, value in os.environ.items() if name not in unset}
    return kept | {"TERM": "xterm-256color"} | more


@cache
def in_terminal(width: int, *, no_color: bool = False) -> str:
    """What the command writes to a terminal of that width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    more = {"NO_COLOR": "1"} if no_color else {}
    with subprocess.Popen(
        COMMAND, stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL, env=environment(**more)
    ) as process:
        os.close(theirs)
        said = read_to_end(ours)
    assert process.returncode == 0, said
    return said.decode().replace("\r\n", "\n")


@cache
def in_pipe(width: int) -> str:
    done = subprocess.run(COMMAND, capture_output=True, env=environment(COLUMNS=str(width)))
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
    return done.stdout.decode()


def words(text: str) -> list[str]:
    """What is said, bars left out: they fill the width."""
    return re.findall(r"[\w.%,×±µ-]+", CODE.sub("", text))


@pytest.mark.parametrize("width", [80, 200])
def test_a_terminal_shows_what_a_pipe_gets_and_colour_only_repeats_it(width: int) -> None:
    piped = in_pipe(width)
    assert "\x1b" not in piped
    assert max(map(len, piped.splitlines())) <= width
    coloured = in_terminal(width)
    assert COLOUR.search(coloured)
    assert CODE.sub("", coloured) == piped


def test_no_color_loses_colour_and_nothing_else() -> None:
    plain = in_terminal(80, no_color=True)
    assert not COLOUR.search(plain)
    assert CODE.sub("", plain) == CODE.sub("", in_terminal(80))


def test_a_wide_terminal_says_the_same_as_a_narrow_one() -> None:
    assert words(in_pipe(80)) == words(in_pipe(200))
    assert words(in_pipe(80))[:2] == ["Host-bound,", "high"]


def test_no_console_takes_brackets_for_markup() -> None:
    """`pip install 'loaderdoctor[perfetto]'` would lose its extra; so would the user's own text."""
    package = Path(loaderdoctor.__file__).parent
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "Console":
                assert "markup" in {k.arg for k in node.keywords}, f"{path}:{node.lineno}"
