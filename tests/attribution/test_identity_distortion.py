"""What recording took of a step, and what a verdict from a trace makes of that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loaderdoctor.attribution.combine import facts_of_trace
from loaderdoctor.attribution.identity import host_bounds, without_profiler
from loaderdoctor.attribution.verdict import judge_trace
from loaderdoctor.facts.trace import (
    HostHotspot,
    ProfilerFacts,
    TraceFacts,
    only_workers_help,
    workers_set_the_pace,
)
from loaderdoctor.findings.exposure import input_cost
from tests.attribution.build import TraceBuilder
from tests.findings.builders import copy_facts, shares, trace
from tests.trace_facts import changed, trace_facts


def profiler(n_ops: float, least: float, likely: float, most: float) -> ProfilerFacts:
    return ProfilerFacts(
        n_ops=n_ops, n_frames=0.0, n_memory_events=0.0,
        least_ms=least, likely_ms=likely, most_ms=most,
    )  # fmt: skip


def host_of(
    share: float, recorded: ProfilerFacts, *, n_kernels: float = 70.0, mean_us: float = 80.0
) -> TraceFacts:
    """A step of 10 ms with this part of it exposed host time."""
    return trace(
        shares=shares(host=share), host_exposed_ms=10 * share, profiler=recorded,
        n_kernels_per_step=n_kernels, mean_kernel_us=mean_us,
        kernel_busy_ms=10 * (0.98 - share),
    )  # fmt: skip


def test_ops_frames_and_memory_events_are_counted_outside_fetches() -> None:
    built = TraceBuilder()
    for step in range(6):
        at = step * 1000.0
        built.step(step, at, at + 1000)
        built.fetch(at, at + 300)
        for i in range(10):
            built.op(at + 10 * i, at + 10 * i + 5)  # within the fetch
            built.op(at + 400 + 10 * i, at + 400 + 10 * i + 5)
        built.python(at + 400, at + 600, "train.py(3): step")
    seen = trace_facts(replace(built.trace(), n_memory_events=60)).host.profiler
    assert seen is not None
    assert (seen.n_ops, seen.n_frames, seen.has_stacks) == (10.0, 1.0, True)
    assert seen.n_memory_events == pytest.approx(10.0, rel=0.02)
    assert 0 < seen.least_ms < seen.likely_ms < seen.most_ms
    assert trace_facts(TraceBuilder().trace()).host.profiler is None


def test_what_recording_took_is_taken_from_the_host_and_the_rest_rescaled() -> None:
    seen = host_of(0.4, profiler(500, 1.0, 2.0, 4.0))
    plain = without_profiler(seen)
    assert plain.host == pytest.approx(2.0 / 8.0)
    assert plain.compute == pytest.approx(5.8 / 8.0)
    on_cpu = trace(
        shares=shares(input_=0.5, copy=None, host=0.1), has_accelerator=False, copies=(),
        profiler=profiler(500, 1.0, 2.0, 4.0), fetch_kind="single-process",
    )  # fmt: skip
    assert without_profiler(on_cpu).input == pytest.approx(5.0 / 8.0)  # of host and compute


def test_at_the_pace_of_workers_what_recording_took_is_waited_for_without_it() -> None:
    seen = trace(
        shares=shares(input_=0.3, host=0.4), host_exposed_ms=4.0, waits_ms=(3.0,) * 20,
        profiler=profiler(500, 1.0, 2.0, 4.0),
    )  # fmt: skip
    plain = without_profiler(seen)
    assert plain.input == pytest.approx(0.5)
    assert plain.host == pytest.approx(0.2)
    assert judge_trace(seen) == ("input", "high")
    # Receiving takes each fetch as long, and is no waiting.
    received = changed(trace(shares=shares(input_=0.03, host=0.4)), waits_ms=(0.3,) * 20)
    assert not workers_set_the_pace(received)
    assert only_workers_help(seen, input_share=0.3, copy_share=0.4)
    assert not only_workers_help(seen, input_share=0.2, copy_share=0.6)


def test_a_copy_that_no_kernel_waits_for_costs_nothing() -> None:
    built = TraceBuilder()
    for step in range(6):
        at = step * 1000.0
        built.step(step, at, at + 1000)
        built.fetch(at, at + 10)
        built.copy(at + 20, at + 30, at + 40, at + 140)  # the next kernel is launched at 600
        built.kernel(at + 600, at + 605, at + 900)
    copies = trace_facts(built.trace()).copies
    assert copies[0].exposed_ms_per_step == pytest.approx(0.12, abs=0.02)
    assert copies[0].unwaited_ms_per_step == pytest.approx(0.1, abs=0.01)


def test_idle_time_that_a_blocking_copy_leaves_is_the_copys() -> None:
    copy = copy_facts(exposed_ms_per_step=0.4, idle_after_ms_per_step=1.0)
    seen = trace(shares=shares(copy=0.04, host=0.15), host_exposed_ms=1.5, copies=(copy,))
    assert without_profiler(seen).copy == pytest.approx(0.14)
    assert judge_trace(seen) == ("copy", "moderate")


def test_a_host_verdict_that_the_profiler_may_have_made_is_moderate_or_none() -> None:
    # 45 % of 10 ms: 2.0 ms likely, 4.0 at most, are the profiler's.
    many = profiler(900, 0.9, 2.0, 4.0)
    unsure = host_of(0.45, many)
    assert judge_trace(unsure) == ("host", "uncertain")  # or of workers that crowd the CPUs
    unsure = changed(unsure, fetch_kind="single-process")
    assert judge_trace(unsure) == ("host", "moderate")
    # Launches bear it out: 900 ops take 4.5 ms at the least, the kernels 0.6 ms.
    short = changed(unsure, kernel_busy_ms=0.6, mean_kernel_us=3.0)
    assert judge_trace(short) == ("host", "high")
    # So does one long silence a step.
    silence = HostHotspot(
        name="Python between aten::to and aten::mm", ms_per_step=3.0, n_per_step=1
    )
    assert judge_trace(changed(unsure, host_hotspots=(silence,))) == ("host", "high")
    # Few ops, which even a slow host launches within the kernels' time: it computes.
    few = host_of(0.40, profiler(300, 0.6, 1.4, 2.7))
    assert host_bounds(few)[1] < 0.2
    assert judge_trace(few) == ("compute", "uncertain")
    # What is left after the most that recording can take needs nothing else.
    left = changed(host_of(0.45, profiler(50, 0.1, 0.2, 0.5)), fetch_kind="single-process")
    assert judge_trace(left) == ("host", "moderate")


def test_workers_that_keep_up_with_a_recorded_loop_may_be_too_slow_for_it_otherwise() -> None:
    """Launches bear a host verdict out, and still the loop may wait for its workers then."""
    slowed = profiler(900, 0.9, 2.0, 4.0)  # a fifth of the 10 ms
    short = changed(host_of(0.45, slowed), kernel_busy_ms=0.6, mean_kernel_us=3.0)
    assert judge_trace(short) == ("host", "moderate")
    assert judge_trace(changed(short, profiler=profiler(900, 0.9, 1.0, 4.0))) == ("host", "high")
    assert judge_trace(changed(short, fetch_kind="single-process")) == ("host", "high")


def test_recording_takes_nothing_of_a_silence_between_two_ops() -> None:
    """So where a copy drained the accelerator before one, all of it is what the copy costs."""
    copy = copy_facts(exposed_ms_per_step=0.1, idle_after_ms_per_step=1.5)
    silence = HostHotspot(
        name="Python between aten::to and aten::mm", ms_per_step=1.5, n_per_step=1
    )
    seen = trace(
        shares=shares(copy=0.01, host=0.15), host_exposed_ms=1.5, copies=(copy,),
        profiler=profiler(500, 1.0, 2.0, 4.0), host_hotspots=(silence,),
    )  # fmt: skip
    assert without_profiler(seen).copy == pytest.approx(0.16, abs=0.01)
    assert judge_trace(seen) == ("copy", "moderate")
    # Ops one after another in its place: recording is most of them.
    assert (without_profiler(changed(seen, host_hotspots=())).copy or 0.0) < 0.05


def steps_of(waits_us: tuple[float, ...]) -> TraceFacts:
    """Steps on a CPU: a wait, then 100 us of an op."""
    built, at = TraceBuilder(), 0.0
    for number, wait in enumerate(waits_us):
        end = at + wait + 100
        built.step(number, at, end)
        built.fetch(at, at + wait)
        built.op(at + wait, end)
        at = end
    return trace_facts(built.trace())


def test_three_steps_are_few_and_not_none() -> None:
    alike = steps_of((100.0, 104.0, 96.0))
    assert judge_trace(alike) == ("input", "high")
    found = alike.few_steps["input"]
    assert 0.4 < found.low < 0.5 < found.high < 0.6
    burst = steps_of((600.0, 1.0, 1.0))
    assert judge_trace(burst) == ("input", "uncertain")
    assert judge_trace(steps_of((300.0,))) == ("input", "uncertain")
    enough = steps_of((100.0,) * 5)
    assert not enough.few_steps
    assert judge_trace(enough) == ("input", "high")
    assert judge_trace(trace(n_steps=0, step_clock="window")) == ("unknown", "none")


def test_findings_of_few_steps_are_as_uncertain_as_the_verdict() -> None:
    cost = input_cost(facts_of_trace(steps_of((600.0, 1.0, 1.0))))
    assert cost is not None and cost.severity.value == "uncertain"
    sure = input_cost(facts_of_trace(steps_of((100.0, 104.0, 96.0))))
    assert sure is not None and sure.severity.value == "high"


def test_a_pinned_copy_that_waits_for_kernels_ends_the_hosts_lead() -> None:
    built = TraceBuilder()
    for step in range(6):
        at = step * 1000.0
        built.step(step, at, at + 1000)
        built.fetch(at, at + 10)
        # Kernels of the step before run until 400; the copy until 440; the next kernel at 600.
        built.copy(at + 20, at + 30, at + 400, at + 440, synced=at + 441)
        built.kernel(at + 590, at + 600, at + 1400)
    copies = trace_facts(built.trace()).copies
    assert copies[0].idle_after_ms_per_step == pytest.approx(0.159, abs=0.01)
    idle = TraceBuilder()  # the same, and the accelerator has nothing to do when it is called
    for step in range(6):
        at = step * 1000.0
        idle.step(step, at, at + 1000)
        idle.fetch(at, at + 10)
        idle.copy(at + 20, at + 30, at + 400, at + 440, synced=at + 441)
        idle.kernel(at + 590, at + 600, at + 900)
    assert trace_facts(idle.trace()).copies[0].idle_after_ms_per_step == 0.0
