"""Says on stderr what has changed: one line at a time, at most one a minute.

The script writes to the same terminal, progress bars above all, which redraw one line over and
over without ending it. So a line of ours first clears the one the cursor is in; the bar draws
itself again below it. In a file a line begins on its own.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TextIO

from loaderdoctor import format as fmt
from loaderdoctor.alerts.alert import Alert
from loaderdoctor.instrument.wire.tuning import TuningRecord
from loaderdoctor.report.words.tuning import began, changed, left_alone

EVERY_S: Final = 60.0
CLEAR: Final = "\r\x1b[K"


class Teller:
    """Give it alerts; it tells them when it may."""

    def __init__(
        self, stream: TextIO | None = None, *, say: Callable[[str], None] | None = None
    ) -> None:
        """`say`: whoever tells it instead."""
        self._stream = stream or sys.stderr
        self._say = say
        self._waiting: deque[Alert] = deque(maxlen=32)
        self._told_s = float("-inf")

    def add(self, alert: Alert) -> None:
        """To be told, in order."""
        self._waiting.append(alert)

    def tell(self, now_s: float) -> Alert | None:
        """Tell the next one, if it is time; which that was."""
        if not self._waiting or now_s - self._told_s < EVERY_S:
            return None
        self._told_s = now_s
        alert = self._waiting.popleft()
        self.say(alert.line)
        return alert

    def say(self, text: str) -> None:
        """One line now."""
        if self._say is not None:
            self._say(text)
            return
        line = f"loaderdoctor: {fmt.plain(text)}\n"
        with suppress(OSError, ValueError):  # nobody reads it any more
            if self._stream.isatty():
                line = CLEAR + line
            elif _in_a_line(self._stream):
                line = "\n" + line
            self._stream.write(line)
            self._stream.flush()


def _in_a_line(stream: TextIO) -> bool:
    """Whether a file ends within a line, as where a bar draws into it."""
    try:
        number = stream.fileno()
        if not stat.S_ISREG(os.fstat(number).st_mode):
            return False
        with open(f"/proc/self/fd/{number}", "rb") as reader:  # noqa: PTH123 - opened again, to read
            if not reader.seek(0, os.SEEK_END):
                return False
            reader.seek(-1, os.SEEK_END)
            return reader.read(1) not in (b"\n", b"\r")
    except (OSError, ValueError):
        return False


class Tuned:
    """Give it what each beat brings."""

    def __init__(self) -> None:
        self.record: TuningRecord | None = None

    def heard(self, record: TuningRecord, step: int) -> list[Alert]:
        """What is to be told of it."""
        before, self.record = self.record, record
        if record.not_tuned is not None:
            text = left_alone(record) if before is None else None
        elif before is None or before.chosen != record.chosen:
            text = began(record) if before is None and record.chosen is None else changed(record)
        else:
            text = None
        if text is None:
            return []
        return [Alert(kind="tuned", at_s=time.time(), step=step, text=text)]
