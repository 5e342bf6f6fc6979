"""report.json as text and back: the only encoder and decoder of the contract."""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from loaderdoctor.errors import UsageError
from loaderdoctor.report.model import SCHEMA, Report

MAX_BYTES = 64_000_000  # a sweep of a thousand trials writes 2 MB; decoded it takes ten times that
_REASON_LENGTH = 200  # it may quote what was found


def encode_report(report: Report) -> bytes:
    """Indented JSON. Numbers that JSON has no word for (nan, inf) become null."""
    text = msgspec.json.encode(msgspec.to_builtins(report, enc_hook=plain_value))
    text = msgspec.json.format(text, indent=2) + b"\n"
    return text if text.isascii() and b"\x7f" not in text else _escaped(text.decode()).encode()


def _escaped(text: str) -> str:
    """JSON with characters that steer a terminal or an editor written as escapes, all in strings.

    The encoder leaves C1 controls and direction overrides as they are; `--json -` may print them.
    """
    steering = {
        char
        for char in set(text) - {"\n"}
        if unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp")
    }
    return text.translate(
        {ord(char): json.dumps(char)[1:-1] if ord(char) != 0x7F else "\\u007f" for char in steering}
    )


def decode_report(text: bytes, *, source: Path) -> Report:
    """A report written by `encode_report`; fields that later versions add are skipped.

    Raises UsageError where it is not a report, or one of another schema.
    """
    try:
        head = msgspec.json.decode(text, type=_Head)
        if head.schema != SCHEMA:
            raise UsageError(
                f"{source}: has schema {head.schema[:40]!a}, and this version reads {SCHEMA!r}."
            )
        return msgspec.json.decode(text, type=Report)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        reason = ascii(str(error))[1:-1][:_REASON_LENGTH]
        raise UsageError(f"{source}: not a loaderdoctor report ({reason}).") from None


def read_report(run: Path) -> Report:
    """The report of a run folder, or of a report.json itself. Raises UsageError."""
    source = run / "report.json" if run.is_dir() else run
    try:
        with source.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise UsageError(
                f"{source}: not a loaderdoctor report (it is over {MAX_BYTES / 1e6:.0f} MB)."
            )
        return decode_report(text, source=source)
    except OSError as error:
        raise UsageError(
            f"{source}: can't be read ({error.strerror or error}). "
            "Name a run folder of loaderdoctor or its report.json."
        ) from None


def plain_value(value: object) -> Any:
    """A value that JSON knows: numpy scalars and arrays, enums, paths and mappings made plain."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): plain_value(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain_value(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    return str(value)


class _Head(msgspec.Struct):
    schema: str = ""
