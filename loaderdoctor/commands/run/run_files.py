"""What a run leaves on disk while it goes on: small files that are whole at any moment.

events.jsonl, events.1.jsonl   one line a minute, and one for each alert; the older half
.recorded/run.json             the run so far, replaced every minute
.recorded/loops.json           what each process said of its loop, and its first window
tensorboard/run/               scalars, one point a minute
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from loaderdoctor.instrument.wire.protocol import Hello, Note, Observed, WindowDone
from loaderdoctor.report.run_model import Run
from loaderdoctor.report.traces.event_file import EventFile

RECORDED: Final = ".recorded"
EVENTS: Final = "events.jsonl"
OLDER: Final = "events.1.jsonl"
ROTATE_BYTES: Final = 2_000_000  # three days of lines


class Loop(msgspec.Struct, frozen=True, kw_only=True):
    """What one process said of its loop."""

    rank: int
    hello: Hello | None
    observed: Observed
    windows: tuple[WindowDone, ...]
    notes: tuple[Note, ...]


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """All that a report is made of, but for the run itself and what lies in files."""

    label: str
    began_s: float
    loops: tuple[Loop, ...]


class RunFiles:
    """Of one run folder. A full disk costs what can't be written, never the run."""

    def __init__(self, folder: Path, metrics_file: Path | None) -> None:
        self.folder = folder
        self.recorded = folder / RECORDED
        self._metrics_file = metrics_file
        self._events: EventFile | None = None
        self._complained = False
        self.recorded.mkdir(exist_ok=True)

    def event(self, line: Mapping[str, Any]) -> None:
        """One line more."""
        path = self.folder / EVENTS

        def write() -> None:
            with path.open("ab") as out:
                out.write(msgspec.json.encode(line) + b"\n")
            if path.stat().st_size > ROTATE_BYTES:
                path.replace(self.folder / OLDER)

        self._try(write)

    def state(self, run: Run) -> None:
        """The run so far."""
        self._replace(self.recorded / "run.json", msgspec.json.encode(run))

    def loops(self, recorded: Recorded) -> None:
        """What was said of the loops."""
        self._replace(self.recorded / "loops.json", msgspec.json.encode(recorded))

    def scalars(self, values: Mapping[str, float], *, step: int, at_s: float) -> None:
        """A point of each curve."""

        def write() -> None:
            if self._events is None:
                self._events = EventFile(self.folder / "tensorboard" / "run")
            self._events.add(values, step=step, at_s=at_s)

        self._try(write)

    def metrics(self, text: str) -> None:
        """The OpenMetrics file, where one is wanted."""
        if self._metrics_file is not None:
            self._replace(self._metrics_file, text.encode())

    def _replace(self, path: Path, data: bytes) -> None:
        def write() -> None:
            partial = path.with_name(f".{path.name}.{os.getpid()}.part")
            partial.write_bytes(data)
            partial.replace(path)

        self._try(write)

    def _try(self, write: Any) -> None:
        try:
            write()
        except OSError as error:
            if not self._complained:
                self._complained = True
                with suppress(OSError):
                    sys.stderr.write(
                        f"loaderdoctor: {self.folder}: {error}; what it would hold is lost.\n"
                    )


def read_recorded(folder: Path) -> tuple[Recorded | None, Run | None]:
    """What a run that is not over has left. Raises msgspec.MsgspecError for files not ours."""
    found: list[Any] = []
    for name, kind in (("loops.json", Recorded), ("run.json", Run)):
        path = folder / RECORDED / name
        found.append(msgspec.json.decode(path.read_bytes(), type=kind) if path.is_file() else None)
    return found[0], found[1]
