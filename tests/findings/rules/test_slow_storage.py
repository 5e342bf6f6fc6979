"""Latency, bandwidth or many requests: told apart by what more readers got, else not told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from loaderdoctor.estimate import Estimate
from loaderdoctor.facts import Facts
from loaderdoctor.facts.host import MoreReaders, Readers, ReadFacts
from loaderdoctor.facts.loop import PoolTrial
from loaderdoctor.findings import Kind, Severity
from loaderdoctor.findings.rules import find
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


def seen(tried: PoolTrial, wait_ms: float, *, busy: float = 8.0, margin: float = 1.0) -> PoolTrial:
    """With records: two workers waited 18 ms a batch, those of the trial `wait_ms`."""
    few = Readers(busy=2.0, wait_ms=Estimate.around(18.0, 0.5, n=40), batches_per_s=100.0)
    many = Readers(
        busy=busy,
        wait_ms=Estimate.around(wait_ms, margin, n=10),
        batches_per_s=busy / (wait_ms + 2.0) * 1000.0,
    )
    return replace(tried, readers=MoreReaders(few=few, many=many))


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
        run_wait_share=0.0,
        reads=reads,
    )
    facts = with_exposed(
        input_=0.8,
        workers=replace(made, **changes),
        loaders=(loader(settings={"num_workers": 2}, file_systems=("nfs4",)),),
    )
    return replace(facts, pool_trials=tried)


def kept(facts: Facts, **changes: Any) -> Facts:
    """The same of a dataset whose paths and clients are these."""
    return replace(facts, loaders=(loader(settings={"num_workers": 2}, **changes),))


# A generator of its own making: what workers read are the loader's pipes.
PIPES = ReadFacts(bytes_per_batch=206.0, calls_per_batch=18.0, disk_share=0.0)
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
        "a stream that reads nothing": kept(waits(trial(8, 2.6), reads=PIPES), file_systems=()),
        "beside files that nobody reads": kept(
            waits(trial(8, 2.6), reads=PIPES), file_systems=("ext4",)
        ),
    },
    missing={
        "not tried": waits(),
        "no CPU times": waits(trial(8, 2.6), cpu_share=None),
        "reads not counted": kept(waits(trial(8, 2.6), reads=None), file_systems=()),
    },
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
        "a lock and no reads": kept(waits(trial(8, 9.8), reads=PIPES), file_systems=()),
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
        "of the loader's pipes": waits(
            reads=ReadFacts(bytes_per_batch=9200.0, calls_per_batch=1150.0, disk_share=0.0),
            batch_ms=200.0,
        ),
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


def test_what_a_client_brings_over_sockets_counts_as_read() -> None:
    remote = kept(waits(trial(8, 2.6), reads=PIPES), file_systems=(), clients=("s3fs",))
    assert latency_bound_storage(remote) is not None


def test_bytes_that_the_system_does_not_count_are_not_told() -> None:
    over_sockets = replace(LARGE, bytes_per_batch=900.0, calls_per_batch=3.0)
    found = bandwidth_bound_storage(waits(trial(8, 9.8), reads=over_sockets))
    assert found is not None
    assert found.evidence["bytes_per_s"] is None
    assert "reads" not in found.summary and "a second" not in found.summary


NOISY = trial(8, 9.8, margin=40.0)  # steps that say nothing


@pytest.mark.parametrize(
    ("tried", "kind"),
    [
        (seen(NOISY, 72.0), Kind.BANDWIDTH_BOUND_STORAGE),
        (seen(NOISY, 18.5), Kind.LATENCY_BOUND_STORAGE),
        (seen(NOISY, 27.0), Kind.LATENCY_BOUND_STORAGE),  # 8 of them in the time of 5.3
        (seen(NOISY, 52.0), None),  # between the two
        (seen(NOISY, 72.0, margin=30.0), None),  # batches that tell as little
        (seen(NOISY, 72.0, margin=float("inf")), None),
        (seen(NOISY, 18.5, busy=2.5), None),  # no more of them read at once
        # Steps and waits that deny each other.
        (seen(trial(8, 2.6), 72.0), None),
        (seen(trial(8, 9.8), 18.5), None),
        # Steps beside which waits say the same.
        (seen(trial(8, 9.8), 72.0), Kind.BANDWIDTH_BOUND_STORAGE),
        (seen(trial(8, 2.6), 18.5), Kind.LATENCY_BOUND_STORAGE),
    ],
)
def test_how_long_each_batch_waits_tells_where_steps_do_not(
    tried: PoolTrial, kind: Kind | None
) -> None:
    told = {Kind.LATENCY_BOUND_STORAGE, Kind.BANDWIDTH_BOUND_STORAGE}
    assert {x.kind for x in find(waits(tried))} & told == ({kind} if kind is not None else set())


def test_waits_are_told_with_both_rates() -> None:
    found = bandwidth_bound_storage(waits(seen(NOISY, 72.0)))
    assert found is not None
    assert "waits 72.0 ms, with 2 18.0 ms" in found.summary
    assert "108 batches a second, with 2 100" in found.summary
    assert found.evidence["part_of_ideal"] == 0.0
    assert found.evidence["readers_tried"] == 8.0


def test_full_cpus_are_no_objection_to_waits_that_leave_them_out() -> None:
    full: dict[str, Any] = {"cpu_share": 0.4}  # so many of those would fill more than the CPUs
    assert bandwidth_bound_storage(waits(seen(trial(64, 9.8), 576.0, busy=64.0), **full))
    assert bandwidth_bound_storage(waits(trial(64, 9.8), **full)) is None
    # Who queued for a CPU is not known: then waits may be that.
    unknown = waits(seen(NOISY, 72.0), run_wait_share=None)
    assert bandwidth_bound_storage(unknown) is None
