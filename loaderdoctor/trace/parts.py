"""Reads a large plain file in parts, one process each; the result is that of reading it in one.

Where the parts meet is guessed (a `},{` somewhere near) and proven as batches are: the first part,
closed by a bracket in the place of that comma, must decode to the end of the list of events right
there. JSON is read left to right without looking ahead, so what follows the comma continues that
list, and what follows the last part's list is the trace's own tail. The same holds from part to
part. If any of it fails, the whole is read by this process alone.

Processes are forked: a new interpreter's start would cost a tenth of what it saves. So only on
Linux (on macOS system libraries may not survive it), and only while no other thread runs.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import warnings
from collections.abc import Generator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NoReturn

from loaderdoctor.errors import TraceError
from loaderdoctor.trace import source
from loaderdoctor.trace.column_builder import ColumnBuilder
from loaderdoctor.trace.event_batches import SEAM, EventBatches
from loaderdoctor.trace.events import decode_strictly
from loaderdoctor.trace.source import UNLIMITED, MemoryLimit

# Under half a second to read: not worth a process.
MIN_PART_BYTES = 32 << 20
MAX_PARTS = 4
_WINDOW_BYTES = 64 << 10


@dataclass(slots=True)
class Parts:
    """The parts of one file; each cut is the position of a comma."""

    path: Path
    max_bytes: int
    cuts: tuple[int, ...]
    memory: MemoryLimit = UNLIMITED  # of all processes together
    _later: list[ColumnBuilder] = field(
        default_factory=list
    )  # of the parts after the first, once read

    @classmethod
    def of(cls, path: Path, max_bytes: int, memory: MemoryLimit = UNLIMITED) -> Parts | None:
        """How to divide the file; None where it is to be read in one."""
        if sys.platform != "linux" or threading.active_count() > 1:
            return None
        try:
            n_bytes = path.stat().st_size if path.is_file() else 0
            n_parts = min(MAX_PARTS, len(os.sched_getaffinity(0)), n_bytes // MIN_PART_BYTES)
            if n_parts < 2 or n_bytes > max_bytes:
                return None
            with path.open("rb") as file:
                if source.is_gzip(path, file):
                    return None
                found = [_seam_after(file, n_bytes * n // n_parts) for n in range(1, n_parts)]
        except (OSError, TraceError):
            return None
        cuts = tuple(cut for cut in found if cut is not None)
        return cls(path, max_bytes, cuts, memory) if len(cuts) == len(found) else None

    def blocks(self, on_share: source.OnShare | None = None) -> Generator[bytes]:
        """Text of the first part, then of what follows the last one's list of events.

        Meanwhile other processes read the other parts; where one fails, all the text. `on_share`
        is told how much of the first part has been read: the others take about as long.
        """
        n_left = self.cuts[0]
        readers: list[_Reader] = []
        memory = self.memory.share_of(len(self.cuts) + 1)
        try:
            for start, end in zip(self.cuts, (*self.cuts[1:], None), strict=True):
                with suppress(OSError):  # no more processes allowed
                    readers.append(_Reader(self.path, start, end, memory))
            with closing(
                source.blocks(self.path, self.max_bytes, on_share=on_share, of_bytes=n_left)
            ) as text:
                for block in text:
                    if len(block) >= n_left:
                        break
                    n_left -= len(block)
                    yield block
                yield block[:n_left]
                try:
                    results = [reader.result() for reader in readers]
                except _FAILURES:
                    results = []
                if len(results) == len(self.cuts):
                    self._later = [rows for rows, _ in results]
                    yield b"]" + results[-1][1]
                else:
                    yield block[n_left:]
                    yield from text
        finally:
            for reader in readers:
                reader.end()

    def append_to(self, first: ColumnBuilder, list_end: int) -> None:
        """Add the rows of the later parts. Raises TraceError where the list did not meet them."""
        if self._later and list_end != self.cuts[0]:
            raise TraceError(f"{self.path}: its parts don't meet.")
        for rows in self._later:
            first.append(rows)
        self._later.clear()


_FAILURES = (OSError, EOFError, pickle.UnpicklingError, MemoryError)


class _Reader:
    """A process that reads one part: from the comma at `start` to the one at `end`."""

    def __init__(self, path: Path, start: int, end: int | None, memory: MemoryLimit) -> None:
        receive, send = os.pipe()
        try:
            with warnings.catch_warnings():
                # Python 3.12 warns of numpy's BLAS threads, which the child has no use for.
                warnings.simplefilter("ignore", DeprecationWarning)
                self._pid = os.fork()
        except OSError:
            os.close(receive)
            os.close(send)
            raise
        if self._pid == 0:
            os.close(receive)
            _send_part(path, start, end, send, memory)
        os.close(send)
        self._pipe = os.fdopen(receive, "rb")

    def result(self) -> tuple[ColumnBuilder, bytes]:
        """The rows, and the text after the list. Raises one of _FAILURES where that failed."""
        rows, tail = pickle.load(self._pipe)  # from our own process
        return rows, tail

    def end(self) -> None:
        """Let the process go, done or not."""
        self._pipe.close()
        with suppress(OSError):
            os.kill(self._pid, 9)
        with suppress(OSError):
            os.waitpid(self._pid, 0)


def _send_part(path: Path, start: int, end: int | None, send: int, memory: MemoryLimit) -> NoReturn:
    """In the other process; leaves without whatever the program would do at its end."""
    status = 1
    try:
        rows = ColumnBuilder()
        batches = EventBatches(
            path,
            _text(path, start, end),
            decode_strictly,
            rows.decode_leniently,
            max_piece_bytes=memory.piece_bytes,
            continued=True,
        )
        for events in batches:
            rows.add(events)
            if not memory.holds(rows.n_rows, rows.other_bytes):
                # In one process it may be within the limit, and else is refused in words.
                os._exit(status)
        if end is None or not batches.tail:
            rows.pack()
            with os.fdopen(send, "wb") as pipe:
                pickle.dump((rows, batches.tail), pipe, protocol=5)
            status = 0
    finally:
        os._exit(status)


def _text(path: Path, start: int, end: int | None) -> Generator[bytes]:
    """The part as a list by itself, its brackets in place of commas."""
    with path.open("rb") as file:
        file.seek(start + 1)
        yield b"["
        n_left = None if end is None else end - start - 1
        while n_left is None or n_left > 0:
            size = source.BLOCK_BYTES
            block = file.read(size if n_left is None else min(size, n_left))
            if not block:
                return
            yield block
            if n_left is not None:
                n_left -= len(block)
        yield b"]"


def _seam_after(file: IO[bytes], position: int) -> int | None:
    """A comma that most likely parts two events; None where there is none near."""
    file.seek(position)
    found = SEAM.search(file.read(_WINDOW_BYTES))
    return None if found is None else position + found.start(1)
