"""Rules about getting batches: who makes them, how many, and what it costs the step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loaderdoctor.facts import LineSpot
from loaderdoctor.findings.batch_making import (
    collate_bound,
    dataset_format_bound,
    head_of_line_stall,
    sampler_bound,
)
from loaderdoctor.findings.contention import (
    gil_contention,
    pin_thread_bound,
    thread_oversubscription,
    workers_share_a_core,
)
from loaderdoctor.findings.hot import where
from loaderdoctor.findings.model import Severity
from loaderdoctor.findings.saturated import (
    cpu_saturated_workers,
    overhead_bound_loader,
    storage_bound_workers,
)
from loaderdoctor.findings.startup import iterator_recreated, worker_startup_each_epoch
from loaderdoctor.findings.starved import idle_workers, loader_in_main_process, too_few_workers
from loaderdoctor.findings.storage import cold_storage, many_small_files, memory_short
from loaderdoctor.instrument.protocol import LoaderRecord
from tests.findings.builders import (
    ablation,
    healthy,
    line,
    loader,
    machine,
    step,
    trace,
    trace_only,
    with_exposed,
    workers,
)
from tests.findings.case import Case, check_fires, check_silent

NO_WORKERS = (loader(settings={"num_workers": 0}),)
BY_ITSELF = workers(n_workers=0, batch_ms=7.0, fetch_ms=6.5, collate_ms=0.5, cores=())

# A pool that makes a batch of 40 ms in 4 workers: one each 10 ms, the rest of the step takes 4 ms.
SHORT = workers(batch_ms=40.0, fetch_ms=39.0, idle_share=0.0)
STARVED = with_exposed(
    input_=0.6, workers=SHORT, step=step(worker_cpu_cores=3.8, main_cpu_cores=0.8)
)
SLEEPING = replace(SHORT, cpu_share=0.08)
FULL_CPU = step(worker_cpu_cores=6.5, main_cpu_cores=1.0)
# Something costs 2.1 ms a step, and the loop waits 0.2 ms of it.
UNSEEN = with_exposed(input_=0.21, step=step(raw_wait_ms=0.2))
LOW = "no exposed input"

CASES = (
    Case(
        rule=loader_in_main_process,
        ill=with_exposed(input_=0.7, loaders=NO_WORKERS, workers=BY_ITSELF),
        share=0.7,
        severity=Severity.HIGH,
        evidence={
            "num_workers": 0,
            "input_ms_per_step": 7.0,
            "step_ms": 10.0,
            "batch_ms": 7.0,
            "rest_of_step_ms": 3.0,
            "num_workers_needed": 3,
            "num_workers_limit": 8,
        },
        says=(
            "The loop makes its batches itself (num_workers=0): 7.0 of 10.0 ms a step, and nothing "
            "overlaps it.",
            "3 workers would keep up",
        ),
        silent={
            "workers fetch": with_exposed(input_=0.7),
            LOW: healthy(loaders=NO_WORKERS, workers=BY_ITSELF),
            "a background thread fetches": with_exposed(
                input_=0.7, loaders=(loader(settings={"num_workers": 0, "background": "host"}),)
            ),
            "within the noise": with_exposed(input_=0.1, margin=1.5, loaders=NO_WORKERS),
            "batches too cheap to explain it": with_exposed(
                input_=0.7,
                loaders=NO_WORKERS,
                workers=replace(BY_ITSELF, batch_ms=0.1),
                step=step(raw_wait_ms=0.12),
            ),
        },
        missing={
            "shares": healthy(loaders=NO_WORKERS, shares=None, trace=None),
            "steps": healthy(loaders=NO_WORKERS, step=None, trace=None),
            "who fetches": with_exposed(
                input_=0.7, loaders=(), workers=None, trace=trace(fetch_kind=None)
            ),
        },
    ),
    Case(
        rule=too_few_workers,
        ill=STARVED,
        share=0.6,
        severity=Severity.HIGH,
        evidence={
            "num_workers": 4,
            "batch_ms": 40.0,
            "supply_ms_per_batch": 10.0,
            "rest_of_step_ms": 4.0,
            "num_workers_needed": 10,
            "num_workers_limit": 8,
        },
        says=("4 workers hand out a batch every 10.0 ms on average", "10 workers would keep up"),
        silent={
            "the pool keeps up": with_exposed(input_=0.6, workers=workers(batch_ms=12.0)),
            "no CPU for more": with_exposed(
                input_=0.6, workers=SHORT, machine=machine(usable_cpus=4.0)
            ),
            "workers have time": with_exposed(input_=0.6, workers=replace(SHORT, idle_share=0.6)),
            LOW: healthy(workers=SHORT),
        },
        missing={
            "workers": with_exposed(input_=0.6, workers=None),
            "shares": replace(STARVED, shares=None, trace=None),
            "a trace alone": trace_only(trace(shares=STARVED.shares)),
        },
    ),
    Case(
        rule=cpu_saturated_workers,
        ill=with_exposed(input_=0.6, workers=SHORT, step=FULL_CPU),
        share=0.6,
        severity=Severity.HIGH,
        evidence={"cpu_cores_used": 7.5, "usable_cpus": 8.0, "num_workers": 4},
        says=("7.5 of 8 usable CPUs are busy", "more workers can't help"),
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
    Case(
        rule=overhead_bound_loader,
        ill=with_exposed(
            input_=0.5,
            loaders=NO_WORKERS,
            workers=workers(
                n_workers=0,
                batch_ms=2.6,
                fetch_ms=2.0,
                collate_ms=0.6,
                n_samples=20_480,
                sample_ms_quantiles=(0.008, 0.009, 0.01, 0.011, 0.012, 0.02, 0.03, 0.2),
            ),
        ),
        share=0.5,
        severity=Severity.HIGH,
        evidence={"sample_us": 11.0, "batch_ms": 2.6, "num_workers": 0},
        says=("A sample takes 11 µs", "more workers would not help"),
        silent={
            "samples of some cost": with_exposed(input_=0.5, workers=BY_ITSELF),
            "batches too cheap to explain it": with_exposed(
                input_=0.5,
                workers=workers(
                    batch_ms=0.1, fetch_ms=0.1, queue_put_ms=0.05, sample_ms_quantiles=(0.01,) * 8
                ),
            ),
            "a rare slow sample": with_exposed(
                input_=0.5,
                workers=workers(
                    fetch_ms=16.0,
                    sample_ms_quantiles=(0.01, 0.01, 0.02, 0.02, 0.02, 0.02, 0.03, 120.0),
                ),
            ),
            "costly collating": with_exposed(
                input_=0.5,
                workers=workers(
                    fetch_ms=0.6, collate_ms=15.0, sample_ms_quantiles=(0.01,) * 8, sampler_ms=0.0
                ),
            ),
            "a stream": with_exposed(
                input_=0.5,
                loaders=(loader(kind="iterable"),),
                workers=workers(fetch_ms=0.6, sample_ms_quantiles=(0.01,) * 8),
            ),
        },
        missing={
            "workers": with_exposed(input_=0.5, workers=None),
            "sample times": with_exposed(
                input_=0.5, workers=workers(sample_ms_quantiles=None, n_samples=0)
            ),
            "loader": with_exposed(input_=0.5, loaders=()),
        },
    ),
    Case(
        rule=worker_startup_each_epoch,
        ill=with_exposed(input_=0.55, step=step(boundary_ms=40.0, steps_per_epoch=8)),
        share=0.5,
        severity=Severity.HIGH,
        evidence={"boundary_ms": 40.0, "startup_ms_per_step": 5.0, "steps_per_epoch": 8},
        says=("Starting 4 workers anew costs 40.0 ms each epoch of 8 steps, 50 % of the run",),
        silent={
            "long epochs": with_exposed(input_=0.55, step=step(boundary_ms=40.0)),
            "persistent workers": with_exposed(
                input_=0.55,
                step=step(boundary_ms=40.0, steps_per_epoch=8),
                loaders=(loader(settings={"persistent_workers": True}),),
            ),
            LOW: healthy(step=step(boundary_ms=40.0, steps_per_epoch=8)),
        },
        missing={
            "boundary": with_exposed(input_=0.55, step=step(boundary_ms=None)),
            "epoch length": with_exposed(input_=0.55, step=step(steps_per_epoch=None)),
        },
    ),
    Case(
        rule=iterator_recreated,
        ill=with_exposed(input_=0.9, step=step(n_iterators_created=200)),
        share=0.9,
        severity=Severity.HIGH,
        evidence={"n_iterators_created": 200, "n_steps": 200},
        says=("a new iterator 200 times in 200 steps", "4 workers are started for it"),
        silent={
            "once an epoch": with_exposed(input_=0.9, step=step(n_iterators_created=2)),
            "an epoch is one step": with_exposed(
                input_=0.9,
                step=step(n_iterators_created=200),
                loaders=(loader(steps_per_epoch=1),),
            ),
            LOW: healthy(step=step(n_iterators_created=200)),
        },
        missing={
            "steps and loader events": replace(
                with_exposed(input_=0.9), step=None, trace=trace(loader_events=False)
            ),
        },
    ),
    Case(
        rule=head_of_line_stall,
        ill=with_exposed(
            input_=0.6,
            workers=workers(
                head_of_line_ms=5.0,
                sample_ms_quantiles=(0.2, 0.2, 0.2, 0.3, 0.4, 9.0, 20.0, 21.0),
            ),
        ),
        share=0.5,
        severity=Severity.HIGH,
        evidence={"head_of_line_ms_per_step": 5.0, "p99_sample_ms": 20.0},
        says=("For 5.0 of 10.0 ms a step", "0.30 ms at the median, 20.0 ms at the 99th"),
        silent={
            "no batch waits": with_exposed(input_=0.6),
            "any order already": with_exposed(
                input_=0.6,
                workers=workers(head_of_line_ms=5.0),
                loaders=(loader(settings={"in_order": False}),),
            ),
            "one worker": with_exposed(
                input_=0.6, workers=workers(n_workers=1, head_of_line_ms=5.0)
            ),
            LOW: healthy(workers=workers(head_of_line_ms=5.0)),
        },
        missing={
            "stall": with_exposed(input_=0.6, workers=workers(head_of_line_ms=None)),
            "workers": with_exposed(input_=0.6, workers=None),
        },
    ),
    Case(
        rule=sampler_bound,
        ill=with_exposed(input_=0.45, workers=workers(sampler_ms=4.0)),
        share=0.4,
        severity=Severity.HIGH,
        evidence={"sampler_ms_per_batch": 4.0, "sampler": "RandomSampler"},
        says=("RandomSampler takes 4.0 ms per batch", "workers can't take that over"),
        silent={
            "a fast sampler": with_exposed(input_=0.45),
            LOW: healthy(workers=workers(sampler_ms=4.0)),
        },
        missing={"sampler": with_exposed(input_=0.45, workers=workers(sampler_ms=None))},
    ),
    Case(
        rule=collate_bound,
        ill=with_exposed(
            input_=0.5,
            loaders=(loader(collate="pad_and_tokenise"),),
            workers=workers(batch_ms=40.0, collate_ms=30.0, lines=(line(function="pad"),)),
        ),
        share=0.375,
        severity=Severity.HIGH,
        evidence={"collate_share_of_batch": 0.75, "line": "data.py:30 (pad)"},
        says=("pad_and_tokenise takes 30.0 ms of the 40.0 ms", "75 % of it", "in the workers"),
        silent={
            "fetching costs more": with_exposed(input_=0.5, workers=workers(batch_ms=40.0)),
            "the pool keeps up": with_exposed(
                input_=0.5, workers=workers(batch_ms=2.0, collate_ms=1.5)
            ),
            LOW: healthy(workers=workers(batch_ms=40.0, collate_ms=30.0)),
        },
        missing={"collate": with_exposed(input_=0.5, workers=workers(collate_ms=None))},
    ),
    Case(
        rule=dataset_format_bound,
        ill=with_exposed(
            input_=0.5,
            workers=workers(
                batch_ms=40.0,
                lines=(line(code="return torch.tensor(row)", share=0.7), line(share=0.2)),
            ),
        ),
        share=0.35,
        severity=Severity.HIGH,
        evidence={"conversion_share_of_batch": 0.7, "line_code": "return torch.tensor(row)"},
        says=("70 % of making a batch is converting formats", "data.py:30 (__getitem__)"),
        silent={
            "other hot lines": with_exposed(
                input_=0.5, workers=workers(batch_ms=40.0, lines=(line(),))
            ),
            "a small part": with_exposed(
                input_=0.5,
                workers=workers(batch_ms=40.0, lines=(line(code="torch.tensor(y)", share=0.1),)),
            ),
            "the pool keeps up": with_exposed(
                input_=0.5, workers=workers(lines=(line(code="torch.tensor(x)"),))
            ),
            LOW: healthy(workers=workers(batch_ms=40.0, lines=(line(code="torch.tensor(x)"),))),
        },
        missing={"lines": with_exposed(input_=0.5, workers=workers(batch_ms=40.0))},
    ),
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
        rule=idle_workers,
        ill=with_exposed(
            input_=0.6,
            loaders=(loader(kind="iterable"),),
            workers=workers(n_idle_workers=3),
        ),
        share=0.6,
        severity=Severity.HIGH,
        evidence={"num_workers": 4, "n_idle_workers": 3},
        says=("3 of 4 workers made no batch (its stream has fewer shards than workers)",),
        silent={
            "one is enough": with_exposed(
                input_=0.6,
                loaders=(loader(kind="iterable"),),
                workers=workers(n_idle_workers=3, batch_ms=3.0),
            ),
            "all work": with_exposed(input_=0.6, loaders=(loader(kind="iterable"),)),
            "a window shorter than a round": with_exposed(
                input_=0.6, workers=workers(n_idle_workers=2, n_batches=3)
            ),
            LOW: healthy(workers=workers(n_idle_workers=3)),
        },
        missing={"workers": with_exposed(input_=0.6, workers=None)},
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
        says=("the pin thread 9.5 ms", "more workers would not help"),
        silent={
            "a pin thread with time": with_exposed(input_=0.6),
            "busy, but quick enough": with_exposed(
                input_=0.6, workers=workers(pin_ms=3.0, pin_busy_share=0.95)
            ),
            LOW: healthy(workers=workers(pin_ms=9.5, pin_busy_share=0.97)),
        },
        missing={"pin thread": with_exposed(input_=0.6, workers=workers(pin_ms=None))},
    ),
    Case(
        rule=cold_storage,
        ill=with_exposed(input_=0.3, workers=workers(first_touch_ratio=5.0)),
        share=0.3,
        severity=Severity.HIGH,
        evidence={"first_touch_ratio": 5.0, "cold_ms_per_batch": 25.0, "rest_of_step_ms": 7.0},
        says=("5.0x as long the first time",),
        silent={
            "as fast the first time": with_exposed(input_=0.3),
            "cold, yet fast enough": healthy(workers=workers(batch_ms=4.0, first_touch_ratio=5.0)),
            "microseconds in memory": with_exposed(
                input_=0.3,
                workers=workers(
                    first_touch_ratio=5.0,
                    sample_ms_quantiles=(0.001, 0.002, 0.002, 0.002, 0.003, 0.003, 0.004, 0.05),
                ),
            ),
        },
        missing={
            "a second pass": with_exposed(input_=0.3, workers=workers(first_touch_ratio=None))
        },
    ),
    Case(
        rule=many_small_files,
        ill=with_exposed(
            input_=0.5,
            workers=workers(
                batch_ms=40.0,
                cpu_share=0.2,
                lines=(line(code="with open(path, 'rb') as f:", share=0.8),),
            ),
        ),
        share=0.4,
        severity=Severity.HIGH,
        evidence={"open_share_of_batch": 0.8, "cpu_share": 0.2},
        says=("80 % of making a batch is opening and reading a file per sample",),
        silent={
            "decoding, not reading": with_exposed(
                input_=0.5,
                workers=workers(batch_ms=40.0, lines=(line(code="Image.open(p)", share=0.8),)),
            ),
            "the pool keeps up": with_exposed(
                input_=0.5, workers=workers(cpu_share=0.2, lines=(line(code="open(p)"),))
            ),
            "no file is opened": with_exposed(
                input_=0.5,
                workers=workers(batch_ms=40.0, cpu_share=0.2, lines=(line(code="time.sleep(1)"),)),
            ),
            LOW: healthy(
                workers=workers(batch_ms=40.0, cpu_share=0.2, lines=(line(code="open(p)"),))
            ),
        },
        missing={
            "lines": with_exposed(input_=0.5, workers=workers(batch_ms=40.0, cpu_share=0.2)),
            "CPU times": with_exposed(
                input_=0.5,
                workers=workers(batch_ms=40.0, cpu_share=None, lines=(line(code="open(p)"),)),
            ),
        },
    ),
    Case(
        rule=memory_short,
        ill=with_exposed(
            input_=0.3,
            machine=machine(memory_available_bytes=300 * 1024**2, swap_used_bytes=2 * 1024**3),
        ),
        share=0.3,
        severity=Severity.HIGH,
        evidence={"in_flight_bytes": 77_074_432, "swap_used_bytes": 2 * 1024**3},
        says=("Only 315 MB of host memory", "2.1 GB in swap", "pinned batches"),
        silent={
            "memory to spare": with_exposed(input_=0.3),
            "swap left over from before": with_exposed(
                input_=0.3, machine=machine(swap_used_bytes=2 * 1024**3)
            ),
            "nothing held": with_exposed(
                input_=0.3,
                machine=machine(memory_available_bytes=300 * 1024**2),
                loaders=(loader(settings={"num_workers": 0, "pin_memory": False}),),
            ),
            "short, but nothing waits": healthy(
                machine=machine(memory_available_bytes=300 * 1024**2)
            ),
        },
        missing={
            "memory": with_exposed(input_=0.3, machine=machine(memory_available_bytes=None)),
            "machine": with_exposed(input_=0.3, machine=None),
        },
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_a_rule_fires_with_its_figures(case: Case) -> None:
    check_fires(case)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_a_rule_stays_silent_on_look_alikes_and_missing_facts(case: Case) -> None:
    check_silent(case)


def test_the_hot_line_and_the_slowest_transform_are_named() -> None:
    facts = with_exposed(
        input_=0.7,
        loaders=NO_WORKERS,
        workers=replace(
            BY_ITSELF,
            lines=(line(share=0.2), line(line=31, share=0.7)),
            transforms=(("Resize", 0.9), ("ToTensor", 0.1)),
        ),
    )
    finding = loader_in_main_process(facts)
    assert finding is not None
    assert "Hottest line: data.py:31 (__getitem__), 70 % of making a batch." in finding.summary
    assert finding.evidence["slowest_transform"] == "Resize"
    assert finding.evidence["slowest_transform_ms_per_sample"] == 0.9


def test_one_worker_is_spoken_of_in_the_singular() -> None:
    one = workers(n_workers=1, batch_ms=10.0, idle_share=0.0, cpu_share=0.05, cores=((0, 1),))
    facts = with_exposed(
        input_=0.6,
        workers=one,
        loaders=(loader(settings={"num_workers": 1}),),
        step=step(worker_cpu_cores=0.1),
    )
    few, waiting = too_few_workers(facts), storage_bound_workers(facts)
    assert few is not None
    assert few.summary.startswith("1 worker hands out")
    assert waiting is not None
    assert waiting.summary.startswith("The 1 worker spends")


def test_the_loader_of_a_trace_alone_is_told_by_its_fetches() -> None:
    shares = with_exposed(input_=0.7).shares
    assert shares is not None
    seen = trace(shares=shares, fetch_kind="single-process", raw_wait_ms=7.0)
    finding = loader_in_main_process(trace_only(seen))
    assert finding is not None
    assert finding.evidence["num_workers_needed"] == 3
    assert loader_in_main_process(trace_only(replace(seen, loader_events=False))) is None
    assert loader_in_main_process(trace_only(replace(seen, fetch_kind="multi-process"))) is None


def test_startup_in_a_trace_must_be_most_of_its_input_time() -> None:
    shares = with_exposed(input_=0.6).shares
    assert shares is not None
    seen = trace(shares=shares, n_iterators_created=2, startup_ms=(50.0, 50.0))
    finding = worker_startup_each_epoch(trace_only(seen))
    assert finding is not None
    assert finding.share == pytest.approx(0.5)
    assert worker_startup_each_epoch(trace_only(replace(seen, startup_ms=(20.0,)))) is None
    assert worker_startup_each_epoch(trace_only(replace(seen, n_iterators_created=20))) is None


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
    assert cpu_saturated_workers(facts) is not None
    assert gil_contention(facts) is None


def test_a_pool_that_leaves_cpus_unused_may_grow_past_their_number() -> None:
    pool = workers(n_workers=8, batch_ms=80.0, idle_share=0.1)
    facts = with_exposed(
        input_=0.6,
        workers=pool,
        loaders=(loader(settings={"num_workers": 8}),),
        step=step(worker_cpu_cores=4.0, main_cpu_cores=0.4),
    )
    finding = too_few_workers(facts)
    assert finding is not None
    assert finding.evidence["num_workers_limit"] == 12
    assert cpu_saturated_workers(facts) is None


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
    assert "torch.set_num_threads(1)" in finding.summary
    assert gil_contention(facts) is None


def test_a_high_cost_without_a_sure_interval_is_uncertain() -> None:
    facts = with_exposed(input_=0.5, margin=6.0, loaders=NO_WORKERS, workers=BY_ITSELF)
    finding = loader_in_main_process(facts)
    assert finding is not None
    assert finding.severity is Severity.UNCERTAIN


def test_one_round_of_ablation_gives_no_sure_finding() -> None:
    one_round = replace(ablation(input_ms=5.0), n_rounds=1)
    facts = replace(
        with_exposed(input_=0.5, loaders=NO_WORKERS, workers=BY_ITSELF),
        ablation=one_round,
        shares_low={"input": float("-inf")},
    )
    finding = loader_in_main_process(facts)
    assert finding is not None
    assert finding.severity is Severity.UNCERTAIN


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        ("/home/me/mnist.py", "mnist.py"),
        ("/v/site-packages/torchvision/datasets/mnist.py", "torchvision/datasets/mnist.py"),
        ("C:\\env\\Lib\\site-packages\\PIL\\Image.py", "PIL/Image.py"),
        ("/v/site-packages/loaderdoctor/_recipes/mnist/train.py", "train.py"),
    ],
)  # fmt: skip
def test_a_package_s_line_does_not_pass_for_the_users(file: str, shown: str) -> None:
    spot = LineSpot(file=file, line=7, function="f", code="", share=1.0)
    assert where(spot) == f"{shown}:7 (f)"
