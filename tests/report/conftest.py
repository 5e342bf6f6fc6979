"""Recorded traces, and small reports that the report tests share."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TRACES = Path(__file__).resolve().parents[2] / "traces"
CASES = tuple(sorted(path.name.split(".")[0] for path in TRACES.glob("*.pt.trace.json.gz")))

Loaded = dict[str, Any]


def trace_path(case: str) -> Path:
    return TRACES / f"{case}.pt.trace.json.gz"


def load(path: Path) -> Loaded:
    data = path.read_bytes()
    loaded: Loaded = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    return loaded


@pytest.fixture
def write_trace(tmp_path: Path) -> Callable[[list[dict[str, Any]]], Path]:
    """A trace file of the given events."""

    def write(events: list[dict[str, Any]]) -> Path:
        path = tmp_path / "source.json"
        path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events, "traceName": "x"}))
        return path

    return write
