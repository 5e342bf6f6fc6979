"""Events as profilers write them, and small trace files made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from loaderdoctor.trace import read_trace
from loaderdoctor.trace.columns import Trace


def written(folder: Path, events: list[Any], **about: Any) -> Trace:
    """A trace file of these events, read back."""
    path = folder / "run.json"
    path.write_text(json.dumps({**about, "traceEvents": events}))
    return read_trace(path)


def span(name: str = "aten::mm", cat: str = "cpu_op", **fields: Any) -> dict[str, Any]:
    """A complete event of 5 µs."""
    return {"ph": "X", "cat": cat, "name": name, "pid": 9, "tid": 9, "ts": 10, "dur": 5, **fields}


def memory(device: int, kind: int, allocated: Any, reserved: Any) -> dict[str, Any]:
    """As torch 2.x writes it with `profile_memory`."""
    args = {"Total Reserved": reserved, "Total Allocated": allocated, "Bytes": 8, "Addr": 1,
            "Device Id": device, "Device Type": kind}  # fmt: skip
    return {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 1,
            "tid": 1, "ts": 3, "args": args}  # fmt: skip
