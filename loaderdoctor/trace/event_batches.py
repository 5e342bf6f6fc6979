"""Cuts the list of events out of a trace's text, batch by batch, whatever its layout.

A trace is `{…, "traceEvents": [event, event, …], …}` (or the bare list), up to gigabytes, of which
one batch at a time is held. A batch runs from one event's start to another's end. Where it ends is
guessed (the last `},{` in the text read so far) and then *proven* by decoding it: JSON is read left
to right without looking ahead, so if `[` + batch + `]` decodes, the reader stood between two
events of that list where we cut, as it would have in the whole text. If it doesn't decode, the
exact scanner finds the cut. The same holds for the text before the list, proven by decoding it
with an empty list in place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from loaderdoctor.errors import TraceError
from loaderdoctor.trace.source import (
    EXPORT_AGAIN,
    EXPORTED,
    MAX_PIECE_BYTES,
    megabytes,
    not_a_trace,
)

# Small enough for a batch's objects to stay in a core's cache, large enough for the fixed cost of a
# batch not to show. Flat from 0.1 to 1 MB, slower above (`benchmarks/analyze.py`).
BATCH_BYTES = 256 << 10

_OPENING = re.compile(rb'"traceEvents"[ \t\r\n]*:[ \t\r\n]*\[')
_EMPTY_LIST = b'"traceEvents":[]'
SEAM = re.compile(rb"\}[ \t\r\n]*(,)[ \t\r\n]*\{")
_SEAM_WINDOWS = (4 << 10, 64 << 10)  # most events are shorter than the first
_SPACE = b" \t\r\n"
_BOM = b"\xef\xbb\xbf"

Decoded = TypeVar("Decoded")
_QUOTE, _BACKSLASH = ord('"'), ord("\\")
_STEP = np.zeros(256, dtype=np.int8)  # how a byte outside strings changes the depth
_STEP[[ord("["), ord("{")]] = 1
_STEP[[ord("]"), ord("}")]] = -1
_MARKS = _STEP != 0
_MARKS[_QUOTE] = True
_COMMA = re.compile(rb"[ \t\r\n]*,")


class Scan(NamedTuple):
    """Offsets into the text scanned, which starts with the `[` of the list (or in its place)."""

    last_comma: int | None  # the last comma that follows a whole element and is in the text
    list_end: int | None  # the `]` that closes the list
    inside_element: bool  # the text ends within an element


def scan(text: bytes | bytearray) -> Scan:
    """Find the last cut between elements of the list that `text` starts with, and the list's end.

    Vectorised: marks are the quotes that no backslash escapes, and the brackets; brackets after an
    odd number of quotes are inside a string. Only elements that end in a bracket give cuts.
    """
    data = np.frombuffer(text, dtype=np.uint8)
    at = np.flatnonzero(_MARKS[data])
    kind = data[at]
    quotes = kind == _QUOTE
    if _BACKSLASH in text:
        live = ~(quotes & _escaped(data)[at])
        at, kind, quotes = at[live], kind[live], quotes[live]
    inside = (np.cumsum(quotes) & 1).astype(bool)
    brackets = ~(inside | quotes)
    at, step = at[brackets], _STEP[kind[brackets]]
    depth = np.cumsum(step, dtype=np.int64)
    closed = np.flatnonzero(depth <= 0)
    if closed.size:
        return Scan(None, int(at[closed[0]]), inside_element=False)
    ends = at[(depth == 1) & (step < 0)]
    in_string = bool(inside.size and inside[-1])
    del data  # a live view would forbid the caller to resize its bytearray
    last_comma = None
    # Only the very last element may be followed by no comma yet; a third look would be at text that
    # is no JSON, and such text can go on for long.
    for end in ends[-2:][::-1].tolist():
        if found := _COMMA.match(text, end + 1):
            last_comma = found.end() - 1
            break
    return Scan(last_comma, None, inside_element=in_string or bool(depth[-1] > 1))


def at_depth_one(text: bytes | bytearray, positions: list[int]) -> int | None:
    """The first position within no more than the outermost bracket, and in no string."""
    data = np.frombuffer(text, dtype=np.uint8)
    marks = _MARKS[data]
    if _BACKSLASH in text:
        marks &= ~((data == _QUOTE) & _escaped(data))
    at = np.flatnonzero(marks)
    kind = data[at]
    quotes = kind == _QUOTE
    n_quotes = np.cumsum(quotes)
    step = np.where(quotes | (n_quotes & 1).astype(bool), 0, _STEP[kind])
    depth = np.cumsum(step, dtype=np.int64)
    before = np.searchsorted(at, positions) - 1  # the last mark before each
    found = (depth[before] == 1) & (n_quotes[before] % 2 == 0) & (before >= 0)
    first = np.flatnonzero(found)
    return positions[int(first[0])] if first.size else None


def _escaped(data: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Which bytes follow an odd run of backslashes."""
    escaped = np.zeros(data.size + 1, dtype=np.bool_)
    slashes = np.flatnonzero(data == _BACKSLASH)
    first = np.flatnonzero(np.diff(slashes, prepend=-2) != 1)
    length = np.diff(first, append=slashes.size)
    odd = length % 2 == 1
    escaped[(slashes[first] + length)[odd]] = True
    return escaped[:-1]


