"""TensorBoard's event file, for scalars alone: written without TensorBoard, which takes 100 MB.

A record is its length, a masked CRC32C of that, the payload, and a masked CRC32C of it; the payload
is an `Event` message of protocol buffers (tensorflow/core/util/event.proto).
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

_POLYNOMIAL = 0x82F63B78
_MASK = 0xA282EAD8


def _table() -> tuple[int, ...]:
    rows = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        rows.append(value)
    return tuple(rows)


_TABLE = _table()


class EventFile:
    """One file, appended to; a reader may follow it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        self.path = folder / name
        version = _field(3, b"brain.Event:2")
        self._append(_double(1, time.time()) + version)

    def add(self, scalars: Mapping[str, float], *, step: int, at_s: float) -> None:
        """Values at a step. Raises OSError."""
        values = b"".join(
            _field(1, _field(1, name.encode()) + b"\x15" + struct.pack("<f", value))
            for name, value in scalars.items()
        )
        event = _double(1, at_s) + b"\x10" + _varint(step) + _field(5, values)
        self._append(event)

    def _append(self, payload: bytes) -> None:
        length = struct.pack("<Q", len(payload))
        record = length + _masked(length) + payload + _masked(payload)
        with self.path.open("ab") as out:
            out.write(record)


def _field(number: int, payload: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(payload)) + payload


def _double(number: int, value: float) -> bytes:
    return bytes([number << 3 | 1]) + struct.pack("<d", value)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _masked(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF)
