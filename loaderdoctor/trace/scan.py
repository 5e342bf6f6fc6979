"""Where the events of a JSON list end, exactly, for any layout: strings, escapes, nesting."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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
