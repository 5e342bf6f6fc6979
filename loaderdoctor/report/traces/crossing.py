"""Spans that cross within a row, moved to a row of their own: Perfetto drops what crosses.

A row (one `pid` and `tid`) may hold only spans that nest or are disjoint. Kernels of one stream do
cross: since Hopper, one may begin while the one before drains (programmatic dependent launch;
100 ns to a few µs in traces of an H100). Perfetto's import then leaves the second out, says so only
in its statistics, and the picture lacks that kernel. Nothing but the `tid` changes here, and that
of the arrows to a moved span; `args.stream` still names the stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

Text = msgspec.Raw | bytes
Number = int | str | None  # both occur in what torch writes
Row = tuple[Number, Number]  # pid, tid

# Ids of the rows added begin here: above Linux thread ids (at most 2^22), below our tracks (from
# 2^30 on). torch writes other numbers for some threads, so those of the trace are passed over.
FIRST_TID = 1 << 29
_FLOW = frozenset("stf")


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


def crossing(events: Sequence[Text]) -> Moved:
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


def without_crossing(events: Sequence[Text]) -> Iterator[Text]:
    """The events, in order, with those that cross on rows of their own, named at the end."""
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


def _read(text: Text) -> _Event | None:
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
