"""Rules about pools that more workers do not help: full CPUs, slow storage."""

from __future__ import annotations

from dataclasses import replace

from loaderdoctor.advice.prescription import candidates
from loaderdoctor.facts import Facts
from loaderdoctor.facts.loop import CpuFacts
from loaderdoctor.findings import Severity
from loaderdoctor.findings.capacity import cpu_saturated, cpus_words
from loaderdoctor.findings.rules import find
from loaderdoctor.findings.rules.contention import gil_contention
from loaderdoctor.findings.rules.saturated import cpu_saturated_workers, storage_bound_workers
from loaderdoctor.findings.rules.starved import (
    too_few_workers,
)
from tests.findings.builders import (
    STEP_MS,
    healthy,
    loader,
    machine,
    step,
    with_exposed,
    workers,
)
from tests.findings.case import Case, fires, stays_silent
from tests.findings.input_facts import (
    FULL_CPU,
    LOW,
    NO_WORKERS,
    SHORT,
    SLEEPING,
    STARVED,
)

CASES = (
    Case(
        rule=cpu_saturated_workers,
        ill=with_exposed(input_=0.6, workers=SHORT, step=FULL_CPU),
        share=0.6,
        severity=Severity.HIGH,
        evidence={"cpu_cores_used": 7.5, "usable_cpus": 8.0, "num_workers": 4},
        says=("7.5 of 8 usable CPUs are busy", "No CPU is left for more workers"),
        silent={
            "CPUs are free": STARVED,
            "the pool keeps up": with_exposed(input_=0.4, workers=workers(), step=FULL_CPU),
            LOW: healthy(step=FULL_CPU, workers=SHORT),
            "no workers": with_exposed(input_=0.6, loaders=NO_WORKERS, step=FULL_CPU),
        },
        missing={
            "machine": with_exposed(input_=0.6, workers=SHORT, step=FULL_CPU, machine=None),
            "CPU times": with_exposed(
                input_=0.6,
                workers=replace(SHORT, cpu_share=None),
                step=step(worker_cpu_cores=None),
            ),
        },
    ),
    Case(
        rule=storage_bound_workers,
        ill=with_exposed(input_=0.6, workers=SLEEPING, step=step(worker_cpu_cores=0.3)),
        share=0.6,
        severity=Severity.HIGH,
        evidence={"worker_cpu_share": 0.08, "batch_ms": 40.0, "cpu_cores_used": 1.3},
        says=("92 % of each batch's 40.0 ms waiting", "outnumber the CPUs"),
        silent={
            "workers compute": STARVED,
            "the pool keeps up": with_exposed(input_=0.6, workers=workers(batch_ms=8.0)),
            "starved of CPU, not of data": with_exposed(
                input_=0.6, workers=replace(SHORT, cpu_share=0.2), step=FULL_CPU
            ),
            LOW: healthy(workers=SLEEPING),
        },
        missing={
            "CPU times": with_exposed(input_=0.6, workers=replace(SHORT, cpu_share=None)),
            "workers": with_exposed(input_=0.6, workers=None),
        },
    ),
)
test_a_rule_fires_with_its_figures = fires(CASES)
test_a_rule_stays_silent_on_look_alikes_and_missing_facts = stays_silent(CASES)


def test_a_pool_that_fills_the_cpus_is_saturated_though_they_rest_at_times() -> None:
    pool = workers(n_workers=8, batch_ms=80.0, idle_share=0.1)
    facts = with_exposed(
        input_=0.6,
        workers=pool,
        loaders=(loader(settings={"num_workers": 8}),),
        step=step(worker_cpu_cores=6.2, main_cpu_cores=0.4),
    )
    assert cpu_saturated_workers(facts) is not None
    assert too_few_workers(facts) is None


