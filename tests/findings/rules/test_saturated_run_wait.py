"""Workers that wait for a CPU are told from workers that wait for storage."""

from __future__ import annotations

from loaderdoctor.advice.prescription import candidates
from loaderdoctor.facts.loop import CpuFacts
from loaderdoctor.facts.whole import Facts
from loaderdoctor.findings.find import find
from loaderdoctor.findings.rules.saturated import cpu_saturated_workers, storage_bound_workers
from loaderdoctor.findings.rules.threads import thread_oversubscription
from tests.findings.builders import loader, machine, step, with_exposed, workers


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


def beside_another_program(*, cpu_share: float, run_wait_share: float) -> Facts:
    """Two workers fall short on two CPUs, one of which another program keeps busy."""
    return with_exposed(
        input_=0.9,
        loaders=(loader(settings={"num_workers": 2, "prefetch_factor": 2}),),
        workers=workers(
            n_workers=2, batch_ms=20.0, cpu_share=cpu_share, run_wait_share=run_wait_share
        ),
        machine=machine(usable_cpus=2.0),
        step=step(
            main_cpu_cores=0.1,
            worker_cpu_cores=2 * cpu_share,
            cpu=CpuFacts(
                other_cores=1.0, waiting_threads=0.3, train_wait_share=0.1, throttled_share=None
            ),
        ),
    )


def test_what_workers_queue_for_is_no_room_for_more_of_them() -> None:
    burn = beside_another_program(cpu_share=0.45, run_wait_share=0.5)
    assert not any((c.settings.num_workers or 0) > 2 for c in candidates(burn, find(burn)))
    finding = cpu_saturated_workers(burn)
    assert finding is not None
    assert (
        "1.0 of 2 usable CPUs are busy with this loop and 1.0 with other programs, and"
        in finding.summary
    )
    sleep = beside_another_program(cpu_share=0.02, run_wait_share=0.05)
    assert any((c.settings.num_workers or 0) > 2 for c in candidates(sleep, find(sleep)))
    assert cpu_saturated_workers(sleep) is None
