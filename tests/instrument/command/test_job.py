"""Windows of ranks -> one of the job: the slowest rank's steps, everybody's samples and memory."""

from __future__ import annotations

import msgspec

from loaderdoctor.instrument.command.job import merged
from loaderdoctor.instrument.wire.protocol import WindowDone

FAST = WindowDone(
    id=3,
    mode="plain",
    status="ok",
    n_steps=4,
    n_samples=64,
    host_step_ns=(10, 10, 10, 10),
    host_bytes=100,
    worker_cpu_ns=7,
    main_cpu_ns=1,
    gpu_peak_allocated_bytes=50,
    gpu_peak_reserved_bytes=60,
)
SLOW = msgspec.structs.replace(
    FAST, host_step_ns=(11, 11, 11, 11), host_bytes=120, gpu_peak_allocated_bytes=55
)


def test_steps_are_the_slowest_ranks_and_samples_all_ranks_together() -> None:
    for ranks in ((FAST, SLOW), (SLOW, FAST)):
        job = merged(ranks)
        assert job.host_step_ns == SLOW.host_step_ns
        assert (job.n_steps, job.n_samples) == (4, 128)
        assert (job.host_bytes, job.worker_cpu_ns, job.main_cpu_ns) == (220, 14, 2)
        assert (job.gpu_peak_allocated_bytes, job.gpu_peak_reserved_bytes) == (55, 60)


def test_the_accelerators_clock_decides_where_there_is_one() -> None:
    late = msgspec.structs.replace(FAST, device_step_ns=(20, 20, 20, 20))
    other = msgspec.structs.replace(SLOW, device_step_ns=(19, 19, 19, 19))
    assert merged((other, late)).device_step_ns == late.device_step_ns


def test_ranks_that_ended_early_or_recorded_less_are_told() -> None:
    short = msgspec.structs.replace(
        FAST, status="short", reason="over", n_steps=2, n_samples=32, host_step_ns=(10, 10)
    )
    job = merged((short, SLOW))
    assert (job.status, job.reason) == ("short", "over")
    assert (job.n_steps, job.n_samples) == (4, 128)
    assert merged((FAST, msgspec.structs.replace(SLOW, host_bytes=None))).host_bytes is None
