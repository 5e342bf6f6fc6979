"""What commands show: their report, judged for CI, and before it what they are doing."""

from __future__ import annotations

import atexit
import operator
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from rich.cells import set_cell_size
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from loaderdoctor import format as fmt
from loaderdoctor.errors import EXIT_THRESHOLD, RunError, UsageError
from loaderdoctor.report import encode_report, write_bytes
from loaderdoctor.report.console import render_report
from loaderdoctor.report.model import Report

STDOUT = "-"
# What lies there is no file of ours to put another in the place of: /dev/stdout, /dev/fd/3.
_DEVICES = (Path("/dev"), Path("/dev/fd").resolve())
_RULE = re.compile(
    r"^\s*(input|copy|communication|compute|host|outside)\s*(>=|>|<=|<)\s*([0-9]+\.?[0-9]*|\.[0-9]+)\s*%\s*$"
)
_COMPARES = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}


@dataclass(frozen=True, slots=True)
class ShareRule:
    """A `--fail-on` rule: a share and a limit, 0…1."""

    share: str
    comparison: str
    limit: float
    text: str

    def holds(self, report: Report) -> bool:
        """Whether the report's share breaks the rule; one that can't be judged does not."""
        value = share_of(report, self.share)
        if value is None or _without_verdict(report, self.share):
            return False
        return bool(_COMPARES[self.comparison](value, self.limit))


def share_rules(texts: Sequence[str]) -> tuple[ShareRule, ...]:
    """Parse `--fail-on` rules before anything runs. Raises UsageError with the form expected."""
    rules = []
    for text in texts:
        match = _RULE.match(text)
        if match is None or float(match[3]) > 100.0:
            raise UsageError(
                f"--fail-on {text!r}: write a share, a comparison and a percentage, for example "
                "'input>20%'. Shares: input, copy, communication, compute, host, "
                "outside (of all the time)."
            )
        rules.append(ShareRule(match[1], match[2], float(match[3]) / 100.0, text.strip()))
    return tuple(rules)


def exit_code(report: Report, rules: Sequence[ShareRule]) -> int:
    """3 where a rule holds (said on stderr), else 0; what can't be judged is said too."""
    for rule in rules:
        why = None
        if share_of(report, rule.share) is None:
            why = f"{rule.share} was not recorded"
        elif _without_verdict(report, rule.share):
            why = "there is no verdict"
        if why is not None:
            sys.stderr.write(
                f"loaderdoctor: --fail-on {rule.text}: {why}, so this was not judged\n"
            )
    broken = [rule for rule in rules if rule.holds(report)]
    for rule in broken:
        value = fmt.share(share_of(report, rule.share))
        sys.stderr.write(f"loaderdoctor: --fail-on {rule.text}: {rule.share} is {value}\n")
    return EXIT_THRESHOLD if broken else 0


def console_stream(json_target: str | None) -> TextIO:
    """Where the report for people goes: stdout, unless the JSON is there."""
    return sys.stderr if json_target == STDOUT else sys.stdout


def check_target(option: str, target: str | Path | None) -> None:
    """Fail before the long part where FILE can't be written. Raises UsageError."""
    if target is None or str(target) == STDOUT:
        return
    path = Path(target)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UsageError(f"{option} {path}: not a file in an existing folder.")


def write_file(path: Path, data: bytes) -> None:
    """A whole file, or on to a device or a pipe. Raises RunError where it can't be written.

    A link to its folder is the user's own; one in the file's place is replaced.
    """
    folder = path.parent.resolve()
    if path.is_file() is path.exists() and folder not in _DEVICES:
        write_bytes(folder / path.name, data)
        return
    try:
        with path.open("ab") as out:
            out.write(data)
    except OSError as error:
        raise RunError(f"{path}: can't be written ({error.strerror or error}).") from error


def write_json(json_target: str | Path | None, data: bytes) -> None:
    """Where `--json` says. Raises RunError where FILE can't be written."""
    if str(json_target) == STDOUT:
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
    elif json_target is not None:
        write_file(Path(json_target), data)


def deliver(
    report: Report, *, json_target: str | None, folder: Path | None, verbose: bool = False
) -> None:
    """Print the report, whole with `verbose`; write the JSON where asked.

    Raises RunError where FILE can't be written.
    """
    Console(file=console_stream(json_target), markup=False).print(
        render_report(report, folder=folder, brief=not verbose)
    )
    write_json(json_target, encode_report(report))


def share_of(report: Report, name: str) -> float | None:
    """One share of the report, 0…1; None where it was not recorded."""
    if name == "outside":
        return report.wall.outside_share if report.wall is not None else None
    if report.run is not None and report.run.input_share is not None and name == "input":
        return report.run.input_share  # of all of it, not of the window that findings rest on
    if report.shares is None:
        return None
    value: float | None = getattr(report.shares, name)
    return value


def _without_verdict(report: Report, name: str) -> bool:
    """Whether too little was recorded to judge this share, and nothing but the trace tells it."""
    whole_run = name == "input" and report.run is not None and report.run.input_share is not None
    if whole_run or name == "outside" or report.ablation is not None:
        return False
    return report.verdict.bound == "unknown"


