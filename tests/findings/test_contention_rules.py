"""Rules about loader and step in each other's way: cores, threads, the GIL, the pin thread."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loaderdoctor.findings.contention import (
    gil_contention,
    pin_thread_bound,
    thread_oversubscription,
    workers_share_a_core,
)
from loaderdoctor.findings.model import Severity
from loaderdoctor.instrument.protocol import LoaderRecord
from tests.findings.builders import healthy, loader, machine, step, trace, with_exposed, workers
from tests.findings.case import Case, fires, stays_silent
from tests.findings.input_facts import FULL_CPU, LOW

# Something costs 2.1 ms a step, and the loop waits 0.2 ms of it.
UNSEEN = with_exposed(input_=0.21, step=step(raw_wait_ms=0.2))

CASES = (
    Case(
        rule=workers_share_a_core,
        ill=with_exposed(input_=0.6, workers=workers(cores=((0,),) * 4)),
        share=0.6,
        severity=Severity.HIGH,
        evidence={"num_workers": 4, "n_cores_shared": 1, "usable_cpus": 8.0},
        says=("4 workers share 1 CPU (0)", "though the job may use 8"),
        silent={
            "free to move": with_exposed(input_=0.6),
            "fast enough all the same": with_exposed(
                input_=0.6, workers=workers(batch_ms=8.0, cores=((0,),) * 4)
            ),
            "each its own": with_exposed(
                input_=0.6, workers=workers(cores=((0,), (1,), (2,), (3,)))
            ),
            "a job of two CPUs": with_exposed(
                input_=0.6, workers=workers(cores=((0, 1),) * 4), machine=machine(usable_cpus=2.0)
            ),
            LOW: healthy(workers=workers(cores=((0,),) * 4)),
        },
        missing={"affinities": with_exposed(input_=0.6, workers=workers(cores=()))},
    ),
    Case(
        rule=thread_oversubscription,
        ill=with_exposed(input_=0.6, workers=workers(n_threads=8, cpu_share=2.5)),
        share=0.6,
        severity=Severity.HIGH,
        evidence={"n_threads": 8, "num_workers": 4, "usable_cpus": 8.0},
        says=("4 workers of 8 library threads each compete for 8 usable CPUs",),
        silent={
            "CPUs are free": with_exposed(input_=0.6, workers=workers(n_threads=8)),
            "one thread each": with_exposed(input_=0.6, step=FULL_CPU),
            LOW: healthy(workers=workers(n_threads=8, cpu_share=2.5)),
        },
        missing={
            "machine": with_exposed(
                input_=0.6, workers=workers(n_threads=8, cpu_share=2.5), machine=None
            ),
            "threads": with_exposed(input_=0.6, workers=workers(n_threads=None, cpu_share=2.5)),
        },
    ),
    Case(
        rule=gil_contention,
        ill=UNSEEN,
        share=0.184,  # 2.1 ms less the 0.2 ms waited and 0.06 ms of start-up
        severity=Severity.MODERATE,
        evidence={"raw_wait_ms_per_step": 0.2, "input_ms_per_step": 1.84},
        says=("waits only 0.20 ms", "the pin-memory thread takes the interpreter"),
        silent={
            "the loop waits for it": with_exposed(input_=0.21, step=step(raw_wait_ms=2.0)),
            "within the noise": with_exposed(input_=0.21, margin=2.0, step=step(raw_wait_ms=0.2)),
            "the CPU is full": replace(
                UNSEEN, step=step(raw_wait_ms=0.2, worker_cpu_cores=6.5, main_cpu_cores=1.0)
            ),
            "no thread of the loader": replace(
                UNSEEN, loaders=(loader(settings={"pin_memory": False}),)
            ),
            "a background thread that sleeps": with_exposed(
                input_=0.6,
                loaders=(loader(settings={"num_workers": 0, "background": "host"}),),
                workers=workers(n_workers=0, cpu_share=0.05),
            ),
        },
        missing={
            "ablation": replace(UNSEEN, ablation=None),
            "waits": replace(UNSEEN, step=step(raw_wait_ms=None)),
        },
    ),
    Case(
        rule=pin_thread_bound,
        ill=with_exposed(input_=0.6, workers=workers(pin_ms=9.5, pin_busy_share=0.97)),
        share=0.55,
        severity=Severity.HIGH,
        evidence={"pin_ms_per_batch": 9.5, "rest_of_step_ms": 4.0, "pin_busy_share": 0.97},
        says=("the pin thread 9.5 ms", "More workers would wait for the same thread"),
        silent={
            "a pin thread with time": with_exposed(input_=0.6),
            "busy, but quick enough": with_exposed(
                input_=0.6, workers=workers(pin_ms=3.0, pin_busy_share=0.95)
            ),
            LOW: healthy(workers=workers(pin_ms=9.5, pin_busy_share=0.97)),
        },
        missing={"pin thread": with_exposed(input_=0.6, workers=workers(pin_ms=None))},
    ),
)


test_a_rule_fires_with_its_figures = fires(CASES)
test_a_rule_stays_silent_on_look_alikes_and_missing_facts = stays_silent(CASES)


@pytest.mark.parametrize(
    "own",
    [
        loader(settings={"num_workers": 0, "background": "host"}),
        loader(settings={"num_workers": 0, "background": None}, in_background=True),
    ],
    ids=["a setting tried", "the script's own"],
)
def test_a_background_thread_that_burns_cpu_contends_for_the_gil(own: LoaderRecord) -> None:
    facts = with_exposed(
        input_=0.6,
        loaders=(own,),
        workers=workers(n_workers=0, cpu_share=0.98),
    )
    finding = gil_contention(facts)
    assert finding is not None
    assert "burns CPU for 98 %" in finding.summary


def test_starved_thread_pools_on_a_full_cpu_are_oversubscription() -> None:
    busy = workers(n_threads=8, cpu_share=0.3)
    assert thread_oversubscription(with_exposed(input_=0.6, workers=busy, step=FULL_CPU))


def test_the_steps_own_threads_fight_the_workers_on_a_cpu_machine() -> None:
    facts = with_exposed(
        input_=0.4,
        step=step(raw_wait_ms=0.2, worker_cpu_cores=1.0, main_cpu_cores=0.9),
        trace=trace(has_accelerator=False),
        machine=machine(usable_cpus=2.0, n_threads=2, device_name=None),
    )
    finding = thread_oversubscription(facts)
    assert finding is not None
    assert "torch.set_num_threads(1)" in finding.predictions[0].sentence
    assert "own 2 threads and 4 workers compete for CPUs: 2 are usable" in finding.summary
    assert gil_contention(facts) is None
