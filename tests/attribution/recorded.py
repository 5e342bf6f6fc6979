"""Real loops over loaders, with what their workers recorded."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from loaderdoctor.attribution import attribute
from loaderdoctor.attribution.timeline import step_timelines
from loaderdoctor.facts.step import StepTimeline
from loaderdoctor.instrument.wire.worker_log import WorkerLog
from loaderdoctor.instrument.wire.worker_records import read
from loaderdoctor.instrument.workers import worker
from loaderdoctor.trace.columns import ClockMap
from tests.attribution.build import TraceBuilder

Loader = DataLoader[Any]


def recorded(
    folder: Path, loaders: Iterable[Loader], name: Callable[[Loader], str | None] | None = None
) -> tuple[WorkerLog, int, int]:
    """An epoch of each loader in turn: the records, and when it all began and ended (ns)."""
    worker.install(folder / "records", *([name] if name is not None else []))
    try:
        start_ns = time.perf_counter_ns()
        for loader in loaders:
            for _ in loader:
                pass
        end_ns = time.perf_counter_ns()
    finally:
        worker.remove()
    return read(folder / "records"), start_ns, end_ns


def as_one_step(log: WorkerLog, start_ns: int, end_ns: int) -> StepTimeline:
    """The whole stretch as a single step of a trace that began with it."""
    built = TraceBuilder()
    length_us = (end_ns - start_ns) / 1000
    built.step(0, 0, length_us)
    built.op(0, length_us)
    clock = ClockMap(offset_ns=-start_ns)
    (step,) = step_timelines(attribute(built.trace()), log, clock)
    return step
