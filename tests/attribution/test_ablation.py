"""Ablation: what the loader and the copies cost, signed, paired by round."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from loaderdoctor.attribution.ablation import Round, ablation_facts, page_facts
from loaderdoctor.attribution.combine import best_shares, lower_bounds
from loaderdoctor.attribution.step import step_facts
from loaderdoctor.facts.step import Hidden, Shares
from loaderdoctor.facts.trace import TraceFacts
from loaderdoctor.instrument.wire.measured import CopyRecord, CpuRecord, PageRecord
from loaderdoctor.instrument.wire.protocol import Mode, WindowDone
from tests.attribution.builders import boundary, observed, window
from tests.findings import builders


def rounds(
    plain: list[float], no_input: list[float], no_copy: list[float] | None = None
) -> list[Round]:
    return [
        Round(
            plain=window("plain", [p] * 4),
            no_input=window("no_input", [i] * 4),
            no_copy=None if c is None else window("no_copy", [c] * 4, copies=CopyRecord(n_hits=8)),
        )
        for p, i, c in zip(plain, no_input, no_copy or [None] * len(plain), strict=True)  # type: ignore[list-item]
    ]


def trace(*, accelerator: bool, shares: Shares, busy_ms: float = 0.0) -> TraceFacts:
    return builders.trace(
        n_steps=10, wall_ms=20.0, step_walls_ms=(20.0,) * 10, shares=shares,
        hidden=Hidden(input_ms=0.0, copy_ms=0.0), has_accelerator=accelerator, raw_wait_ms=1.0,
        waits_ms=(1.0,) * 10, copies=(), n_kernels_per_step=1.0,
        kernel_busy_ms=busy_ms, host_exposed_ms=1.0, communication_ms=None,
    )  # fmt: skip


def test_parts_add_up_to_the_plain_step() -> None:
    found = ablation_facts(
        rounds([10.0, 10.2, 9.8], [4.0, 4.1, 3.9], [3.0, 3.1, 2.9]),
        steps_per_epoch=None,
        boundary_ms=None,
    )
    assert found is not None and found.input_ms and found.copy_ms and found.no_copy_ms
    total = found.input_ms.value + found.copy_ms.value + found.no_copy_ms.value
    assert total == pytest.approx(found.plain_ms.value)


def test_a_loader_that_costs_nothing_may_come_out_negative() -> None:
    found = ablation_facts(
        rounds([5.0, 5.0, 5.1], [5.05, 5.1, 5.15]), steps_per_epoch=None, boundary_ms=None
    )
    assert found is not None and found.input_ms is not None
    assert found.input_ms.value < 0.0 < found.input_ms.high


def test_start_up_of_each_epoch_is_part_of_the_input() -> None:
    found = ablation_facts(rounds([2.0, 2.0], [1.5, 1.5]), steps_per_epoch=4, boundary_ms=180.0)
    assert found is not None and found.input_ms is not None
    assert found.input_ms.value == pytest.approx(0.5 + 45.0)


def test_what_the_loop_does_between_epochs_stays_without_a_loader() -> None:
    """Of 500 ms between epochs the loader takes 200; saving takes 300, ready batches or not."""
    saving = Round(
        plain=window("plain", [10.0] * 9 + [510.0], boundary_steps=(9,)),
        no_input=window("no_input", [4.0] * 10),
        no_copy=window("no_copy", [3.0] * 10, copies=CopyRecord(n_hits=8)),
    )
    found = ablation_facts(
        [saving, saving], steps_per_epoch=10, boundary_ms=500.0, own_boundary_ms=300.0
    )
    assert found is not None and found.input_ms and found.copy_ms and found.no_input_ms
    assert found.plain_ms.value == pytest.approx(10.0 + 50.0)
    assert found.no_input_ms.value == pytest.approx(4.0 + 30.0)
    assert found.input_ms.value == pytest.approx(6.0 + 20.0)
    assert found.copy_ms.value == pytest.approx(1.0)


@pytest.mark.parametrize(("first_ms", "own_ms"), [(4.0, 0.0), (104.0, 100.0), (404.0, 300.0)])
def test_what_ready_batches_take_away_at_a_boundary_was_the_loaders(
    first_ms: float, own_ms: float
) -> None:
    """Steps that starting workers slow down are its cost too, though none of its calls."""
    one = Round(
        plain=window("plain", [10.0] * 9 + [510.0], boundary_steps=(9,)),
        no_input=window("no_input", [4.0] * 9 + [first_ms], boundary_steps=(9,)),
    )
    found = ablation_facts([one, one], steps_per_epoch=10, boundary_ms=500.0, own_boundary_ms=300.0)
    assert found is not None and found.no_input_ms is not None
    assert found.no_input_ms.value == pytest.approx(4.0 + own_ms / 10)


def test_a_window_of_boundaries_alone_holds_the_loops_own_work_already() -> None:
    every = Round(
        plain=window("plain", [60.0] * 4, boundary_steps=(0, 1, 2, 3)),
        no_input=window("no_input", [40.0] * 4, boundary_steps=(0, 1, 2, 3)),
    )
    found = ablation_facts(
        [every, every], steps_per_epoch=1, boundary_ms=60.0, own_boundary_ms=30.0
    )
    assert found is not None and found.input_ms is not None
    assert found.input_ms.value == pytest.approx(20.0)


@pytest.mark.parametrize("ablated", [True, False])
def test_work_between_epochs_is_host_with_and_without_ablation(ablated: bool) -> None:
    """10 ms steps, 6 of them waits, epochs of ten: 200 ms start and 300 ms saving between them."""
    plain = window("plain", [10.0] * 9 + [510.0], boundary_steps=(9,), waits_ms=[6.0] * 10)
    step = step_facts(observed(steps_per_epoch=10, boundaries=[boundary(200.0)]), [plain])
    one = Round(plain=plain, no_input=window("no_input", [4.0] * 10))
    ablation = ablation_facts(
        [one, one], steps_per_epoch=10, boundary_ms=500.0, own_boundary_ms=300.0
    )
    inside = trace(
        accelerator=False,
        shares=Shares(compute=0.3, communication=0.0, copy=None, input=0.6, host=0.1, other=0.0),
    )
    shares = best_shares(inside, step, ablation if ablated else None)
    assert shares is not None
    assert shares.input == pytest.approx((6.0 + 20.0) / 60)
    assert shares.host == pytest.approx((1.0 + 30.0) / 60)
    assert shares.compute == pytest.approx(3.0 / 60)


def test_free_copies_that_were_not_held_are_null_with_the_reason() -> None:
    bad = Round(
        plain=window("plain", [10.0] * 4),
        no_input=window("no_input", [5.0] * 4),
        no_copy=window("no_copy", [4.0] * 4, copies=CopyRecord(n_hits=1, n_misses=9)),
    )
    found = ablation_facts([bad, bad], steps_per_epoch=None, boundary_ms=None)
    assert found is not None
    assert found.copy_ms is None and found.no_copy_ms is None
    assert found.reason


def test_best_shares_take_input_and_copy_from_the_experiment_and_compute_from_kernels() -> None:
    ablation = ablation_facts(
        rounds([10.0, 10.0], [4.0, 4.0], [3.0, 3.0]), steps_per_epoch=None, boundary_ms=None
    )
    inflated = Shares(compute=0.1, communication=0.0, copy=0.1, input=0.1, host=0.7, other=0.0)
    found = best_shares(trace(accelerator=True, shares=inflated, busy_ms=2.0), None, ablation)
    assert found is not None
    assert found.input == pytest.approx(0.6)
    assert found.copy == pytest.approx(0.1)
    assert found.compute == pytest.approx(0.2)
    assert found.host == pytest.approx(0.1)


def test_without_accelerator_the_rest_keeps_the_traces_proportions() -> None:
    ablation = ablation_facts(
        rounds([10.0, 10.0], [4.0, 4.0]), steps_per_epoch=None, boundary_ms=None
    )
    shares = Shares(compute=0.3, communication=None, copy=None, input=0.6, host=0.1, other=0.0)
    found = best_shares(trace(accelerator=False, shares=shares), None, ablation)
    assert found is not None
    assert found.copy is None
    assert found.compute == pytest.approx(0.4 * 0.75)
    assert found.host == pytest.approx(0.4 * 0.25)


@pytest.mark.parametrize(("wait_ms", "input_share"), [(0.0, 0.0), (1.0, 0.1), (6.0, 0.25)])
def test_a_starved_trace_of_a_loop_that_does_not_wait_decides_nothing(
    wait_ms: float, input_share: float
) -> None:
    """half_overlap on an H200: 26 % input in the trace, none in the plain windows."""
    plain = window("plain", [10.0] * 10, waits_ms=[wait_ms] * 10)
    step = step_facts(observed(steps_per_epoch=None), [plain])
    shares = Shares(compute=0.6, communication=0.0, copy=0.05, input=0.25, host=0.1, other=0.0)
    found = best_shares(trace(accelerator=True, shares=shares), step, None)
    assert found is not None
    assert found.input == pytest.approx(input_share)
    assert found.compute == pytest.approx(0.6 * (1 - input_share) / 0.75)
    assert sum(v for v in found.as_dict().values() if v is not None) == pytest.approx(1.0)


def test_shares_that_overshoot_are_rescaled_and_negatives_clamped() -> None:
    ablation = ablation_facts(
        rounds([10.0, 10.0], [11.0, 11.0], [9.0, 9.0]), steps_per_epoch=None, boundary_ms=None
    )
    shares = Shares(compute=1.0, communication=0.0, copy=0.0, input=0.0, host=0.0, other=0.0)
    found = best_shares(trace(accelerator=True, shares=shares, busy_ms=10.0), None, ablation)
    assert found is not None
    assert found.input == 0.0
    assert found.compute == pytest.approx(10.0 / 12.0)
    assert found.copy == pytest.approx(2.0 / 12.0)


def test_lower_bounds_come_from_the_interval() -> None:
    ablation = ablation_facts(
        rounds([10.0, 12.0, 11.0], [4.0, 4.0, 4.0]), steps_per_epoch=None, boundary_ms=None
    )
    low = lower_bounds(ablation)
    assert ablation is not None and low is not None and ablation.input_ms is not None
    assert low["input"] == pytest.approx(ablation.input_ms.low / ablation.plain_ms.value)
    assert low["input"] < 7.0 / 11.0


def test_waits_are_a_lower_bound_only_where_nothing_computes_behind_them() -> None:
    # Most of each wait may be hidden behind kernels: 63 % of the step waited, 0 exposed.
    waited = builders.step(wall_ms=100.0, clock="host", input_ms=65.0, input_low_ms=60.0)
    low = lower_bounds(None, waited)
    assert low is not None
    assert low["input"] == pytest.approx(0.6)
    assert lower_bounds(None, replace(waited, clock="device")) is None


def test_cpu_time_of_a_step_with_ready_batches_leaves_validation_out() -> None:
    one = window("no_input", [4.0] * 4)
    quiet = structs.replace(one, main_cpu_ns=12_000_000)
    validating = structs.replace(one, main_cpu_ns=90_000_000, end_ns=one.end_ns + 80_000_000)
    plain = window("plain", [10.0] * 4)
    found = ablation_facts(
        [Round(plain=plain, no_input=quiet), Round(plain=plain, no_input=validating)],
        steps_per_epoch=None,
        boundary_ms=None,
    )
    assert found is not None
    assert found.main_cpu_ms == pytest.approx(3.0)


def counted(mode: Mode, faults: int | None, pages: PageRecord | None = None) -> WindowDone:
    """A window of four steps in which the training thread took so many faults."""
    cpu = CpuRecord(wall_ns=1, main_ns=1, thread_faults=faults)
    return structs.replace(window(mode, [10.0] * 4), cpu=cpu, pages=pages)


def probed(n_batches: int, n_faults: int) -> PageRecord:
    return PageRecord(
        n_batches=n_batches,
        n_bytes=1 << 20,
        n_faults=n_faults,
        touch_ns=500_000,
        release_ns=250_000,
    )


def test_faults_are_compared_round_by_round_so_that_one_odd_round_decides_nothing() -> None:
    # In the second round the loop's own allocations fault; they did not before and do not later.
    ready = [counted("no_input", n) for n in (0, 400, 0)]
    last = counted("plain", 72, probed(8, 16))
    plain = [counted("plain", 64, probed(4, 10)), counted("plain", 64), last]
    facts = page_facts(list(zip(plain, ready, strict=True)))
    assert facts is not None
    assert facts.extra_faults_per_step == 16.0
    assert facts.faults_per_step == 16.0
    assert facts.faults_per_batch == 16  # of the record that covers most batches
    assert facts.part == 1.0
    assert facts.mapping_ms == pytest.approx(0.75)


def test_batches_that_another_thread_maps_cost_the_training_thread_nothing() -> None:
    facts = page_facts([(counted("plain", 8, probed(8, 16)), counted("no_input", 4))])
    assert facts is not None
    assert facts.part == pytest.approx(1 / 16)
    assert facts.mapping_ms == 0.0


def test_faults_that_are_not_counted_are_not_none_at_all() -> None:
    assert page_facts([(counted("plain", None, probed(8, 16)), counted("no_input", 4))]) is None
    assert page_facts([(counted("plain", 64), counted("no_input", 4))]) is None
