"""Workers that wait for a CPU are told from workers that wait for storage."""

from __future__ import annotations

from loaderdoctor.findings.contention import thread_oversubscription
from loaderdoctor.findings.saturated import storage_bound_workers
from tests.findings.builders import machine, with_exposed, workers


def test_waiting_for_a_cpu_is_no_waiting_for_storage() -> None:
    reading = workers(cpu_share=0.2, run_wait_share=0.05)
    assert storage_bound_workers(with_exposed(input_=0.6, workers=reading))
    queued = workers(cpu_share=0.2, run_wait_share=0.7)
    assert not storage_bound_workers(with_exposed(input_=0.6, workers=queued))


def test_thread_pools_that_queue_for_cpus_are_oversubscription_though_the_cpu_has_room() -> None:
    # 4 workers at half a CPU each fill 2 of 6: the CPU as a whole has room.
    room = machine(usable_cpus=6.0)
    queued = workers(n_threads=2, cpu_share=0.5, run_wait_share=0.65)
    assert thread_oversubscription(with_exposed(input_=0.6, workers=queued, machine=room))
    alone = workers(n_threads=2, cpu_share=0.5, run_wait_share=0.02)
    assert not thread_oversubscription(with_exposed(input_=0.6, workers=alone, machine=room))
