"""What more readers got: from records of pools whose storage is known by construction."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loaderdoctor.attribution.run_facts import with_readers
from loaderdoctor.estimate import Estimate
from loaderdoctor.facts.loop import PoolTrial
from loaderdoctor.instrument.wire.record_file import Outcome
from loaderdoctor.instrument.wire.worker_log import (
    Batches,
    IteratorRecord,
    ProcessRecord,
    WorkerLog,
)
from loaderdoctor.instrument.wire.worker_records import read

MS = 1_000_000
OWN = "train.py:1"
PLAIN, TRIED = (0, 1000 * MS), (2000 * MS, 3000 * MS)
LATER = (4000 * MS, 5000 * MS)
TRIAL = PoolTrial(
    num_workers=8,
    own_ms=10.0,
    step_ms=Estimate.around(9.8, 40.0, n=1),
    gain_ms=Estimate.around(0.2, 40.0, n=1),
    spans_ns=(TRIED,),
)


def pool(serial: int, span: tuple[int, int], n_workers: int, making_ms: int) -> list[Any]:
    """Rows of workers that make one batch after another, 2 ms of each on a CPU."""
    return [
        (serial, worker, 100 * serial + worker, start, start + making_ms * MS, 2 * MS)
        for worker in range(n_workers)
        for start in range(span[0], span[1] - making_ms * MS + 1, making_ms * MS)
    ]


def log(*pools: list[Any], iterators: tuple[IteratorRecord, ...], queued: float = 0.0) -> WorkerLog:
    rows = sorted((row for rows in pools for row in rows), key=lambda row: (row[3], row[1]))
    empty = read(Path(__file__).parent / "no such folder")
    columns = {x.name: np.zeros(len(rows), dtype=np.int64) for x in fields(empty.batches)}
    names = ("serial", "worker", "pid", "begin_ns", "end_ns", "process_cpu_ns")
    for name, values in zip(names, zip(*rows, strict=True), strict=True):
        columns[name] = np.array(values, dtype=np.int64)
    columns["outcome"] += int(Outcome.OK)
    processes = tuple(
        ProcessRecord(
            role="worker", pid=pid, worker=0, serial=0, started_ns=0, ready_ns=0, exit_ns=None,
            cores=None, torch_threads=1, native_threads=0, run_wait_share=queued,
        )
        for pid in sorted({row[2] for row in rows})
    )  # fmt: skip
    return replace(empty, batches=Batches(**columns), iterators=iterators, processes=processes)


def opened(serial: int, n: int, loader: str | None, dataset: int = 1) -> IteratorRecord:
    return IteratorRecord(
        serial=serial, created_ns=0, num_workers=n, prefetch_factor=2, in_order=True,
        pin_memory=False, dataset=dataset, loader=loader,
    )  # fmt: skip


BOTH = (opened(1, 2, OWN), opened(2, 8, None))


@pytest.mark.parametrize(("making_ms", "per_s"), [(20, 400.0), (80, 96.0)])
def test_the_workers_of_a_trial_are_told_next_to_the_loops_own(
    making_ms: int, per_s: float
) -> None:
    records = log(pool(1, PLAIN, 2, 20), pool(2, TRIED, 8, making_ms), iterators=BOTH)
    (told,) = with_readers([TRIAL], records, OWN, [PLAIN])
    assert told.readers is not None
    few, many = told.readers.few, told.readers.many
    assert (few.busy, few.wait_ms.value, few.batches_per_s) == pytest.approx((2.0, 18.0, 100.0))
    assert many.wait_ms.value == pytest.approx(making_ms - 2.0)
    assert many.wait_ms.bounded
    assert many.batches_per_s == pytest.approx(per_s)
    assert many.busy == pytest.approx(per_s * making_ms / 1000)


def test_queueing_for_a_cpu_is_no_waiting() -> None:
    records = log(pool(1, PLAIN, 2, 20), pool(2, TRIED, 8, 40), iterators=BOTH, queued=0.5)
    (told,) = with_readers([TRIAL], records, OWN, [PLAIN])
    assert told.readers is not None
    assert told.readers.few.wait_ms.value == pytest.approx(8.0)
    assert told.readers.many.wait_ms.value == pytest.approx(18.0)


def without_queue(records: WorkerLog, *pids: int) -> WorkerLog:
    """These workers ended before they told how long they had queued for a CPU."""
    processes = tuple(
        replace(p, run_wait_share=None) if p.pid in pids else p for p in records.processes
    )
    return replace(records, processes=processes)


def test_waits_of_workers_that_did_not_tell_their_queue_are_no_storages() -> None:
    # Eight on two CPUs: 36 of a batch's 40 ms they queue.
    records = log(pool(1, PLAIN, 2, 20), pool(2, TRIED, 8, 40), iterators=BOTH, queued=0.9)
    one_less = without_queue(records, 203)
    (told,) = with_readers([TRIAL], one_less, OWN, [PLAIN])
    assert told.readers is not None
    assert told.readers.many.wait_ms.value == pytest.approx(2.0)
    assert told.readers.many.busy == pytest.approx(8.0)  # it made batches all the same
    most = without_queue(records, *range(202, 208))
    assert with_readers([TRIAL], most, OWN, [PLAIN]) == (TRIAL,)
    own = without_queue(records, 100, 101)
    assert with_readers([TRIAL], own, OWN, [PLAIN]) == (TRIAL,)


def test_only_the_windows_of_that_trial_and_of_that_dataset_count() -> None:
    own = pool(1, PLAIN, 2, 20)
    slow_later = pool(2, LATER, 8, 500)
    other = (*BOTH, opened(3, 8, None, dataset=9))
    records = log(own, pool(2, TRIED, 8, 20), slow_later, pool(3, TRIED, 8, 90), iterators=other)
    (told,) = with_readers([TRIAL], records, OWN, [PLAIN])
    assert told.readers is not None
    assert told.readers.many.wait_ms.value == pytest.approx(18.0)


@pytest.mark.parametrize(
    "records",
    [
        None,
        log(pool(1, PLAIN, 2, 20), iterators=BOTH[:1]),
        log(pool(1, PLAIN, 2, 20), pool(2, TRIED, 8, 300), iterators=BOTH),  # three cycles
        log(pool(2, TRIED, 8, 20), iterators=BOTH),
    ],
    ids=["no records", "no trial of it", "too few batches", "none of its own"],
)
def test_too_little_to_tell_leaves_the_trial_as_it_is(records: WorkerLog | None) -> None:
    assert with_readers([TRIAL], records, OWN, [PLAIN]) == (TRIAL,)
    assert with_readers([], records, OWN, [PLAIN]) == ()
