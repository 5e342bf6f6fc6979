"""Latency, bandwidth or many requests: told apart by what more readers got, else not told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from loaderdoctor.estimate import Estimate
from loaderdoctor.facts.loop import PoolTrial
from loaderdoctor.facts.whole import Facts
from loaderdoctor.facts.workers import ReadFacts
from loaderdoctor.findings.find import find
from loaderdoctor.findings.model import Kind, Severity
from loaderdoctor.findings.rules.slow_storage import (
    bandwidth_bound_storage,
    latency_bound_storage,
    many_small_reads,
)
from tests.findings.builders import loader, with_exposed, workers
from tests.findings.case import Case, check_fires, check_silent

LARGE = ReadFacts(bytes_per_batch=6.4e6, calls_per_batch=128.0, disk_share=1.0)
PIECES = ReadFacts(bytes_per_batch=6.4e6, calls_per_batch=3200.0, disk_share=0.0)


def trial(n: int, step_ms: float, *, own_ms: float = 10.0, margin: float = 0.5) -> PoolTrial:
    return PoolTrial(
        num_workers=n,
        own_ms=own_ms,
        step_ms=Estimate.around(step_ms, margin, n=3),
        gain_ms=Estimate.around(own_ms - step_ms, margin, n=3),
    )


def waits(*tried: PoolTrial, reads: ReadFacts | None = LARGE, **changes: Any) -> Facts:
    """Two workers that mostly wait for 20 ms a batch: 8 of 10 ms a step."""
    made = workers(
        n_workers=2,
        batch_ms=20.0,
        fetch_ms=19.0,
        cpu_share=0.1,
        idle_share=0.0,
        n_samples=5120,
        n_batches=80,
        reads=reads,
    )
    facts = with_exposed(
        input_=0.8,
        workers=replace(made, **changes),
        loaders=(loader(settings={"num_workers": 2}, file_systems=("nfs4",)),),
    )
    return replace(facts, pool_trials=tried)


LATENCY = Case(
    rule=latency_bound_storage,
    ill=waits(trial(4, 5.2), trial(8, 2.6)),
    share=0.8,
    severity=Severity.HIGH,
    evidence={"num_workers_tried": 8, "reads_per_batch": 128.0, "page_cache_share": 0.0},
    says=("each request (nfs4: NFS)", "num_workers=8", "requests in flight"),
    silent={
        "no more for more readers": waits(trial(8, 9.9)),
        "computes": waits(trial(8, 2.6), cpu_share=0.9),
        "half of it": waits(trial(8, 6.5)),
        "as many workers": waits(trial(2, 5.0)),
        "no workers before": replace(
            waits(trial(8, 2.6)),
            loaders=(loader(settings={"num_workers": 0, "prefetch_factor": None}),),
        ),
        "one window that says nothing": waits(trial(8, 2.6, margin=30.0)),
    },
    missing={"not tried": waits(), "no CPU times": waits(trial(8, 2.6), cpu_share=None)},
)
BANDWIDTH = Case(
    rule=bandwidth_bound_storage,
    ill=waits(trial(4, 9.9), trial(8, 9.8)),
    share=0.8,
    severity=Severity.HIGH,
    evidence={"num_workers_tried": 8, "bytes_per_s": 6.4e8},
    says=("gives all it has (nfs4: NFS), about 610 MiB a second", "num_workers=8", "fewer bytes"),
    silent={
        "each reader gets as much": waits(trial(8, 2.6)),
        "half of it": waits(trial(8, 6.5)),
        "no CPU for more": waits(trial(64, 9.8), cpu_share=0.4),
        "computes": waits(trial(8, 9.8), cpu_share=0.9),
        "one window that says nothing": waits(trial(8, 9.8, margin=30.0)),
        "one round": waits(trial(8, 9.8, margin=float("inf"))),
    },
    missing={"not tried": waits(), "no CPU times": waits(trial(8, 9.8), cpu_share=None)},
)
SMALL = Case(
    rule=many_small_reads,
    ill=waits(reads=replace(PIECES, calls_per_batch=1600.0, bytes_per_batch=3.2e6), batch_ms=200.0),
    share=0.8,
    severity=Severity.HIGH,
    evidence={"reads_per_sample": 25.0, "bytes_per_read": 2000.0},
    says=("25 pieces of 1.95 KiB", "0.11 ms each", "larger buffer"),
    silent={
        "large ones": waits(batch_ms=200.0),
        "from the page cache": waits(reads=PIECES, batch_ms=20.0),
        "a few": waits(reads=replace(PIECES, calls_per_batch=640.0), batch_ms=200.0),
        "computes": waits(reads=PIECES, batch_ms=200.0, cpu_share=0.9),
    },
    missing={"not counted": waits(reads=None), "no CPU times": waits(cpu_share=None)},
)


@pytest.mark.parametrize("case", [LATENCY, BANDWIDTH, SMALL], ids=lambda case: case.name)
def test_it_is_found_where_it_is_and_nowhere_else(case: Case) -> None:
    check_fires(case)
    check_silent(case)


def test_what_was_tried_stands_in_the_place_of_what_is_general() -> None:
    untold = {x.kind for x in find(waits())}
    assert Kind.STORAGE_BOUND_WORKERS in untold
    shared = {x.kind for x in find(waits(trial(8, 9.8)))}
    assert Kind.BANDWIDTH_BOUND_STORAGE in shared
    assert not shared & {Kind.STORAGE_BOUND_WORKERS, Kind.TOO_FEW_WORKERS}
    late = {x.kind for x in find(waits(trial(8, 2.6)))}
    assert Kind.LATENCY_BOUND_STORAGE in late
    assert Kind.STORAGE_BOUND_WORKERS not in late


def test_bytes_that_the_system_does_not_count_are_not_told() -> None:
    over_sockets = replace(LARGE, bytes_per_batch=900.0, calls_per_batch=3.0)
    found = bandwidth_bound_storage(waits(trial(8, 9.8), reads=over_sockets))
    assert found is not None
    assert found.evidence["bytes_per_s"] is None
    assert "reads" not in found.summary and "a second" not in found.summary
