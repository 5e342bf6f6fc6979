"""Memory mapped page by page: batches of workers, and what the loop frees and fetches again."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from loaderdoctor.advice.prescription import candidates
from loaderdoctor.attribution.ablation import synthetic_faults
from loaderdoctor.facts import Facts
from loaderdoctor.facts.loop import CpuFacts
from loaderdoctor.findings import Kind, Severity
from loaderdoctor.findings.rules import find
from loaderdoctor.findings.rules.contention import (
    allocator_page_faults,
    batch_page_faults,
    gil_contention,
)
from loaderdoctor.instrument.wire.measured import CpuRecord
from loaderdoctor.instrument.wire.protocol import WindowDone
from loaderdoctor.report.words.summary import verdict_sentence
from loaderdoctor.report.words.verdict import headline
from loaderdoctor.settings import Settings
from tests.findings.builders import loader, machine, step, with_exposed, workers
from tests.findings.case import Case, fires, stays_silent
from tests.findings.input_facts import UNSEEN, with_pages
from tests.report import samples

GLIBC = {"allocator": "glibc", "fault_us": 2.5, "device_name": None}


def faulting(faults: float | None = 600.0, **machines: Any) -> Facts:
    """A step of 10 ms on a CPU, of which page faults take 1.5."""
    known = with_exposed(input_=0.1, machine=machine(**{**GLIBC, **machines}))
    assert known.ablation is not None
    assert known.trace is not None
    ablation = replace(known.ablation, synthetic_faults_per_step=faults)
    on_cpu = replace(known.trace, has_accelerator=False)
    return replace(known, ablation=ablation, trace=on_cpu)


CASES = (
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
        rule=allocator_page_faults,
        ill=faulting(),
        share=0.15,
        severity=Severity.MODERATE,
        evidence={"page_faults_per_step": 600.0, "fault_us": 2.5, "cost_ms_per_step": 1.5},
        says=("600 page faults a step", "saves 1.50 of 10.0 ms a step at most", "not tried"),
        silent={
            "too few to matter": faulting(190.0),
            "few, however dear": faulting(99.0, fault_us=20.0),
            "told to keep it already": faulting(allocator="glibc-tuned"),
            "another malloc": faulting(allocator="other"),
        },
        missing={
            "no ablation": replace(faulting(), ablation=None),
            "faults not counted": faulting(None),
            "a fault not timed": faulting(fault_us=None),
            "malloc unknown": faulting(allocator=None),
            "machine unknown": replace(faulting(), machine=None),
        },
    ),
)
test_a_fault_of_memory_fetched_again_is_told_with_its_cost = fires(CASES)
test_nothing_is_told_where_memory_is_kept_or_unknown = stays_silent(CASES)


@pytest.mark.parametrize(
    ("n", "severity"),
    [(600.0, Severity.MODERATE), (1600.0, Severity.MODERATE), (2400.0, Severity.HIGH)],
)
def test_its_severity_follows_the_least_that_keeping_the_memory_was_seen_to_save(
    n: float, severity: Severity
) -> None:
    """39 % of a step by its faults, and 14 % when its memory was kept."""
    finding = allocator_page_faults(faulting(n))
    assert finding is not None and finding.severity is severity


def test_with_an_accelerator_it_costs_no_more_than_the_host_is_waited_for() -> None:
    hosted = faulting(device_name="H100")
    assert hosted.shares is not None
    for host, share in ((0.08, 0.08), (0.3, 0.15), (0.02, None)):
        rest = 1.0 - (hosted.shares.input or 0.0) - host
        parts = replace(hosted.shares, host=host, compute=rest, copy=0.0)
        finding = allocator_page_faults(replace(hosted, shares=parts))
        assert (finding.share if finding else None) == (share and pytest.approx(share))


def test_a_thread_that_waits_for_a_cpu_takes_as_much_longer_for_its_faults() -> None:
    alone = faulting()
    cpu = CpuFacts(other_cores=1.0, waiting_threads=0.5, train_wait_share=0.5, throttled_share=None)
    assert alone.step is not None
    busy = allocator_page_faults(replace(alone, step=replace(alone.step, cpu=cpu)))
    assert busy is not None
    assert busy.share == pytest.approx(0.3)


def test_only_faults_that_every_round_has_count() -> None:
    def ready(faults: int | None) -> WindowDone:
        cpu = CpuRecord(wall_ns=1, main_ns=1, thread_faults=faults)
        return WindowDone(id=1, mode="no_input", status="ok", n_steps=10, cpu=cpu)

    assert synthetic_faults([ready(9000), ready(6000), ready(None)]) == 600.0
    assert synthetic_faults([ready(None)]) is None
    assert synthetic_faults([]) is None


@pytest.mark.skipif(sys.platform != "linux", reason="page faults are counted on Linux")
def test_this_process_knows_its_malloc_and_what_a_fault_costs() -> None:
    # One process, since each loads torch.
    code = (
        "import os; from loaderdoctor.instrument.system.memory import allocator, fault_us\n"
        "print(allocator(), fault_us())\n"
        "for name, told in (('MALLOC_TRIM_THRESHOLD_', '1000000000'),\n"
        "                   ('GLIBC_TUNABLES', 'glibc.malloc.trim_threshold=1000000000')):\n"
        "    os.environ[name] = told; print(allocator()); del os.environ[name]"
    )
    kept = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=kept, capture_output=True, text=True, check=True
    )
    name, us, *tuned = done.stdout.split()
    assert name == "glibc"
    assert 0.05 < float(us) < 500.0  # some 2 µs; sandboxes that emulate the kernel take far longer
    assert tuned == ["glibc-tuned", "glibc-tuned"]


def test_the_first_sentence_and_the_headline_do_not_call_such_a_step_healthy() -> None:
    facts = faulting()
    finding = allocator_page_faults(facts)
    assert finding is not None
    said = verdict_sentence("compute", "none", facts=facts, findings=[finding])
    assert said.startswith("Nothing is wrong with the loader.")
    assert finding.summary in said
    report = samples.built(
        facts=facts, target="train.py", bound="compute", severity="none", findings=(finding,)
    )
    assert headline(report) == ("Compute-bound", "its memory is fetched again each step")


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
    # 1.5 of 10 ms, by the lower end of the step and the upper of its input.
    assert pinned.predicted_step_ms == pytest.approx(8.33, abs=0.01)
