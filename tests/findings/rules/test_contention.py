"""Rules about loader and step in each other's way: cores, the GIL, the pin thread."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loaderdoctor.attribution.combine import facts_of_trace
from loaderdoctor.attribution.verdict import judge_trace
from loaderdoctor.facts.trace import ProfilerFacts
from loaderdoctor.findings import Kind, Severity
from loaderdoctor.findings.rules import find
from loaderdoctor.findings.rules.contention import (
    batch_page_faults,
    gil_contention,
    pin_thread_bound,
    workers_share_a_core,
)
from loaderdoctor.findings.rules.saturated import cpu_saturated_workers, overhead_bound_loader
from loaderdoctor.instrument.wire.records import LoaderRecord
from tests.findings.builders import (
    copy_facts,
    healthy,
    loader,
    machine,
    shares,
    step,
    trace,
    with_exposed,
    workers,
)
from tests.findings.case import Case, fires, stays_silent
from tests.findings.input_facts import LOW, UNSEEN, with_pages
from tests.trace_facts import changed

STILL = copy_facts(bytes_per_step=24e6, idle_after_ms_per_step=3.2, silent_after_ms_per_step=3.0)
FEW_BYTES = replace(STILL, bytes_per_step=2e6)
LAUNCHING = replace(STILL, silent_after_ms_per_step=1.1)
SILENT = trace(wall_ms=10.0, shares=shares(host=0.35), host_exposed_ms=3.5, copies=(STILL,))
WITH_STACKS = ProfilerFacts(
    n_ops=100.0, n_frames=400.0, n_memory_events=0.0, least_ms=0.1, likely_ms=0.2, most_ms=0.3
)

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
        rule=gil_contention,
        ill=UNSEEN,
        share=0.184,  # 2.1 ms less the 0.2 ms waited and 0.06 ms of start-up
        severity=Severity.MODERATE,
        evidence={"raw_wait_ms_per_step": 0.2, "input_ms_per_step": 1.84},
        says=("waits only 0.20 ms", "the pin-memory thread takes the interpreter, or memory"),
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
            "a step that it keeps waiting half of the time": with_exposed(
                input_=0.6, workers=workers(pin_ms=5.0, pin_busy_share=0.5)
            ),
            LOW: healthy(workers=workers(pin_ms=9.5, pin_busy_share=0.97)),
        },
        missing={"pin thread": with_exposed(input_=0.6, workers=workers(pin_ms=None))},
    ),
    Case(
        rule=pin_thread_bound,
        ill=facts_of_trace(SILENT),
        share=0.3,
        severity=Severity.UNCERTAIN,
        evidence={"silent_ms_per_step": 3.0, "bytes_per_step": 24e6, "gb_per_s": 2.4},
        says=(
            "stands still for 3.00 ms of 10.0 ms a step",
            "Python of its own, or a wait",
            "2.4 GB/s",
        ),
        silent={
            "few bytes": facts_of_trace(changed(SILENT, copies=(FEW_BYTES,))),
            "no worker processes": facts_of_trace(changed(SILENT, fetch_kind="single-process")),
            "most of it launching": facts_of_trace(changed(SILENT, copies=(LAUNCHING,))),
            "stacks, which tell it": facts_of_trace(
                replace(SILENT, host=replace(SILENT.host, profiler=WITH_STACKS))
            ),
        },
        missing={"copies": facts_of_trace(changed(SILENT, copies=()))},
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
    assert alone.share == pytest.approx(0.394)  # without the epoch's start
    assert mapped.share == pytest.approx(0.244)


def test_cheap_samples_are_not_to_blame_where_batches_wait_to_be_pinned() -> None:
    """As 64 MB a batch of tiny samples on an H200: 17.5 of 18.0 ms are pinning it."""
    tiny = workers(
        sample_ms_quantiles=(0.026,) * 8, fetch_ms=0.1, batch_ms=0.16, collate_ms=0.05,
        queue_put_ms=0.3, pin_ms=9.7, pin_busy_share=0.88, idle_share=0.99,
    )  # fmt: skip
    facts = with_exposed(input_=0.49, workers=tiny)
    assert overhead_bound_loader(facts) is not None
    pinned = pin_thread_bound(facts)
    assert pinned is not None and pinned.share == pytest.approx(0.46)
    assert next(f.kind for f in find(facts)) is Kind.PIN_THREAD_BOUND
    assert Kind.OVERHEAD_BOUND_LOADER not in {f.kind for f in find(facts)}
    little = replace(facts, workers=replace(tiny, pin_ms=5.3, pin_busy_share=0.5))
    assert Kind.OVERHEAD_BOUND_LOADER in {f.kind for f in find(little)}


def test_a_full_cpu_is_no_fight_where_mapping_explains_the_cost() -> None:
    full = step(raw_wait_ms=0.2, worker_cpu_cores=6.5, main_cpu_cores=1.0)
    fast = workers(batch_ms=8.0)  # a pool that keeps up
    facts = replace(UNSEEN, step=full, workers=fast)
    assert cpu_saturated_workers(facts) is not None
    assert cpu_saturated_workers(with_pages(facts)) is None
    assert batch_page_faults(with_pages(facts)) is not None


@pytest.mark.parametrize(
    ("host", "silent_ms", "expected"),
    [
        (0.35, 3.0, ("input", "uncertain")),
        # A tenth of the step does not make a wait of three fifths.
        (0.6, 1.1, ("host", "high")),
        (0.25, 1.1, ("host", "moderate")),
        (0.6, 4.5, ("input", "uncertain")),
    ],
)
def test_silence_makes_a_host_verdict_an_input_one_only_where_little_host_is_left(
    host: float, silent_ms: float, expected: tuple[str, str]
) -> None:
    copy = replace(STILL, idle_after_ms_per_step=silent_ms, silent_after_ms_per_step=silent_ms)
    seen = changed(SILENT, shares=shares(host=host), host_exposed_ms=10.0 * host, copies=(copy,))
    assert judge_trace(seen) == expected