def test_a_pool_that_keeps_up_but_takes_the_steps_cpus_is_saturated() -> None:
    facts = with_exposed(
        input_=0.4,
        workers=workers(batch_ms=8.0),
        step=step(raw_wait_ms=0.2, worker_cpu_cores=6.5, main_cpu_cores=1.0),
    )
    finding = cpu_saturated_workers(facts)
    assert finding is not None and gil_contention(facts) is None
    assert "the workers keep up: the loop waits 0.20 ms a step for a batch" in finding.summary
    assert "batches that cost nothing would save 4.00 of 10.0 ms a step" in finding.summary
    assert "still waits" not in finding.summary and "as CPUs" not in finding.summary
    assert (finding.advice or "").startswith("Make each sample cheaper")


def outnumbering(*, n_workers: int = 16, others: float = 1.2, input_: float = 0.57) -> Facts:
    """Workers on four CPUs that keep up, beside other programs; one round tells hardly anything.

    As torchvision's script was found with its own 16 workers.
    """
    return with_exposed(
        input_=input_,
        margin=1.3 * input_ * STEP_MS,
        loaders=(loader(settings={"num_workers": n_workers}),),
        workers=workers(n_workers=n_workers, batch_ms=8.0, cpu_share=0.36),
        machine=machine(usable_cpus=4.0),
        step=step(
            raw_wait_ms=0.04 * STEP_MS,
            main_cpu_cores=0.56,
            worker_cpu_cores=2.28,
            cpu=CpuFacts(
                other_cores=others, waiting_threads=0.1, train_wait_share=0.02, throttled_share=None
            ),
        ),
    )


def test_workers_that_outnumber_full_cpus_are_tried_fewer_though_noise_may_be_all_of_it() -> None:
    facts = outnumbering()
    finding = cpu_saturated_workers(facts)
    assert finding is not None and finding.severity == Severity.UNCERTAIN
    assert any(c.live and c.settings.num_workers == 4 for c in candidates(facts, find(facts)))
    assert "with other programs, and the workers keep up: the loop waits 0.40 ms" in finding.summary
    assert "may save 5.70 of 10.0 ms a step" in finding.summary
    assert "Try as many workers as CPUs, or make each sample cheaper" in finding.summary
    assert (finding.advice or "").startswith("Start only as many workers as there are CPUs.")
    for healthy_one in (
        outnumbering(n_workers=4),
        outnumbering(others=0.1),  # room for more
        outnumbering(input_=0.15),  # too little to ask
        replace(facts, machine=None),
        replace(facts, ablation=None),
    ):
        assert cpu_saturated_workers(healthy_one) is None


def test_waiting_for_a_cpu_is_no_waiting_for_storage() -> None:
    reading = workers(cpu_share=0.2, run_wait_share=0.05)
    assert storage_bound_workers(with_exposed(input_=0.6, workers=reading))
    queued = workers(cpu_share=0.2, run_wait_share=0.7)
    assert not storage_bound_workers(with_exposed(input_=0.6, workers=queued))


def next_to_another_program(*, cpu_share: float, run_wait_share: float) -> Facts:
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
    burn = next_to_another_program(cpu_share=0.45, run_wait_share=0.5)
    assert not any((c.settings.num_workers or 0) > 2 for c in candidates(burn, find(burn)))
    finding = cpu_saturated_workers(burn)
    assert finding is not None
    assert (
        "1.0 of 2 usable CPUs are busy with this loop and 1.0 with other programs, and"
        in finding.summary
    )
    sleep = next_to_another_program(cpu_share=0.02, run_wait_share=0.05)
    assert any((c.settings.num_workers or 0) > 2 for c in candidates(sleep, find(sleep)))
    assert cpu_saturated_workers(sleep) is None


def test_ranks_of_one_machine_have_each_its_part_of_the_cpus() -> None:
    busy = with_exposed(
        input_=0.5,
        workers=workers(batch_ms=40.0),
        step=step(worker_cpu_cores=3.0, main_cpu_cores=0.9),
    )
    assert cpu_saturated(busy) is False
    two = replace(busy, machine=machine(n_local_ranks=2))
    assert cpu_saturated(two) is True
    assert two.machine is not None
    assert cpus_words(two.machine) == "4 of 8 usable CPUs (2 ranks share them)"
