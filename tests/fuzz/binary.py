"""Mutates the other files that loaderdoctor reads: report.json, records, samples.npz, IDX."""

from __future__ import annotations

import gzip
import io
import json
import random
import struct
from contextlib import suppress
from typing import Any

import numpy as np

from loaderdoctor.instrument.wire.record_file import HEADER, MAGIC, Kind
from tests.fuzz.mutate import Mutator


def mutate_json(data: bytes, m: Mutator) -> bytes:
    """A JSON document with values, keys or items changed anywhere; then text."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return m.mutate(data)
    for _ in range(m.rng.choice((1, 1, 2, 5))):
        _change(value, m)
    if m.rng.random() < 0.1:
        return m.mutate(m.text(value))
    return m.text(value)


def mutate_records(data: bytes, m: Mutator) -> bytes:
    """A record file: kinds, lengths and payloads changed, records repeated and cut."""
    rng = m.rng
    if rng.random() < 0.3 or not data.startswith(MAGIC):
        return _bytes(data, rng)
    records, at = [], len(MAGIC)
    while at + HEADER.size <= len(data):
        kind, length = HEADER.unpack_from(data, at)
        records.append((kind, data[at + HEADER.size : at + HEADER.size + length]))
        at += HEADER.size + length
    for _ in range(rng.choice((1, 1, 3))):
        place = rng.randrange(len(records) + 1)
        kind, payload = rng.choice(records) if records else (1, b"{}")
        match rng.randrange(6):
            case 0:
                payload = _bytes(payload, rng)
            case 1:
                kind = rng.randrange(256)
            case 2 if payload[:1] == b"{":
                payload = mutate_json(payload, m)
            case 3:
                numbers = np.frombuffer(payload[: len(payload) // 8 * 8], np.int64).copy()
                if numbers.size:
                    numbers[rng.randrange(numbers.size)] = rng.choice(
                        (0, -1, 2**63 - 1, -(2**63), rng.getrandbits(62))
                    )
                payload = numbers.tobytes()
            case 4:
                kind, payload = rng.choice(list(Kind)), m.text(m.value())
        records.insert(place, (kind, payload))
        if rng.random() < 0.3:
            records.pop(rng.randrange(len(records)))
    text = MAGIC + b"".join(HEADER.pack(k & 0xFF, len(p)) + p for k, p in records)
    if rng.random() < 0.1 and records:
        return text[:-1] + HEADER.pack(1, 2**32 - 1)
    return text


def mutate_samples(data: bytes, m: Mutator) -> bytes:
    """An archive of arrays: arrays missing, of other types, shapes and values; then bytes."""
    rng = m.rng
    if rng.random() < 0.4:
        return _bytes(data, rng)
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except Exception:
        return _bytes(data, rng)
    for _ in range(rng.choice((1, 1, 3))):
        name = rng.choice(list(arrays))
        with suppress(TypeError, ValueError, OverflowError):  # not every array can be any other
            _change_array(arrays, name, m)
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def mutate_idx(data: bytes, m: Mutator) -> bytes:
    """An IDX file: its type, the number and size of its dimensions, its data; gzip around it."""
    rng = m.rng
    n_dimensions = rng.choice((3, 3, 0, 1, 2, 4, 33, 64, 65, 255, rng.randrange(256)))
    sizes = [rng.choice((3, 4, 0, 1, 48, 65_536, 2**31, 2**32 - 1)) for _ in range(n_dimensions)]
    if rng.random() < 0.3:
        n_dimensions, sizes = 3, [3, 4, 4]
    body = rng.choice((data[16:], b"", b"\0", data[16:] * 2, data[16:40]))
    kind = rng.choice((8, 8, 8, 8, 9, 13, rng.randrange(256)))
    changed = struct.pack(f">4B{len(sizes)}I", 0, 0, kind, n_dimensions, *sizes) + body
    if rng.random() < 0.3:
        changed = _bytes(changed, rng)
    if rng.random() < 0.3:
        changed = gzip.compress(changed, 1)
        if rng.random() < 0.5:
            changed = _bytes(changed, rng)
    if rng.random() < 0.002:
        changed = gzip.compress(changed + bytes(rng.choice((1 << 24, 1 << 27))), 1)
    return changed


def _change_array(arrays: dict[str, Any], name: str, m: Mutator) -> None:
    rng = m.rng
    array = arrays[name]
    match rng.randrange(6):
        case 0:
            del arrays[name]
            arrays["x"] = np.zeros(1)
        case 1:
            arrays[name] = array[: array.size // 2] if array.ndim else array[None]
        case 2:
            arrays[name] = np.array(rng.choice(("x", "[]", "\udcff", "nan")))
        case 3 if name == "description":
            arrays[name] = np.array(mutate_json(str(array).encode(), m).decode("utf-8", "replace"))
        case 4 if array.dtype.kind in "if" and array.size:
            changed = array.copy()
            changed.flat[rng.randrange(array.size)] = rng.choice((-1, 2**62, -(2**62), 99, 0))
            arrays[name] = changed
        case _ if array.dtype.kind != "U":
            if array.dtype.kind == "c":
                array = array.real
            arrays[name] = array.astype(
                rng.choice(("f8", "i1", "U3", "c16", "?")), casting="unsafe"
            )


def _bytes(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data or b"\0")
    match rng.randrange(4):
        case 0:
            return bytes(changed[: rng.randrange(len(changed) + 1)])
        case 1:
            start = rng.randrange(len(changed))
            del changed[start : start + rng.choice((1, 8, 100))]
        case 2:
            start = rng.randrange(len(changed))
            changed[start:start] = rng.randbytes(rng.choice((1, 8, 100)))
        case _:
            for _ in range(rng.choice((1, 4, 20))):
                changed[rng.randrange(len(changed))] = rng.choice((0, 255, 127, rng.randrange(256)))
    return bytes(changed)


def _change(value: Any, m: Mutator) -> None:
    """Something within `value`, at any depth."""
    rng = m.rng
    while isinstance(value, dict | list) and value:
        key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
        child = value[key]
        if isinstance(child, dict | list) and child and rng.random() < 0.8:
            value = child
            continue
        kind = rng.randrange(5)
        if kind == 0:
            del value[key]
        elif kind == 1 and isinstance(value, list):
            value.extend([child] * 50)
        elif kind == 1:
            value[str(m.value())] = child  # type: ignore[call-overload]  # a dict
        else:
            value[key] = m.value()
        return