# The same words again come only after this long (trials of settings say them each round).
_AGAIN_S = 5.0
# Fewer rows leave the script too little to scroll in.
_MIN_ROWS = 8
_SAVE, _RESTORE = "\x1b7", "\x1b8"


class Stages:
    """What a diagnosis is doing and for how long yet, on stderr where that is a terminal.

    Call it with what begins now and the seconds left, None where nobody knows. One line is updated
    in place, at the foot of the screen. The script writes to the same terminal meanwhile, so the
    rows above are made a scroll region of their own (as apt does while packages print): what the
    script writes scrolls there as ever, and never meets our line. Where a terminal can't do that,
    each stage is a plain line.

    `size` gives (columns, rows) of the terminal; (0, 0) where that is not known.
    """

    def __init__(
        self,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        size: Callable[[], tuple[int, int]] | None = None,
    ) -> None:
        self._console = console or Console(file=sys.stderr, markup=False)
        self._clock = clock
        self._size = size or _terminal_size
        self._told, self._at_s = "", float("-inf")
        self._rows: int | None = None  # while the foot of the screen is ours: its rows

    def __call__(self, what: str, left_s: float | None = None) -> None:
        """Show it; nothing where stderr is not a terminal."""
        now_s = self._clock()
        if not self._console.is_terminal or (what == self._told and now_s - self._at_s < _AGAIN_S):
            return
        self._told, self._at_s = what, now_s
        left = f", {fmt.time_left(left_s)}" if left_s is not None else ""
        said = f"loaderdoctor: {what}{left}"
        columns, rows = self._size()
        if rows < _MIN_ROWS or columns < 1 or self._console.is_dumb_terminal:
            self.close()
            self._console.print(Text(said, style="dim"))
            return
        codes = ""
        if rows != self._rows:
            codes = self._reserve(rows)
        line = set_cell_size(fmt.plain(said), min(len(said), columns - 1)).rstrip()
        self._write(f"{codes}{_SAVE}\x1b[{rows};1H\x1b[2K\x1b[2m{line}\x1b[0m{_RESTORE}")

    def warn(self, text: str) -> None:
        """Text that everyone must see: wrapped between words in a terminal, else in one line."""
        if self._console.is_terminal:
            self._console.print(Text(text.rstrip()))
        else:
            self._console.file.write(text)
            self._console.file.flush()

    def close(self) -> None:
        """Give the foot of the screen back; what was written above it stays, and goes on there."""
        rows, self._rows = self._rows, None
        if rows is None:
            return
        atexit.unregister(self.close)
        # Setting the region moves the cursor, so it is saved before.
        self._write(f"{_SAVE}\x1b[{rows};1H\x1b[2K\x1b[r{_RESTORE}")

    def _reserve(self, rows: int) -> str:
        """Codes that make all rows but the last one scroll by themselves.

        The line feed makes room where the cursor is in the last row; then it goes up again.
        """
        if self._rows is None:
            atexit.register(self.close)  # a terminal left so would scroll oddly for ever
        self._rows = rows
        return f"\n{_SAVE}\x1b[1;{rows - 1}r{_RESTORE}\x1b[1A"

    def _write(self, codes: str) -> None:
        """In one piece: the script writes to the same terminal."""
        self._console.file.write(codes)
        self._console.file.flush()


def _terminal_size() -> tuple[int, int]:
    try:
        size = os.get_terminal_size(sys.stderr.fileno())
    except (OSError, ValueError):  # stderr is none, or was replaced
        return 0, 0
    return size.columns, size.lines


# Nothing is drawn for what is over by then; after it, a few times a second.
_SILENT_S = 1.0
_DRAWN_EVERY_S = 0.2
_BAR_WIDTH = 30

Told = Callable[[float], None]


@contextmanager
def progress(
    what: str, *, console: Console | None = None, clock: Callable[[], float] = time.monotonic
) -> Iterator[Told | None]:
    """How far one large trace is read or written, on stderr where that is a terminal.

    Gives what is to be told the share done so far (0…1); None where nobody looks. Drawn by the work
    itself, not by a thread: next to threads a trace is not read in parts.
    """
    shown = console or Console(file=sys.stderr, markup=False)
    if not shown.is_terminal:
        yield None
        return
    live = Live(console=shown, transient=True, auto_refresh=False)
    began_s = drawn_s = clock()

    def told(share: float) -> None:
        nonlocal drawn_s
        now_s = clock()
        if now_s - began_s < _SILENT_S or now_s - drawn_s < _DRAWN_EVERY_S:
            return
        drawn_s = now_s
        live.start()
        row = Table.grid(padding=(0, 2))
        row.add_column(no_wrap=True, overflow="ellipsis")
        row.add_column()
        row.add_column(no_wrap=True)
        left_s = (now_s - began_s) * (1.0 - share) / share if share > 0 else None
        left = fmt.time_left(left_s) if left_s is not None else ""
        bar = ProgressBar(total=1.0, completed=share, width=_BAR_WIDTH)
        row.add_row(fmt.plain(what), bar, Text(left, style="dim"))
        live.update(row, refresh=True)

    try:
        yield told
    finally:
        live.stop()
