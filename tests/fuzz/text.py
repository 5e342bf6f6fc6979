"""Mutations of a trace's text, and of the gzip around it."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.fuzz.words import OTHERS, RAW

if TYPE_CHECKING:
    from tests.fuzz.mutate import Mutator


def _truncate(m: Mutator, data: bytes) -> bytes:
    return data[: m.rng.randrange(len(data) + 1)]


def _flip(m: Mutator, data: bytes) -> bytes:
    changed = bytearray(data or b"\0")
    for _ in range(m.rng.choice((1, 1, 4, 16))):
        changed[m.rng.randrange(len(changed))] = m.rng.choice(
            (m.rng.randrange(256), *b'{}[]",:\\ 0')
        )
    return bytes(changed)


def _insert(m: Mutator, data: bytes) -> bytes:
    at = m.rng.randrange(len(data) + 1)
    what = m.rng.choice(
        (
            b"\xff",
            b"\x00",
            b"\xc3",
            b"[" * 400,
            b"{",
            b"]",
            b"},{",
            b",",
            b'"',
            b"\\",
            b"\xed\xa0\x80",
            b"1e400",
            b"NaN",
            b'"traceEvents":[',
            b'"name":"n",',
            b'"ts":-1,',
            b'"ts":1e999,',
            b'"dur":-5,',
            b"/*",
            b"\x1b[31m",
            b"0" * 5000,
            m.rng.choice(OTHERS),
            m.rng.choice(RAW).encode(),
        )
    )
    return data[:at] + what + data[at:]


def _duplicate_key(m: Mutator, data: bytes) -> bytes:
    key = m.rng.choice(
        (b'"ts"', b'"dur"', b'"name"', b'"ph"', b'"args"', b'"traceEvents"', b'"pid"')
    )
    at = data.find(key, m.rng.randrange(len(data) + 1))
    if at < 0:
        return data
    return data[:at] + key + b":" + m.rng.choice(RAW).encode() + b"," + data[at:]


def _number(m: Mutator, data: bytes) -> bytes:
    """The value after a key, replaced as text."""
    key = m.rng.choice(
        (b'"ts":', b'"dur":', b'"correlation":', b'"bytes":', b'"tid":', b'"stream":')
    )
    at = data.find(key, m.rng.randrange(len(data) + 1))
    if at < 0:
        return data
    start = at + len(key)
    end = min((e for e in (data.find(c, start) for c in (b",", b"}")) if e >= 0), default=start)
    return data[:start] + m.rng.choice(RAW).encode() + data[end:]


def _remove(m: Mutator, data: bytes) -> bytes:
    start = m.rng.randrange(len(data) + 1)
    return data[:start] + data[start + m.rng.choice((1, 1, 7, 100, 2000)) :]


def _copy_within(m: Mutator, data: bytes) -> bytes:
    start = m.rng.randrange(len(data) + 1)
    piece = data[start : start + m.rng.choice((5, 80, 1000))]
    at = m.rng.randrange(len(data) + 1)
    return data[:at] + piece + data[at:]


def _encoding(m: Mutator, data: bytes) -> bytes:
    kind = m.rng.randrange(8)
    if kind == 0:
        return b"\xef\xbb\xbf" + data
    if kind < 4:
        return data.decode("utf-8", "replace").encode(("utf-16", "utf-16-be", "utf-32")[kind - 1])
    return m.rng.choice(
        (b"\xff" + data, data + b"\n\n", b"\n \t" + data, data + data, data + b"\0")
    )


TEXTUAL: tuple[Callable[[Mutator, bytes], bytes], ...] = (
    _truncate,
    _truncate,
    _flip,
    _flip,
    _insert,
    _insert,
    _duplicate_key,
    _number,
    _number,
    _remove,
    _copy_within,
    _encoding,
)


# ---------------------------------------------------------------- gzip


def _pack(m: Mutator, data: bytes) -> bytes:
    return gzip.compress(data, 1)


def _members(m: Mutator, data: bytes) -> bytes:
    at = m.rng.randrange(len(data) + 1)
    between = m.rng.choice((b"", b"", b"\0" * 100, b"x"))
    return gzip.compress(data[:at], 1) + between + gzip.compress(data[at:], 1)


def _damaged(m: Mutator, data: bytes) -> bytes:
    packed = gzip.compress(data, 1)
    return m.rng.choice((_truncate, _flip, _insert, _remove))(m, packed)


def _bomb(m: Mutator, data: bytes) -> bytes:
    n = 20_000_000 if m.large and m.rng.random() < 0.02 else 200_000
    filling = m.rng.choice((b" ", b"0", b'{"ph":"X","ts":1},', b"["))
    at = m.rng.randrange(len(data) + 1)
    return gzip.compress(data[:at] + filling * (n // len(filling)) + data[at:], 1)


PACKED: tuple[Callable[[Mutator, bytes], bytes], ...] = (
    _pack,
    _members,
    _damaged,
    _damaged,
    _bomb,
)
