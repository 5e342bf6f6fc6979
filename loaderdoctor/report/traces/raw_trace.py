"""A torch.profiler trace as undecoded events, to be copied or rewritten one at a time.

Memory: the file's text once, plus about 100 bytes per event for the views into it (measured with
2.0 M events in 465 MB: 1.3x the text). Nothing is decoded until it is asked for.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
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


EventText = msgspec.Raw | bytes
Number = int | str | None  # both occur in what torch writes
Row = tuple[Number, Number]  # pid, tid

# Ids of the rows added begin here: above Linux thread ids (at most 2^22), below our tracks (from
# 2^30 on). torch writes other numbers for some threads, so those of the trace are passed over.
FIRST_TID = 1 << 29
_FLOW = frozenset("stf")


_ID = re.compile("-?[0-9]{1,18}")


def row_id(text: str) -> int | None:
    """A process or thread id as a number; None for what is none (`Spans`, `²`, 5,000 digits)."""
    return int(text) if _ID.fullmatch(text) else None


class _Event(msgspec.Struct):
    """Only what says where an event lies."""

    ph: str = ""
    name: str | None = None
    pid: Number = None
    tid: Number = None
    ts: float | None = None
    dur: float | None = None
    args: msgspec.Raw = msgspec.Raw()


class _Label(msgspec.Struct):
    name: str | None = None
    sort_index: int | None = None


_decode = msgspec.json.Decoder(_Event).decode
_decode_label = msgspec.json.Decoder(_Label).decode
_decode_texts = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.encode


@dataclass(frozen=True, slots=True)
class Moved:
    """Where spans go: `rows` maps an event's index to its new tid; `starts` finds their arrows."""

    rows: dict[int, int]
    starts: dict[tuple[Row, float], int]  # old row and `ts` -> new tid
    names: list[bytes]  # metadata events that name the added rows


def crossing(events: Sequence[EventText]) -> Moved:
    """Which of the events cross an earlier one of their row, and the row each goes to.

    Takes about 140 bytes and 1 µs an event; events that can't be read stay where they are.
    """
    rows: dict[Row, list[tuple[int, int, int, float]]] = {}
    names: dict[Row, str] = {}
    sort_indices: dict[Row, int] = {}
    for index, text in enumerate(events):
        event = _read(text)
        if event is None:
            continue
        if event.ph == "X" and event.ts is not None and _shown(event.ts, event.dur or 0.0):
            start, length = _ns(event.ts), _ns(event.dur or 0.0)
            here = rows.setdefault((event.pid, event.tid), [])
            here.append((start, -length, index, event.ts))  # sorts the longer of two first
        elif event.ph == "M" and (label := _label(event)) is not None:
            if event.name == "thread_name" and label.name is not None:
                names[event.pid, event.tid] = label.name.strip()
            elif event.name == "thread_sort_index" and label.sort_index is not None:
                sort_indices[event.pid, event.tid] = label.sort_index
    moved = Moved({}, {}, [])
    tid = FIRST_TID
    taken = {row[1] for row in rows}
    for row, spans in rows.items():
        for level, crossers in enumerate(_levels(spans), 2):
            while tid in taken:
                tid += 1
            for _, _, index, ts in crossers:
                moved.rows[index] = tid
                moved.starts[row, ts] = tid
            name = f"{names.get(row, row[1])}, overlapping ({level})"
            moved.names.append(_labelled("thread_name", row[0], tid, name=name))
            if row in sort_indices:
                at = sort_indices[row]
                moved.names.append(_labelled("thread_sort_index", row[0], tid, sort_index=at))
            tid += 1
    return moved


def without_crossing(events: Sequence[EventText]) -> Iterator[EventText]:
    """The events, in order, with those that cross on rows of their own, named at the end.

    A row (one `pid` and `tid`) may hold only spans that nest or are disjoint: Perfetto drops what
    crosses. Kernels of one stream do cross: since Hopper, one may begin while the one before drains
    (programmatic dependent launch; 100 ns to a few µs in traces of an H100). Perfetto's import then
    leaves the second out, says so only in its statistics, and the picture lacks that kernel. Only
    the `tid` changes here, and that of the arrows to a moved span; `args.stream` still names the
    stream.
    """
    moved = crossing(events)
    if not moved.rows:
        yield from events
        return
    for index, text in enumerate(events):
        tid = moved.rows.get(index)
        if tid is None:
            event = _read(text)
            if event is not None and event.ph in _FLOW and event.ts is not None:
                tid = moved.starts.get(((event.pid, event.tid), event.ts))
        yield text if tid is None else _encode(_decode_texts(text) | {"tid": tid})
    yield from moved.names


def _levels(
    spans: list[tuple[int, int, int, float]],
) -> list[list[tuple[int, int, int, float]]]:
    """Spans that cross, one list for each row to be added; first fit, in order of time."""
    spans.sort()
    open_ends: list[list[int]] = [[]]  # ends of the open spans of each row, outermost first
    added: list[list[tuple[int, int, int, float]]] = []
    for span in spans:
        start, end = span[0], span[0] - span[1]
        level = 0
        while (ends := open_ends[level]) and not _fits(ends, start, end):
            level += 1
            if level == len(open_ends):
                open_ends.append([])
                added.append([])
        ends.append(end)
        if level:
            added[level - 1].append(span)
    return added


def _fits(ends: list[int], start: int, end: int) -> bool:
    """Whether a span may begin here; closes those that have ended by then."""
    while ends and ends[-1] <= start:
        ends.pop()
    return not ends or end <= ends[-1]


def _shown(*times_us: float) -> bool:
    """Whether Perfetto can show these: within the 64 bits of its nanoseconds, and finite."""
    return all(abs(us) < 9e15 for us in times_us)


def _ns(us: float) -> int:
    """As Perfetto reads a time: the nearest nanosecond of the double (seen in its v52)."""
    return round(us * 1000)


def _read(text: EventText) -> _Event | None:
    try:
        return _decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _label(event: _Event) -> _Label | None:
    try:
        return _decode_label(event.args)
    except msgspec.DecodeError:
        return None


def _labelled(what: str, pid: Number, tid: int, **args: str | int) -> bytes:
    return _encode({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args})
