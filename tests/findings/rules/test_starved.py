"""Rules about the workers: none, too few, idle ones, and pools that can't be helped by more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loaderdoctor.attribution.combine import facts_of_trace
from loaderdoctor.facts.host import EdgeFacts
from loaderdoctor.facts.trace import TraceFacts
from loaderdoctor.findings import Severity
from loaderdoctor.findings.rules.saturated import (
    cpu_saturated_workers,
    storage_bound_workers,
)
from loaderdoctor.findings.rules.starved import (
    idle_workers,
    loader_in_main_process,
    too_few_workers,
    workers_just_keep_up,
)
from tests.findings.builders import (
    ablation,
    healthy,
    line,
    loader,
    machine,
    shares,
    step,
    trace,
    with_exposed,
    workers,
)
from tests.findings.case import Case, fires, stays_silent
from tests.findings.input_facts import (
    BY_ITSELF,
    LOW,
    NO_WORKERS,
    SHORT,
    STARVED,
)
from tests.trace_facts import changed

AT_THE_EDGE = EdgeFacts(
    n_workers=4, busy_share=0.96, supply_ms=9.5, rest_ms=9.9, n_waits=80, n_long_waits=3,
    longest_wait_ms=4.0,
)  # fmt: skip

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
            "The loop makes its batches itself (num_workers=0): 7.00 of 10.0 ms a step, and "
            "nothing overlaps it.",
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
            "num_workers_limit": 7,
        },
        says=("4 workers hand out a batch every 10.0 ms on average", "8 usable CPUs can't do that"),
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
            "a trace alone without fetches": facts_of_trace(
                trace(shares=STARVED.shares, loader_events=False, fetch_kind=None)
            ),
        },
    ),
    Case(
        rule=workers_just_keep_up,
        ill=with_exposed(edge=AT_THE_EDGE),
        share=None,
        severity=Severity.LOW,
        evidence={"num_workers": 4, "worker_busy_share": 0.96, "n_long_waits": 3},
        says=("4 workers only just keep up: busy 96 % of the time", "in 3 of 80 fetches"),
        silent={
            "they do not keep up": with_exposed(input_=0.6, edge=AT_THE_EDGE),
        },
        missing={"no edge": with_exposed()},
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
)


test_a_rule_fires_with_its_figures = fires(CASES)
test_a_rule_stays_silent_on_look_alikes_and_missing_facts = stays_silent(CASES)


def test_the_hottest_line_and_the_slowest_transform_are_named() -> None:
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
    assert (
        "Hottest line: data.py:31 (__getitem__), 70 % (70 of 100 stack samples of fetching) of"
        in finding.summary
    )
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
    finding = loader_in_main_process(facts_of_trace(seen))
    assert finding is not None
    assert finding.evidence["num_workers_needed"] == 3
    assert loader_in_main_process(facts_of_trace(changed(seen, loader_events=False))) is None
    assert loader_in_main_process(facts_of_trace(changed(seen, fetch_kind="multi-process"))) is None


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


def test_a_loader_on_a_background_thread_is_not_said_to_be_overlapped_by_nothing() -> None:
    on_thread = loader(
        settings={"num_workers": 0, "prefetch_factor": None, "pin_memory": False},
        in_background=True,
    )
    waits = workers(n_workers=0, batch_ms=7.0, cpu_share=0.05, cores=())
    finding = loader_in_main_process(with_exposed(input_=0.4, loaders=(on_thread,), workers=waits))
    assert finding is not None
    assert finding.summary.startswith("One background thread of the training process")
    assert "nothing overlaps" not in finding.summary


WAITING = trace(shares=shares(input_=0.6), waits_ms=(18.0, 0.0, 0.0) * 6)


def test_workers_of_a_trace_that_the_step_waits_for_are_too_few_or_too_slow() -> None:
    finding = too_few_workers(facts_of_trace(WAITING))
    assert finding is not None
    assert finding.severity is Severity.HIGH
    assert finding.share == pytest.approx(0.6)
    assert finding.evidence["in_bursts"] is True
    assert finding.predictions[0].which == "more"
    even = too_few_workers(facts_of_trace(changed(WAITING, waits_ms=(6.0,) * 18)))
    assert even is not None and even.evidence["in_bursts"] is False


@pytest.mark.parametrize(
    "seen",
    [
        trace(shares=shares(input_=0.04)),  # hidden: a long wait that costs nothing
        changed(WAITING, fetch_kind="single-process"),
        changed(WAITING, startup_ms=(60.0, 60.0)),  # 6 of the 6 ms a step: workers start again
    ],
    ids=["hidden", "no-workers", "start-up"],
)
def test_a_pool_that_is_not_waited_for_is_not_too_small(seen: TraceFacts) -> None:
    assert too_few_workers(facts_of_trace(seen)) is None
