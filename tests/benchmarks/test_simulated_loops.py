"""The simulated loops behave as loops do, and what they are judged by follows from them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")


@pytest.fixture(scope="module", autouse=True)
def _importable() -> Iterator[None]:
    sys.path.insert(0, BENCHMARKS)
    yield
    sys.path.remove(BENCHMARKS)


def module(name: str) -> Any:
    return importlib.import_module(name)


def loop_of(**settings: Any) -> Any:
    return module("simulation").Loop(**settings)


def ms(loop: Any, how: str = "full", *, profiled: bool = False) -> float:
    return float(module("simulation").Simulation(loop, how, profiled=profiled).run(60)) / 1e3


def test_a_pool_goes_at_its_own_pace_and_twice_the_workers_at_twice_that() -> None:
    loop = loop_of(workers=2, make_ms=40.0)
    assert ms(loop) == pytest.approx(20.0, rel=0.05)
    assert ms(replace(loop, workers=4)) == pytest.approx(10.0, rel=0.05)
    assert ms(loop, "cached") < 7.0
    # Full CPUs make no more of them.
    full = replace(loop, workers=4, cpus=4.0)
    assert ms(replace(full, workers=8)) > 0.9 * ms(full)


def test_copies_cost_what_their_memory_and_call_let_them() -> None:
    loop = loop_of(batch_bytes=50_000_000, workers=8, make_ms=1.0, kernel_us=80.0)
    pinned = ms(loop) - ms(loop, "resident")
    assert pinned == pytest.approx(1.0, abs=0.2)
    pageable = replace(loop, pinned=False, non_blocking=False)
    assert ms(pageable) - ms(pageable, "resident") > 8.0
    beside = replace(loop, side_stream=True)
    assert ms(beside) - ms(beside, "resident") < 0.2


def test_recording_slows_the_host_and_no_pool() -> None:
    tiny = loop_of(n_kernels=200, kernel_us=3.0, make_ms=1.0)
    plain, recorded = (ms(tiny, profiled=p) for p in (False, True))
    assert recorded > 1.3 * plain
    starved = replace(tiny, workers=1, make_ms=30.0)
    plain, recorded = (ms(starved, profiled=p) for p in (False, True))
    assert recorded == pytest.approx(plain, rel=0.05)


def test_what_a_verdict_may_be_follows_from_the_parts() -> None:
    bounds_of = module("simulated_loops").bounds_of
    assert bounds_of({"input": 0.5, "copy": 0.1, "host": 0.1}) == ["input"]
    assert bounds_of({"input": 0.0, "copy": 0.0, "host": 0.5}) == ["host"]
    assert bounds_of({"input": 0.0, "copy": 0.0, "host": 0.0}) == ["compute"]
    assert set(bounds_of({"input": 0.2, "copy": 0.19, "host": 0.0})) >= {"input", "copy"}


def test_a_document_is_a_trace_with_its_steps() -> None:
    made = module("simulated_loops")
    events = made.document_of(loop_of(n_steps=3))["traceEvents"]
    assert sum(e["name"].startswith("ProfilerStep#") for e in events) == 3
    assert made.truth_of(loop_of(workers=0, make_ms=20.0))["expect_bound"] == ["input"]


def test_new_memory_costs_what_ready_batches_spare_and_pinning_too() -> None:
    loop = loop_of(
        workers=8, make_ms=2.0, batch_bytes=50_000_000, pinned=False, non_blocking=False,
        n_kernels=40, kernel_us=10.0,
    )  # fmt: skip
    for dropped_by in ("fetch", "copy"):
        new = replace(loop, map_ms_per_mb=0.06, free_ms_per_mb=0.24, dropped_by=dropped_by)
        assert ms(new) - ms(loop) == pytest.approx(50 * 0.3, rel=0.1)
        assert ms(new, "cached") == pytest.approx(ms(loop, "cached"), rel=0.05)
        pinned = replace(new, pinned=True)
        assert ms(pinned) == pytest.approx(ms(replace(loop, pinned=True)), rel=0.05)


def test_workers_crowd_the_loop_where_they_are_told_to() -> None:
    loop = loop_of(workers=4, cpus=3.0, make_ms=14.0, n_kernels=200, kernel_us=10.0)
    crowded = replace(loop, crowding=True)
    assert ms(crowded) > 1.2 * ms(loop)
    assert ms(crowded, "cached") == pytest.approx(ms(loop, "cached"), rel=0.05)
    assert ms(replace(crowded, make_ms=7.0)) < 0.95 * ms(crowded)
