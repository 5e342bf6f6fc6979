"""All rules together: what is found on whole runs, in which order, and what is overruled."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loaderdoctor.attribution.combine import facts_of_trace
from loaderdoctor.findings import Finding, Kind, Severity
from loaderdoctor.findings.rules import OVERRULES, RULES, find, without_overruled
from loaderdoctor.trace import read_trace
from tests.findings.builders import (
    copy_facts,
    healthy,
    loader,
    machine,
    shares,
    step,
    trace,
    transfer,
    with_exposed,
    workers,
)
from tests.trace_facts import trace_facts

TRACES = Path(__file__).parents[2] / "traces"
TRUTH: dict[str, Any] = json.loads((TRACES / "truth.json").read_text())["cases"]


@pytest.mark.parametrize("name", TRUTH)
def test_a_trace_of_known_cost_gives_its_finding_and_no_other(name: str) -> None:
    seen = trace_facts(read_trace(TRACES / f"{name}.pt.trace.json.gz"))
    found = find(facts_of_trace(seen))
    assert [x.kind.value for x in found] == TRUTH[name]["expect_findings"]


def kinds(*findings: Finding) -> list[Kind]:
    return [x.kind for x in findings]


def test_a_healthy_run_has_no_findings() -> None:
    assert find(healthy()) == ()
    assert find(with_exposed()) == ()


def test_a_trace_without_length_has_no_findings() -> None:
    """All its steps of 0 ns, with syncs that waited: nothing to be a share of."""
    seen = trace(
        n_syncs_per_step=3.0, idle_after_sync_ms=1.0, sync_wait_ms=1.0, shares=shares(host=0.3)
    )
    assert Kind.SYNC_EVERY_STEP in kinds(*find(facts_of_trace(seen)))
    assert find(facts_of_trace(replace(seen, wall_ms=0.0))) == ()


def test_a_healthy_run_on_a_cpu_machine_has_no_findings() -> None:
    split = shares(copy=None, host=0.02)
    facts = healthy(
        shares=split,
        trace=trace(shares=split, has_accelerator=False, copies=(), mean_kernel_us=None),
        machine=machine(device_name=None, device_memory_bytes=None),
        loaders=(loader(settings={"pin_memory": False}),),
        transfers=(),
    )
    assert find(facts) == ()


def test_findings_come_worst_first() -> None:
    pageable = copy_facts(source="pageable", exposed_ms_per_step=1.0)
    split = shares(input_=0.6, copy=0.1)
    facts = with_exposed(
        input_=0.6,
        copy=0.1,
        loaders=(loader(settings={"num_workers": 0, "pin_memory": False}),),
        workers=workers(n_workers=0, batch_ms=6.0, cores=()),
        transfers=(transfer(pinned=False, non_blocking=False),),
        trace=trace(shares=split, copies=(pageable,)),
    )
    found = find(facts)
    assert kinds(*found) == [Kind.LOADER_IN_MAIN_PROCESS, Kind.PAGEABLE_COPY]
    assert [x.severity for x in found] == [Severity.HIGH, Severity.MODERATE]


def test_tiny_samples_are_not_answered_with_workers() -> None:
    tiny = workers(
        n_workers=0, batch_ms=2.6, fetch_ms=2.0, collate_ms=0.6, n_samples=20_480, cores=(),
        sample_ms_quantiles=(0.01,) * 8,
    )  # fmt: skip
    facts = with_exposed(input_=0.5, loaders=(loader(settings={"num_workers": 0}),), workers=tiny)
    assert kinds(*find(facts)) == [Kind.OVERHEAD_BOUND_LOADER]


def test_a_full_cpu_is_not_answered_with_more_workers() -> None:
    facts = with_exposed(
        input_=0.6,
        workers=workers(n_workers=4, batch_ms=40.0, idle_share=0.0),
        step=step(worker_cpu_cores=6.8, main_cpu_cores=1.0),
    )
    assert kinds(*find(facts)) == [Kind.CPU_SATURATED_WORKERS]


def test_an_iterator_per_step_is_the_only_finding_about_the_pool() -> None:
    facts = with_exposed(
        input_=0.9,
        step=step(n_iterators_created=200, boundary_ms=9.0, steps_per_epoch=3),
        workers=workers(batch_ms=400.0, idle_share=0.0, head_of_line_ms=3.0),
    )
    assert kinds(*find(facts)) == [Kind.ITERATOR_RECREATED]


def test_waiting_workers_are_too_few_and_bound_by_storage() -> None:
    facts = with_exposed(
        input_=0.6,
        workers=workers(batch_ms=40.0, idle_share=0.0, cpu_share=0.05),
        step=step(worker_cpu_cores=0.2),
    )
    assert set(kinds(*find(facts))) == {Kind.TOO_FEW_WORKERS, Kind.STORAGE_BOUND_WORKERS}


def test_an_overruled_finding_overrules_nothing() -> None:
    def found(kind: Kind, share: float) -> Finding:
        return Finding(kind=kind, severity=Severity.HIGH, share=share, summary="It is so.")

    # The iterator overrules saturation, which would have overruled too-few-workers; both fall to
    # the iterator itself. Pin-ineffective is another matter and stays.
    kept = without_overruled(
        [
            found(Kind.ITERATOR_RECREATED, 0.9),
            found(Kind.CPU_SATURATED_WORKERS, 0.9),
            found(Kind.TOO_FEW_WORKERS, 0.5),
            found(Kind.PIN_INEFFECTIVE, 0.1),
        ]
    )
    assert kinds(*kept) == [Kind.ITERATOR_RECREATED, Kind.PIN_INEFFECTIVE]


def test_a_small_stall_does_not_hide_a_small_pool() -> None:
    def found(kind: Kind, share: float) -> Finding:
        return Finding(kind=kind, severity=Severity.HIGH, share=share, summary="It is so.")

    stall, pool = found(Kind.HEAD_OF_LINE_STALL, 0.1), found(Kind.TOO_FEW_WORKERS, 0.5)
    assert kinds(*without_overruled([pool, stall])) == [pool.kind, stall.kind]
    large = found(Kind.HEAD_OF_LINE_STALL, 0.7)
    small = found(Kind.TOO_FEW_WORKERS, 0.1)
    assert kinds(*without_overruled([small, large])) == [large.kind]


def test_each_rule_is_registered_once_under_its_kind() -> None:
    names = [getattr(rule, "__name__", "") for rule in RULES]
    assert len(names) == len(set(names)) == len(Kind)
    decided = {Kind(name.replace("_", "-")) for name in names}
    for overrule in OVERRULES:
        assert {overrule.winner, *overrule.losers} <= decided
        assert overrule.winner not in overrule.losers
