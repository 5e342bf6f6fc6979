"""Memory fetched anew in each step: when it is a finding, and what is measured for it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from loaderdoctor.attribution.ablation import synthetic_faults
from loaderdoctor.facts.loop import CpuFacts
from loaderdoctor.facts.whole import Facts
from loaderdoctor.findings.model import Severity
from loaderdoctor.findings.rules.page_faults import allocator_page_faults
from loaderdoctor.instrument.wire.protocol import WindowDone
from loaderdoctor.instrument.wire.records import CpuRecord
from loaderdoctor.report.words.headline import headline
from loaderdoctor.report.words.summary import verdict_sentence
from tests.findings.builders import machine, with_exposed
from tests.findings.case import Case, fires, stays_silent
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
        rule=allocator_page_faults,
        ill=faulting(),
        share=0.15,
        severity=Severity.MODERATE,
        evidence={"page_faults_per_step": 600.0, "fault_us": 2.5, "cost_ms_per_step": 1.5},
        says=("600 page faults a step", "predicted to save 1.50 of 10.0 ms", "not tried"),
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
test_a_fault_of_memory_fetched_anew_is_told_with_its_cost = fires(CASES)
test_nothing_is_told_where_memory_is_kept_or_unknown = stays_silent(CASES)


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
    code = (
        "from loaderdoctor.instrument.system.allocator import allocator, fault_us;"
        "print(allocator(), fault_us())"
    )

    def told(**environment: str) -> tuple[str, float]:
        import os

        kept = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**kept, **environment}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        name, us = done.stdout.split()
        return name, float(us)

    name, us = told()
    assert name == "glibc"
    assert 0.05 < us < 500.0  # some 2 µs; sandboxes that emulate the kernel take far longer
    assert told(MALLOC_TRIM_THRESHOLD_="1000000000")[0] == "glibc-tuned"
    assert told(GLIBC_TUNABLES="glibc.malloc.trim_threshold=1000000000")[0] == "glibc-tuned"


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
    assert headline(report) == ("Compute-bound", "its memory comes anew each step")
