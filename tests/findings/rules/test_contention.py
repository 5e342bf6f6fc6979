"""Rules about loader and step in each other's way: cores, threads, the GIL, the pin thread."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from loaderdoctor.advice.prescription import candidates
from loaderdoctor.facts.loop import PageFacts
from loaderdoctor.facts.whole import Facts
from loaderdoctor.findings.find import find
from loaderdoctor.findings.model import Kind, Severity
from loaderdoctor.findings.rules.contention import (
    gil_contention,
    pin_thread_bound,
    workers_share_a_core,
)
from loaderdoctor.findings.rules.page_faults import batch_page_faults
from loaderdoctor.findings.rules.saturated import cpu_saturated_workers, overhead_bound_loader
from loaderdoctor.findings.rules.threads import thread_oversubscription
from loaderdoctor.instrument.wire.records import LoaderRecord
from loaderdoctor.settings import Settings
from tests.findings.builders import healthy, loader, machine, step, trace, with_exposed, workers
from tests.findings.case import Case, fires, stays_silent
from tests.findings.input_facts import FULL_CPU, LOW

# Something costs 2.1 ms a step, and the loop waits 0.2 ms of it.
UNSEEN = with_exposed(input_=0.21, step=step(raw_wait_ms=0.2))
# Of it 1.5 ms go to batches of 4 MB, which this thread reads first.
PAGES = PageFacts(
    batch_bytes=4_000_000,
    faults_per_batch=62,
    touch_ms=0.6,
    release_ms=0.9,
    faults_per_step=67.0,
    extra_faults_per_step=62.0,
)


def with_pages(facts: Facts = UNSEEN, **changes: Any) -> Facts:
    """The run with such batches; `workers` replaces those, the rest changes the pages."""
    assert facts.ablation is not None
    pool = changes.pop("workers", facts.workers)
    pages = replace(PAGES, **changes)
    return replace(facts, workers=pool, ablation=replace(facts.ablation, pages=pages))


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
            "mapping batches explains it": with_pages(),
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
        rule=batch_page_faults,
        ill=with_pages(replace(UNSEEN, loaders=(loader(settings={"pin_memory": False}),))),
        share=0.15,
        severity=Severity.MODERATE,
        evidence={
            "extra_page_faults_per_step": 62.0,
            "page_faults_per_batch": 62,
            "touch_ms_per_batch": 0.6,
            "release_ms_per_batch": 0.9,
            "input_ms_per_step": 2.1,
        },
        says=("waits only 0.20 ms", "batch of 3.81 MiB", "62 page faults (0.60 ms)", "pin_memory"),
        silent={
            "another thread maps them": with_pages(extra_faults_per_step=2.0),
            "small batches": with_pages(touch_ms=0.1, release_ms=0.1),
            "the loop waits for its loader": with_pages(
                with_exposed(input_=0.21, step=step(raw_wait_ms=2.0))
            ),
            "within the noise": with_pages(
                with_exposed(input_=0.15, margin=2.0, step=step(raw_wait_ms=0.2))
            ),
            "batches of the loop's own": with_pages(
                replace(UNSEEN, loaders=(loader(settings={"num_workers": 0}),))
            ),
        },
        missing={"faults": UNSEEN, "ablation": replace(UNSEEN, ablation=None)},
    ),
    Case(
        rule=pin_thread_bound,
        ill=with_exposed(input_=0.6, workers=workers(pin_ms=9.5, pin_busy_share=0.97)),
        share=0.55,
        severity=Severity.HIGH,
        evidence={"pin_ms_per_batch": 9.5, "rest_of_step_ms": 4.0, "pin_busy_share": 0.97},
        says=("the pin thread 9.50 ms", "More workers would wait for the same thread"),
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


def test_a_fight_for_the_gil_is_named_though_batches_have_to_be_mapped_too() -> None:
    facts = with_pages(touch_ms=0.1, release_ms=0.2)
    finding = gil_contention(facts)
    assert finding is not None
    assert finding.share == pytest.approx(0.184 - 0.03, rel=0.01)
    assert batch_page_faults(facts) is None


def test_tiny_samples_are_charged_with_what_mapping_their_batches_leaves() -> None:
    tiny = workers(sample_ms_quantiles=(0.01,) * 8, fetch_ms=0.64, batch_ms=0.7, collate_ms=0.06)
    facts = replace(with_exposed(input_=0.4, step=step(raw_wait_ms=1.0)), workers=tiny)
    alone, mapped = overhead_bound_loader(facts), overhead_bound_loader(with_pages(facts))
    assert alone is not None and mapped is not None
    assert alone.share == pytest.approx(0.4)
    assert mapped.share == pytest.approx(0.25)


def test_mapping_is_named_where_the_ablation_is_too_noisy_to_tell_it_from_the_wait() -> None:
    noisy = with_exposed(input_=0.21, margin=2.0, step=step(raw_wait_ms=0.2))
    assert gil_contention(noisy) is None
    finding = batch_page_faults(with_pages(noisy))
    assert finding is not None
    assert finding.share == pytest.approx(0.15)


def test_mapping_is_never_said_to_cost_more_than_the_loader_does() -> None:
    finding = batch_page_faults(with_pages(touch_ms=20.0))
    assert finding is not None
    assert finding.share == pytest.approx(0.184, rel=0.01)


def test_without_workers_is_tried_where_samples_cost_less_than_mapping_them() -> None:
    facts = with_pages(workers=workers(fetch_ms=1.0))
    found = {x.kind: x for x in find(facts)}
    tried = {c.settings: c.kinds for c in candidates(facts, found.values())}
    assert tried[Settings(num_workers=0)] == (Kind.BATCH_PAGE_FAULTS,)
    costly = with_pages(workers=workers(fetch_ms=19.0))
    assert Settings(num_workers=0) not in {c.settings for c in candidates(costly, find(costly))}


def test_unpinned_batches_for_a_gpu_are_tried_pinned() -> None:
    unpinned = replace(UNSEEN, loaders=(loader(settings={"pin_memory": False}),))
    facts = with_pages(unpinned)
    (pinned,) = [c for c in candidates(facts, find(facts)) if c.settings.pin_memory]
    assert pinned.kinds == (Kind.BATCH_PAGE_FAULTS,)
    assert pinned.predicted_step_ms == pytest.approx(8.5)


def test_a_full_cpu_is_no_fight_where_mapping_explains_the_cost() -> None:
    full = step(raw_wait_ms=0.2, worker_cpu_cores=6.5, main_cpu_cores=1.0)
    fast = workers(batch_ms=8.0)  # a pool that keeps up
    facts = replace(UNSEEN, step=full, workers=fast)
    assert cpu_saturated_workers(facts) is not None
    assert cpu_saturated_workers(with_pages(facts)) is None
    assert batch_page_faults(with_pages(facts)) is not None


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
