"""Faults add up over beats; of the queues the last look counts."""

from __future__ import annotations

from loaderdoctor.alerts import Counted
from loaderdoctor.alerts.job import Job
from loaderdoctor.instrument.wire.measured import QueueFill, Sums
from loaderdoctor.instrument.wire.protocol import Beat


def beat(minor: int | None, queue: QueueFill | None) -> Beat:
    return Beat(
        start_ns=0,
        end_ns=1,
        at_s=1.0,
        n_steps=1,
        n_epochs=0,
        sums=Sums(),
        minor_faults=minor,
        major_faults=0 if minor is not None else None,
        queue=queue,
    )


def test_what_is_told_is_of_the_lowest_rank_so_far() -> None:
    job = Job(0.0)
    assert job.counted == Counted()
    for minor, n_ready in ((300, 2), (50, 4)):
        job.beat(1, beat(9_000, None))
        job.beat(0, beat(minor, QueueFill(n_ready=n_ready, n_asked=4)))
    assert job.counted == Counted(
        minor_faults=350, major_faults=0, ready_batches=4, asked_batches=4
    )
    earlier = Counted(minor_faults=300, major_faults=0, ready_batches=2, asked_batches=4)
    assert job.counted.since(earlier).minor_faults == 50
    assert job.counted.since(earlier).ready_batches == 4


def test_what_is_not_told_is_not_nought() -> None:
    job = Job(0.0)
    job.beat(0, beat(None, None))
    assert job.counted == Counted() == job.counted.since(Counted())
