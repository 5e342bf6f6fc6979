"""What a trial promises for the script's next runs: no gain that processes differ by anyway."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from loaderdoctor.estimate import Estimate
from loaderdoctor.findings.exposure import cold_ms
from loaderdoctor.instrument.wire.measured import CpuRecord
from loaderdoctor.instrument.wire.protocol import WindowDone
from loaderdoctor.tryout.ablating import shed_faults
from loaderdoctor.tryout.comparing import in_new_processes
from tests.findings.routes_facts import starved


def gain(own: float, changed: float, *, margin: float, first: float | None = None) -> Estimate:
    """What is promised for new processes; `margin` a part of each figure."""
    before = own if first is None else first
    found = in_new_processes(
        own,
        Estimate.around(changed, margin * changed, n=3),
        first=Estimate.around(before, margin * before, n=5),
    )
    assert found is not None
    return found


def test_a_gain_no_larger_than_processes_differ_by_is_not_promised() -> None:
    quiet = gain(12.0, 10.0, margin=0.01)
    assert quiet.value == pytest.approx(1.2)
    assert quiet.low < 1.0 < quiet.high
    assert gain(20.0, 10.0, margin=0.01).low > 1.5
    assert gain(20.0, 10.0, margin=0.5).low < 1.0  # noise of both sides counts


def test_a_loop_whose_pace_changed_before_the_trial_promises_less() -> None:
    """`pageable_big_copy` on an H200: 28.8 ms at first, 36.9 in the rounds of the trial, 30.8."""
    steady, changed = gain(14.0, 10.0, margin=0.05), gain(14.0, 10.0, margin=0.05, first=10.9)
    assert steady.low > 1.0 > changed.low
    assert changed.value == steady.value


def test_nothing_is_promised_of_figures_without_an_interval() -> None:
    one = Estimate(value=10.0, low=-math.inf, high=math.inf, n=1)
    known = Estimate.around(20.0, 1.0, n=3)
    assert in_new_processes(20.0, one, first=known) is None
    assert in_new_processes(20.0, known, first=one) is None
    assert in_new_processes(0.0, known, first=known) is None


def test_faults_of_a_heap_that_a_new_process_does_not_have_widen_the_promise() -> None:
    """`autoencoder`: 43.7 and 32.5 ms of CPU time in a heap that keeps memory, else 55.5 and 46."""
    changed, first = Estimate.around(32.5, 0.3, n=3), Estimate.around(43.7, 0.4, n=5)
    warm = in_new_processes(43.7, changed, first=first)
    cold = in_new_processes(43.7, changed, first=first, cold_ms=12.0)
    assert warm is not None and cold is not None
    assert (cold.value, cold.high) == (warm.value, warm.high)
    assert cold.low / warm.low == pytest.approx((55.7 / 44.5) / (43.7 / 32.5))
    assert cold.low * cold.high < warm.low * warm.high
    assert cold.low < 55.5 / 46 < cold.high


@pytest.mark.parametrize(
    ("first", "later", "shed"),
    [
        (5_500, (60, 400), (5_500.0, 60.0)),
        (5_500, (5_400, 5_600), None),  # as many as ever
        (90, (0, 0), None),  # too few to matter
        (5_500, (), None),
        (None, (60,), None),
    ],
)
def test_faults_are_shed_where_most_of_them_are_gone_later(
    first: int | None, later: tuple[int, ...], shed: tuple[float, float] | None
) -> None:
    def window(faults: int | None) -> WindowDone:
        n = faults * 10 if faults is not None else None
        cpu = CpuRecord(wall_ns=1, main_ns=1, thread_faults=n)
        return WindowDone(id=1, mode="plain", status="ok", n_steps=10, cpu=cpu)

    assert shed_faults(window(first), [window(x) for x in later]) == shed


def test_only_the_cpu_pays_for_faults_that_an_accelerator_hides() -> None:
    facts = starved(trace=None)
    assert facts.ablation is not None and facts.machine is not None
    took = replace(facts.ablation, shed_faults_per_step=5_000.0)
    known = replace(facts, ablation=took, machine=replace(facts.machine, fault_us=2.4))
    assert cold_ms(known) == pytest.approx(12.0)
    assert cold_ms(replace(known, ablation=facts.ablation)) == 0.0
    on_device = replace(facts.machine, fault_us=2.4, device_name="H100")
    assert cold_ms(replace(known, machine=on_device)) == 0.0
