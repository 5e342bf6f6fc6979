"""A torch.profiler trace as undecoded events, to be copied or rewritten one at a time.

Memory: the file's text once, plus about 100 bytes per event for the views into it (measured with
2.0 M events in 465 MB: 1.3x the text). Nothing is decoded until it is asked for.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec

from loaderdoctor.errors import TraceError
from loaderdoctor.trace.columns import Text
from loaderdoctor.trace.source import DEFAULT_MAX_BYTES, EXPORT_AGAIN, OnShare, blocks

# Kineto writes names unescaped and some numbers as C prints them, so old traces hold raw control
# bytes, lone backslashes (Windows paths) and nan, inf or N/A. Only a file that does not parse
# takes this slow path.
_CONTROL_TO_SPACE = bytes(range(256)).translate(
    bytes.maketrans(bytes(range(32)), b" " * 32),
)
_NO_NUMBER = re.compile(rb"([:\[,]\s*)(?:-?nan|-?inf(?:inity)?|N/A)(?=\s*[,}\]])", re.IGNORECASE)
# Half of a pair of escapes for one character, which no text can hold; `\\` and whole pairs stay.
_HALF_PAIR = re.compile(
    rb"(\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
_BOM = b"\xef\xbb\xbf"
_ESCAPE = re.compile(rb'\\(["\\/bfnrtu])?')
# Level 1 packs a trace 8-10x at twice the speed of the default level 9 gains 20 %.
GZIP_LEVEL = 1
_BLOCK_EVENTS = 4096
# Beside the text, while the file for Perfetto is written: measured with 400,000 spans (of flows 82,
# of the plugin's file 75).
BYTES_PER_EVENT = 300
# What the slow path takes of a text, which goes through two substitutions.
TIMES_REPAIRED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RawTrace:
    """One trace file: `metadata` is everything but the events; both are undecoded JSON."""

    metadata: dict[str, msgspec.Raw]
    events: list[msgspec.Raw]


class Sink(Protocol):
    """What takes bytes: a file or a gzip stream."""

    def write(self, data: bytes, /) -> object: ...


def read_raw(source: Path) -> RawTrace:
    """The trace in `source`, .json or .json.gz (told apart by content, not by name).

    Raises TraceError where the file can't be read, is cut off, or holds no trace.
    """
    text = _text(source)
    try:
        return _split(text)
    except msgspec.DecodeError:
        pass
    try:
        return _split(_repaired(text))
    except msgspec.DecodeError as error:
        raise TraceError(
            f"{source}: is not a complete torch.profiler trace ({error}). {EXPORT_AGAIN}"
        ) from None


def bytes_to_write(text: Text) -> int:
    """The most memory that writing such a trace again takes."""
    times = 1 if text.is_strict else TIMES_REPAIRED
    return times * text.n_bytes + text.n_events * BYTES_PER_EVENT


def write_raw(
    out: Sink,
    metadata: dict[str, msgspec.Raw],
    events: Iterable[msgspec.Raw | bytes],
    *,
    on_written: Callable[[int], None] | None = None,
) -> int:
    """Write a trace as JSON, metadata first and the events' bracket last; the number of events.

    `on_written` is told the number written so far, now and then.
    """
    out.write(b"{")
    for key, value in metadata.items():
        out.write(msgspec.json.encode(key) + b": " + bytes(value) + b",\n")
    out.write(b'"traceEvents": [\n')
    n_events = 0
    block: list[msgspec.Raw | bytes] = []
    for event in events:
        block.append(event)
        if len(block) == _BLOCK_EVENTS:
            out.write((b",\n" if n_events else b"") + b",\n".join(block))
            n_events += len(block)
            block.clear()
            if on_written is not None:
                on_written(n_events)
    if block:
        out.write((b",\n" if n_events else b"") + b",\n".join(block))
        n_events += len(block)
    out.write(b"\n]}\n")
    return n_events


def written_of(n_events: int, on_share: OnShare | None) -> Callable[[int], None] | None:
    """What tells `on_share` the share (0…1) of that many events, for `write_raw`."""
    if on_share is None:
        return None
    return lambda n_written: on_share(min(1.0, n_written / n_events))


def gzip_writer(out: BinaryIO) -> gzip.GzipFile:
    """A gzip stream over `out` without name or time, so that equal traces give equal files."""
    return gzip.GzipFile(filename="", mode="wb", compresslevel=GZIP_LEVEL, fileobj=out, mtime=0)


def _text(source: Path) -> bytearray:
    text = bytearray()
    with closing(blocks(source, DEFAULT_MAX_BYTES)) as parts:
        for part in parts:
            text += part
    if text.startswith(_BOM):
        del text[: len(_BOM)]
    return text


def _split(text: bytes | bytearray) -> RawTrace:
    if text[:64].lstrip().startswith(b"["):  # the array form: events and nothing else
        return RawTrace(metadata={}, events=msgspec.json.decode(text, type=list[msgspec.Raw]))
    top = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    if "traceEvents" not in top:
        raise msgspec.DecodeError("no `traceEvents` in it")
    events = msgspec.json.decode(top.pop("traceEvents"), type=list[msgspec.Raw])
    return RawTrace(metadata=top, events=events)


def _repaired(text: bytearray) -> bytes:
    plain = _NO_NUMBER.sub(rb"\1null", text.translate(_CONTROL_TO_SPACE))
    plain = _ESCAPE.sub(lambda m: m.group(0) if m.group(1) else rb"\\", plain)
    return _HALF_PAIR.sub(lambda m: m.group(1) or rb"\ufffd", plain)