class EventBatches(Generic[Decoded]):
    """Iterates once over the batches of one trace, decoded; afterwards `document` is the rest.

    `strict` and `lenient` decode the JSON array of one batch; `lenient` is asked where `strict`
    raises ValueError. Raises TraceError for text that is no whole trace. Where `continued`, the
    text is the later part of one, its first bracket in place of the comma before it: then what
    follows the list is left in `tail`, unread.
    """

    def __init__(
        self,
        path: Path,
        blocks: Iterator[bytes],
        strict: Callable[[memoryview], Decoded],
        lenient: Callable[[memoryview], Decoded],
        *,
        batch_bytes: int = BATCH_BYTES,
        max_piece_bytes: int = MAX_PIECE_BYTES,
        continued: bool = False,
    ) -> None:
        self.document: dict[str, Any] = {}  # the trace without its events; {} for a bare list
        self.list_end = -1  # where the list's bracket was in the text
        self.tail = b""  # what followed it
        self._continued = continued
        self._path = path
        self._blocks = blocks
        self._strict = strict
        self._lenient = lenient
        self._batch_bytes = batch_bytes
        self._max_piece_bytes = max_piece_bytes
        self._buffer = bytearray()
        self._is_cut = continued  # the buffer's first bracket stands for a comma
        self._n_done = 0  # bytes of the text before the buffer
        self._at_end = False  # the buffer holds the text's last byte

    def __iter__(self) -> Iterator[Decoded]:
        head = self._read_head()
        target = self._batch_bytes
        while True:
            self._fill(target)
            seam = None if self._at_end else _last_seam(self._buffer)
            if seam is not None:
                try:
                    batch = self._decode_to(seam, self._strict)
                except ValueError:
                    pass  # a wrong guess, or a batch that needs the lenient decoder
                else:
                    yield batch
                    self._go_on_from(seam)
                    continue
            seen = scan(self._buffer)
            if seen.list_end is not None:
                break
            if self._at_end:
                self._fail_truncated(seen)
            if seen.last_comma is None:  # one event larger than the buffer
                target = self._larger(target)
                continue
            yield self._decode(seen.last_comma)
            self._go_on_from(seen.last_comma)
            target = self._batch_bytes
        if self._is_cut and not self._buffer[1 : seen.list_end].strip(_SPACE):
            self._fail_json(seen.list_end, "a comma before the end of the list")
        yield self._decode(seen.list_end)
        self.list_end = self._n_done + seen.list_end
        self._drop(seen.list_end + 1)
        self._read_tail()
        if not self._continued:
            self._decode_around(head)

    @property
    def n_bytes(self) -> int:
        """Of the text read so far."""
        return self._n_done + len(self._buffer)

    # -- the buffer ----------------------------------------------------------------------------

    def _fill(self, target: int) -> None:
        while len(self._buffer) < target and not self._at_end:
            block = next(self._blocks, None)
            if block is None:
                self._at_end = True
            else:
                self._buffer += block

    def _drop(self, n_bytes: int) -> None:
        del self._buffer[:n_bytes]
        self._n_done += n_bytes

    def _larger(self, target: int) -> int:
        if target >= self._max_piece_bytes:
            raise not_a_trace(
                self._path, f"one piece of it is over {megabytes(self._max_piece_bytes)}"
            )
        return 2 * target

    # -- the list ------------------------------------------------------------------------------

    def _decode_to(self, cut: int, decode: Callable[[memoryview], Decoded]) -> Decoded:
        """The buffer up to `cut`, a comma or the list's end, as a list."""
        held = self._buffer[cut]
        self._buffer[cut] = ord("]")
        try:
            with memoryview(self._buffer) as whole, whole[: cut + 1] as text:
                return decode(text)
        finally:
            self._buffer[cut] = held

    def _go_on_from(self, comma: int) -> None:
        """Make the text after a batch a list by itself."""
        self._drop(comma)
        self._buffer[0] = ord("[")
        self._is_cut = True

    def _decode(self, cut: int) -> Decoded:
        """The buffer up to `cut`, which is known to be the end of an event or of the list."""
        try:
            return self._decode_to(cut, self._strict)
        except ValueError:
            pass
        try:
            return self._decode_to(cut, self._lenient)
        except UnicodeDecodeError as error:
            raise self._not_utf8(error.start) from None
        except json.JSONDecodeError as error:
            self._fail_json(error.pos, error.msg)
        except ValueError as error:  # Python's limit on the digits of a number
            self._fail_json(0, str(error))

    # -- before and after the list -------------------------------------------------------------

    def _read_head(self) -> bytes:
        """Read up to the list; return the text before it, and leave `[` first in the buffer."""
        self._fill(4)
        if b"\x00" in self._buffer[:4] or self._buffer.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise self._not_utf8(0)
        if self._buffer.startswith(_BOM):
            self._drop(len(_BOM))
        while not self._at_end and not self._buffer.strip(_SPACE):
            self._drop(len(self._buffer))
            self._fill(1)
        self._drop(len(self._buffer) - len(self._buffer.lstrip(_SPACE)))
        if self._buffer.startswith(b"["):
            return b""
        if not self._buffer.startswith(b"{"):
            if not self._buffer and self._at_end:
                raise TraceError(f"{self._path}: is empty. {EXPORT_AGAIN}")
            raise not_a_trace(self._path, "it starts with neither { nor [")
        target = self._batch_bytes
        self._fill(target)
        while True:
            opened = dict(found.span() for found in _OPENING.finditer(self._buffer))
            start = at_depth_one(self._buffer, list(opened)) if opened else None
            if start is not None:
                head = bytes(self._buffer[:start])
                self._check_head(head)
                self._drop(opened[start] - 1)
                return head
            if self._at_end:
                self._fail_without_list()
            target = self._larger(target)
            self._fill(target)

    def _check_head(self, head: bytes) -> None:
        """Raise TraceError unless a key of the outermost object may follow this text."""
        self._loads(head + _EMPTY_LIST + b"}", at=0)

    def _read_tail(self) -> None:
        target = self._batch_bytes
        self._fill(target)
        while not self._at_end:
            target = self._larger(target)
            self._fill(target)
        self.tail = bytes(self._buffer)

    def _decode_around(self, head: bytes) -> None:
        """Decode what surrounds the list; everything after it must be read."""
        if head:
            self.document = self._loads(head + _EMPTY_LIST + self._buffer)
        elif self._buffer.strip(_SPACE):
            self._fail_json(0, "text after the end of the list")

    def _fail_without_list(self) -> NoReturn:
        text = bytes(self._buffer)
        first, _, more = text.partition(b"\n")
        with suppress(ValueError):
            if more.strip() and isinstance(json.loads(first), dict):  # as `nsys export` writes them
                raise not_a_trace(self._path, "it holds an object in each line")
        document = self._loads(text)
        if not document:
            raise TraceError(f"{self._path}: no events: it is an empty object. {EXPORTED}")
        if "traceEvents" in document:
            raise not_a_trace(self._path, "its traceEvents is no list")
        raise not_a_trace(self._path, "it has no traceEvents")

    def _loads(self, text: bytes, at: int | None = None) -> Any:
        """Decode text that begins at byte `at` of the buffer, or else ends where the file ends."""
        try:
            return json.loads(text.decode(), strict=False)
        except UnicodeDecodeError as error:
            raise self._not_utf8(error.start) from None
        except json.JSONDecodeError as error:
            if error.pos >= len(error.doc.rstrip()) or error.msg.startswith("Unterminated"):
                raise self._truncated("before its closing }") from None
            start = len(self._buffer) - len(text) if at is None else at
            self._fail_json(start + error.pos, error.msg)
        except ValueError as error:
            self._fail_json(0, str(error))

    # -- what can be wrong ---------------------------------------------------------------------

    def _fail_truncated(self, seen: Scan) -> NoReturn:
        where = "in the middle of an event" if seen.inside_element else "within its list of events"
        raise self._truncated(where)

    def _truncated(self, where: str) -> TraceError:
        size = megabytes(self._n_done + len(self._buffer))
        return TraceError(f"{self._path}: ends {where} (truncated at {size}). {EXPORT_AGAIN}")

    def _fail_json(self, offset: int, why: str) -> NoReturn:
        at = megabytes(max(0, self._n_done + offset))
        raise TraceError(
            f"{self._path}: is not valid JSON after {at}: {_lower_first(why)}. {EXPORT_AGAIN}"
        )

    def _not_utf8(self, offset: int) -> TraceError:
        at = megabytes(self._n_done + offset)
        return TraceError(f"{self._path}: is not UTF-8 text (after {at}). {EXPORT_AGAIN}")


def _last_seam(buffer: bytearray) -> int | None:
    """The comma of the last `},{` near the end: most likely between two events."""
    for window in _SEAM_WINDOWS:
        seam = None
        for found in SEAM.finditer(buffer, max(0, len(buffer) - window)):
            seam = found.start(1)
        if seam is not None:
            return seam
    return None


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]
