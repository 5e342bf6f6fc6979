"""Of a trace too large for memory the first part in time is read, whatever the file's order."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loaderdoctor import trace
from loaderdoctor.trace import read_trace
from loaderdoctor.trace.column_builder import ColumnBuilder
from loaderdoctor.trace.columns import Category
from loaderdoctor.trace.events import decode_strictly
from loaderdoctor.trace.source import MemoryLimit
from tests.trace_facts import trace_facts

RECORDED = Path(__file__).parents[2] / "traces" / "enough_workers.pt.trace.json.gz"


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> int:
    """A limit that the recorded trace exceeds."""
    monkeypatch.setattr(trace, "_n_kept", lambda memory, kept_bytes: 6000 if kept_bytes else None)
    return 6000


def shuffled(target: Path, seed: int) -> Path:
    """The recorded events in another order: the profiler writes them by kind, not by time."""
    document: dict[str, Any] = json.loads(gzip.decompress(RECORDED.read_bytes()))
    random.Random(seed).shuffle(document["traceEvents"])
    target.write_text(json.dumps(document))
    return target


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_the_part_holds_every_row_that_begins_before_its_end(
    tmp_path: Path, few_rows: int, seed: int | None
) -> None:
    path = RECORDED if seed is None else shuffled(tmp_path / "run.json", seed)
    whole, part = read_trace(path), read_trace(path, kept_bytes=1)
    assert whole.n_later_events == 0
    assert few_rows / 4 < len(part.spans) <= few_rows
    end = part.spans.start_ns.max()
    steps = np.array([name.startswith("ProfilerStep#") for name in whole.names])
    early = whole.spans.where(whole.spans.start_ns <= end)
    cut = steps[early.name] & (early.end_ns > end)
    assert len(part.spans) == len(early) - int(cut.sum())
    assert part.n_later_events == len(whole.spans) - len(early)
    assert part.kernel_shapes is not None
    kernels = int((part.spans.category == Category.KERNEL).sum())
    assert part.kernel_shapes.occupancy_percent.size == kernels


def test_a_step_of_the_part_is_as_long_as_one_of_the_whole(few_rows: int) -> None:
    whole = trace_facts(read_trace(RECORDED))
    part = trace_facts(read_trace(RECORDED, kept_bytes=1))
    assert 2 <= part.n_steps < whole.n_steps
    assert part.wall_ms == pytest.approx(whole.wall_ms, rel=0.05)
    assert part.shares.compute == pytest.approx(whole.shares.compute or 0.0, abs=0.05)
    assert (part.shares.other or 0.0) < 0.02


def test_rows_that_all_begin_at_once_are_no_part(tmp_path: Path) -> None:
    rows = ColumnBuilder()
    path = tmp_path / "run.json"
    event = {"ph": "X", "name": "a", "ts": 1, "dur": 1, "pid": 1, "tid": 1, "cat": "cpu_op"}
    path.write_text(json.dumps([event] * 100))
    rows.add(decode_strictly(path.read_bytes()))
    assert not rows.keep_earliest(50)
    assert rows.n_rows == 100
    assert rows.keep_earliest(100)


def test_how_many_rows_are_kept_follows_from_the_memory() -> None:
    n_kept, no_limit = trace._n_kept, MemoryLimit(None)
    assert n_kept(no_limit, None) is None
    two_gb = n_kept(no_limit, 2_000_000_000)
    assert two_gb is not None and 3_000_000 < two_gb < 4_000_000
    assert n_kept(MemoryLimit(1_000_000_000), 2_000_000_000) == MemoryLimit(1_000_000_000).n_rows
    assert n_kept(MemoryLimit(300_000_000), 2_000_000_000) is None  # too little to judge by
