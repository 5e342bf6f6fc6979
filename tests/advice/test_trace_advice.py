"""What a trace alone advises: something for each cost, the largest gain first, none for health."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loaderdoctor.advice.trace_advice import trace_advice
from loaderdoctor.attribution.combine import facts_of_trace
from loaderdoctor.attribution.verdict import judge_trace
from loaderdoctor.facts.trace import ProfilerFacts, TraceFacts
from loaderdoctor.findings import Kind
from loaderdoctor.findings.rules import find
from tests.findings.builders import copy_facts, shares, trace
from tests.trace_facts import changed

WAITING = trace(shares=shares(input_=0.6), raw_wait_ms=6.0, waits_ms=(6.0,) * 20)
PAGEABLE = copy_facts(source="pageable", exposed_ms_per_step=3.0, host_blocked_ms_per_step=3.0)


def titles(seen: TraceFacts) -> list[str]:
    facts = facts_of_trace(seen)
    return [way.title for way in trace_advice(facts, find(facts), judge_trace(seen)[0])]


def test_a_pool_that_is_too_slow_gets_more_workers_or_less_work() -> None:
    first, second = titles(WAITING)
    assert first == "Give the loader more workers"
    assert second == "Do less for each batch"
    bursts = titles(changed(WAITING, waits_ms=(18.0, 0.0, 0.0) * 6))
    assert bursts[0] == first and bursts[2].startswith("Take batches as they are ready")


def test_where_many_bytes_are_moved_fewer_of_them_come_first() -> None:
    moved = copy_facts(bytes_per_step=24e6, median_bytes=24e6, exposed_ms_per_step=0.5)
    seen = changed(WAITING, copies=(moved,))
    facts = facts_of_trace(seen)
    first, second, third = trace_advice(facts, find(facts), judge_trace(seen)[0])
    assert first.title == "Send uint8 and normalise on the device"
    assert first.bound_ms is None and first.predicted_from is None  # no trace tells how much
    assert "a trace does not tell" in (first.caution or "")
    assert second.title == "Give the loader more workers"
    assert "more of them gain nothing" in (second.caution or "")
    assert third.title == "Do less for each batch"
    assert second.bound_ms == third.bound_ms == pytest.approx(6.0)  # as of any other pool
    light = changed(WAITING, copies=(copy_facts(bytes_per_step=8e6, median_bytes=8e6),))
    assert titles(light)[0] == "Give the loader more workers"


def test_bytes_a_step_are_those_of_their_rate() -> None:
    pinned = copy_facts(bytes_per_step=24e6, median_bytes=24e6)
    pageable = copy_facts(source="pageable", bytes_per_step=96e6, median_bytes=96e6)
    still = replace(pinned, idle_after_ms_per_step=3.2, silent_after_ms_per_step=3.0)
    for seen, kind in (
        (changed(WAITING, copies=(pinned, pageable)), Kind.TOO_FEW_WORKERS),
        (
            trace(shares=shares(host=0.4), host_exposed_ms=4.0, copies=(still, pageable)),
            Kind.PIN_THREAD_BOUND,
        ),
    ):
        (summary,) = (x.summary for x in find(facts_of_trace(seen)) if x.kind is kind)
        assert "22.9 MiB a step, 2.4 GB/s" in summary  # of 10 ms


def test_silence_behind_copies_is_neither_copying_nor_the_loops_own_for_sure() -> None:
    still = copy_facts(
        bytes_per_step=24e6, median_bytes=24e6, exposed_ms_per_step=0.5,
        host_blocked_ms_per_step=0.5, idle_after_ms_per_step=3.2, silent_after_ms_per_step=3.0,
    )  # fmt: skip
    seen = trace(shares=shares(copy=0.05, host=0.32), host_exposed_ms=3.2, copies=(still,))
    assert judge_trace(seen) == ("input", "uncertain")
    assert titles(seen)[0] == "Send uint8 and normalise on the device"
    waits = changed(seen, copies=(replace(still, silent_after_ms_per_step=0.0),))
    assert judge_trace(waits)[0] == "copy"
    assert titles(waits)[0] == "Copy the batches without waiting"


@pytest.mark.parametrize(
    ("seen", "first"),
    [
        (changed(WAITING, fetch_kind="single-process"), "Let worker processes make the batches"),
        (
            changed(WAITING, startup_ms=(60.0, 60.0), n_iterators_created=2),
            "Keep the workers from epoch to epoch",
        ),
        (changed(WAITING, fetch_kind=None), "Give the loader more workers"),
        (
            trace(shares=shares(copy=0.3), copies=(PAGEABLE,)),
            "Pin the batches, and copy them without waiting",
        ),
        (
            trace(
                shares=shares(copy=0.3),
                copies=(copy_facts(exposed_ms_per_step=3.0, host_blocked_ms_per_step=2.0),),
            ),
            "Copy the batches without waiting",
        ),
        (
            trace(shares=shares(copy=0.3), copies=(copy_facts(exposed_ms_per_step=3.0),)),
            "Copy the next batch on a stream of its own",
        ),
        (
            trace(
                shares=shares(copy=0.3),
                copies=(copy_facts(source="unknown", exposed_ms_per_step=3.0),),
            ),
            "Pin the batches, and copy them without waiting",
        ),
    ],
    ids=["no-workers", "start-up", "unknown", "pageable", "blocking", "same-stream", "source"],
)
def test_each_cost_has_its_first_advice(seen: TraceFacts, first: str) -> None:
    assert titles(seen)[0] == first


def test_what_gains_most_at_best_comes_first() -> None:
    small = copy_facts(
        source="pageable", n_per_step=100.0, median_bytes=4096.0, bytes_per_step=409_600.0,
        exposed_ms_per_step=1.0, op_host_ms_per_step=2.0,
    )  # fmt: skip
    seen = trace(
        shares=shares(input_=0.06, copy=0.1, host=0.3), host_exposed_ms=3.0, copies=(small,),
        waits_ms=(0.6,) * 20,
    )  # fmt: skip
    assert titles(seen)[:2] == [
        "Copy one packed tensor instead of many small ones",
        "Pin the batches, and copy them without waiting",
    ]
    facts = facts_of_trace(seen)
    bounds = [way.bound_ms or 0.0 for way in trace_advice(facts, find(facts), "copy")]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] == pytest.approx(3.0 + 0.6)  # fewer tensors are received for less, too


def test_fewer_bytes_are_advised_for_large_copies_only() -> None:
    large = trace(shares=shares(copy=0.3), copies=(PAGEABLE,))
    assert "Send uint8 and normalise on the device" in titles(large)
    labels = copy_facts(
        source="pageable", exposed_ms_per_step=3.0, median_bytes=512.0, bytes_per_step=1024.0
    )
    small = trace(shares=shares(copy=0.3), copies=(labels,))
    assert "Send uint8 and normalise on the device" not in titles(small)


def test_a_healthy_trace_gets_no_advice() -> None:
    assert titles(trace()) == []
    assert titles(trace(shares=shares(host=0.5), host_exposed_ms=5.0)) == []


def test_what_may_be_of_crowded_cpus_gets_less_work_and_fewer_workers_to_try() -> None:
    seen = trace(shares=shares(host=0.45), host_exposed_ms=4.5)
    slowed = changed(seen, profiler=recorded(2.0))
    assert judge_trace(slowed) == ("host", "uncertain")
    facts = facts_of_trace(slowed)
    less, fewer = trace_advice(facts, find(facts), "host", "uncertain")
    assert (less.title, less.axis) == ("Do less for each batch", None)
    assert (fewer.title, fewer.axis) == ("Give the loader fewer workers", "num_workers")
    for way in (less, fewer):  # what it would gain, nothing tells
        assert way.bound_ms is None and "crowd the CPUs" in (way.caution or "")
    assert trace_advice(facts, find(facts), "host", "moderate") == ()
    alone = facts_of_trace(changed(slowed, fetch_kind="single-process"))
    assert trace_advice(alone, find(alone), "host", "uncertain") == ()


def test_while_the_loop_waits_for_its_workers_nothing_else_gains() -> None:
    seen = trace(
        shares=shares(input_=0.3, copy=0.3), copies=(PAGEABLE,), waits_ms=(3.0,) * 20,
        raw_wait_ms=3.0,
    )  # fmt: skip
    facts = facts_of_trace(seen)
    ways = trace_advice(facts, find(facts), "input")
    assert ways[0].title == "Give the loader more workers"
    pinning = next(way for way in ways if way.axis == "pin_memory")
    assert pinning.bound_ms == 0.0
    assert "Gains nothing while the loop waits for its workers" in str(pinning.caution)


def recorded(n_ms: float) -> ProfilerFacts:
    """Of which recording may have taken so much."""
    return ProfilerFacts(
        n_ops=400.0, n_frames=0.0, n_memory_events=0.0, least_ms=0.5 * n_ms, likely_ms=0.7 * n_ms,
        most_ms=n_ms,
    )  # fmt: skip


def bound_of(seen: TraceFacts, axis: str) -> float | None:
    facts = facts_of_trace(seen)
    ways = trace_advice(facts, find(facts), judge_trace(seen)[0])
    return next(way.bound_ms for way in ways if way.axis == axis)


def test_at_best_no_step_is_recorded() -> None:
    launching = changed(WAITING, shares=shares(input_=0.6, host=0.3), host_exposed_ms=3.0)
    slowed = replace(launching, host=replace(launching.host, profiler=recorded(2.0)))
    assert bound_of(launching, "num_workers") == pytest.approx(6.0)
    assert bound_of(slowed, "num_workers") == pytest.approx(8.0)
    # A device that computes is not slowed by it, but for what it waits for the host.
    busy = replace(WAITING, host=replace(WAITING.host, profiler=recorded(2.0)))
    assert bound_of(busy, "num_workers") == pytest.approx(6.2)


def test_other_copies_may_end_the_silence_behind_them() -> None:
    blocking = copy_facts(exposed_ms_per_step=3.0, host_blocked_ms_per_step=2.0)
    seen = trace(shares=shares(copy=0.3, host=0.2), copies=(blocking,))
    still = changed(seen, copies=(replace(blocking, silent_after_ms_per_step=1.5),))
    before, after = (bound_of(x, "non_blocking") for x in (seen, still))
    assert before is not None and after == pytest.approx(before + 1.5)


def test_workers_that_share_the_cpus_with_the_computing_have_no_bound() -> None:
    on_cpu = changed(WAITING, has_accelerator=False)
    assert titles(on_cpu)[0] == "Give the loader more workers"
    assert bound_of(on_cpu, "num_workers") is None
    alone = changed(on_cpu, fetch_kind="single-process")
    assert bound_of(alone, "num_workers") is not None
