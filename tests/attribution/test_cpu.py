"""Recorded CPU use -> what others took, what waited, and what a report must warn of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from loaderdoctor.attribution.cpu import cpu_facts, machine_notes
from loaderdoctor.attribution.verdict import judge_run
from loaderdoctor.facts import Facts
from loaderdoctor.facts.loop import CpuFacts
from loaderdoctor.instrument.wire.measured import CpuRecord
from loaderdoctor.instrument.wire.protocol import WindowDone
from tests.findings.builders import healthy, machine, step, with_exposed

S = 10**9


def window(**record: Any) -> WindowDone:
    known = {"wall_ns": S, "main_ns": S, "tree_ns": S, "n_cpus": 2, **record}
    return WindowDone(id=1, mode="plain", status="ok", cpu=CpuRecord(**known))


def others(*windows: WindowDone, usable: float | None = 2.0) -> float | None:
    facts = cpu_facts(windows, usable)
    assert facts is not None
    return facts.other_cores


def test_what_is_not_of_the_run_is_of_others() -> None:
    assert others(window(busy_ns=1.5 * S)) == pytest.approx(0.5)
    assert others(window(busy_ns=S)) == 0.0


def test_noise_of_single_windows_cancels_before_anything_is_cut_off() -> None:
    """Ticks are sampled: one window may read less than the run itself used."""
    assert others(window(busy_ns=0.9 * S), window(busy_ns=1.3 * S)) == pytest.approx(0.1)


def test_under_a_quota_others_have_the_rest_of_the_machine_for_free() -> None:
    big = {"n_cpus": 64, "tree_ns": 2 * S}
    assert others(window(busy_ns=42 * S, **big), usable=2.0) == 0.0
    assert others(window(busy_ns=63.5 * S, **big), usable=2.0) == pytest.approx(0.0)
    assert others(window(busy_ns=64 * S, **{**big, "tree_ns": S}), usable=2.0) == pytest.approx(1.0)


def test_programs_of_the_same_group_eat_from_the_quota() -> None:
    eaten = window(busy_ns=3 * S, group_ns=1.8 * S, n_cpus=64)
    assert others(eaten, usable=2.0) == pytest.approx(0.8)


@pytest.mark.parametrize(
    "record",
    [{"busy_ns": None}, {"busy_ns": 0.1 * S}, {"busy_ns": S, "tree_ns": None}, {"n_cpus": None}],
    ids=["not told", "of another machine", "run not known", "CPUs not known"],
)
def test_what_is_not_told_is_not_zero(record: dict[str, Any]) -> None:
    assert others(window(**{"busy_ns": 2 * S, **record})) is None
    assert cpu_facts([WindowDone(id=1, mode="plain", status="ok")], 2.0) is None


def test_waiting_and_throttling_are_shares_of_the_windows_that_recorded_them() -> None:
    facts = cpu_facts(
        [
            window(waited_ns=1.5 * S, thread_waited_ns=0.7 * S, n_periods=10, n_throttled=4),
            window(waited_ns=0.5 * S, thread_waited_ns=0.1 * S, n_periods=10, n_throttled=2),
        ],
        2.0,
    )
    assert facts is not None
    assert facts.waiting_threads == pytest.approx(1.0)
    assert facts.train_wait_share == pytest.approx(0.4)
    assert facts.throttled_share == pytest.approx(0.3)
    assert cpu_facts([window()], 2.0) == CpuFacts(
        other_cores=None, waiting_threads=None, train_wait_share=None, throttled_share=None
    )


def beside(other_cores: float | None) -> Facts:
    cpu = CpuFacts(
        other_cores=other_cores, waiting_threads=None, train_wait_share=None, throttled_share=None
    )
    return healthy(step=step(cpu=cpu), machine=machine(usable_cpus=8.0))


def test_a_busy_machine_is_told_with_the_figure() -> None:
    ((kind, text),) = machine_notes(beside(2.4))
    assert kind == "busy-machine"
    assert "Other programs used 2.4 of the 8 usable CPUs (30 %)" in text


@pytest.mark.parametrize("other_cores", [None, 0.0, 1.5], ids=["not known", "none", "below 20 %"])
def test_a_machine_that_is_not_busy_needs_no_warning(other_cores: float | None) -> None:
    assert machine_notes(beside(other_cores)) == ()


def test_steps_that_were_shorter_under_the_profiler_are_an_alarm() -> None:
    """A newcomer's run: 0.44x as long, input-bound by 65 % with an interval of nearly as much."""
    facts = healthy(profiler_overhead=0.44, step=step(windows_ms=(170.0, 330.0)))
    ((kind, text),) = machine_notes(facts)
    assert kind == "not-steady"
    assert "0.44x" in text and "170.0 to 330.0 ms" in text and "Measure again" in text


@pytest.mark.parametrize("overhead", [None, 0.92, 1.0, 2.3])
def test_what_profiling_costs_is_no_alarm(overhead: float | None) -> None:
    assert machine_notes(healthy(profiler_overhead=overhead)) == ()


def test_what_rests_on_the_trace_is_uncertain_where_the_speed_changed() -> None:
    slow_host = replace(with_exposed(host=0.4), shares_low=None)
    assert judge_run(slow_host) == ("host", "high")
    assert judge_run(replace(slow_host, profiler_overhead=0.5)) == ("host", "uncertain")


@pytest.mark.parametrize(
    ("input_", "margin", "before", "after"),
    [
        (0.6, 1.0, "high", "high"),  # by ablation alone at least half of the step
        (0.6, 4.5, "moderate", "moderate"),  # at least 15 %
        (0.1, 0.2, "moderate", "moderate"),
        (0.1, 0.65, "moderate", "uncertain"),
        (0.0, 0.1, "none", "none"),
    ],
)
def test_paired_windows_bear_a_verdict_as_far_as_their_interval_does(
    input_: float, margin: float, before: str, after: str
) -> None:
    facts = with_exposed(input_=input_, margin=margin)
    assert judge_run(facts)[1] == before
    assert judge_run(replace(facts, profiler_overhead=0.5))[1] == after
