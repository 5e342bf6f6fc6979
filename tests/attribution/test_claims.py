"""What is claimed of a difference: within the step, and no more than was seen to carry it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaderdoctor.attribution.claims import CALL_MS, by_mechanisms, claimed, denied
from loaderdoctor.attribution.combine import best_shares
from loaderdoctor.estimate import Estimate
from loaderdoctor.facts.loop import AblationFacts, Mechanisms
from loaderdoctor.facts.step import shown_severity
from loaderdoctor.instrument.wire.records import TransferRecord
from tests.findings import builders
from tests.findings.builders import estimate

NOTHING = estimate(0.0, 0.2)


def seen(wait_ms: Estimate | None = None, **changes: Any) -> Mechanisms:
    """A loop on a CPU that waits half a millisecond, and pays nothing else."""
    quiet = Mechanisms(
        wait_ms=wait_ms or estimate(0.5, 0.1),
        exposed=True,
        run_queue_ms=NOTHING,
        cpu_ms=NOTHING,
        interpreter_ms=NOTHING,
        work_ms=estimate(30.0, 1.0),
    )
    return replace(quiet, **changes)


def ablation(
    input_: Estimate,
    copy: Estimate | None = None,
    mechanisms: Mechanisms | None = None,
    step_ms: float = 100.0,
) -> AblationFacts:
    without = estimate(step_ms - input_.value, input_.margin)
    return AblationFacts(
        plain_ms=estimate(step_ms, 1.0),
        no_input_ms=without,
        no_copy_ms=estimate(without.value - copy.value, 1.0) if copy is not None else None,
        input_ms=input_,
        copy_ms=copy,
        n_rounds=5,
        mechanisms=mechanisms,
    )


def test_the_wait_bounds_a_difference_that_nothing_else_carries() -> None:
    """One worker idle 98 %, batches received in 5 ms: few rounds say 12.7 of 125 ms, 1 to 24."""
    claim = by_mechanisms(estimate(12.7, 11.5), seen(estimate(5.0, 0.5)))
    assert claim.value == pytest.approx(5.0, abs=0.1)
    assert 4.5 <= claim.low <= claim.value <= claim.high <= 7.0


def test_a_difference_far_beyond_what_was_seen_is_noise_by_its_excess() -> None:
    claim = by_mechanisms(estimate(40.0, 5.0), seen())
    assert claim.value == pytest.approx(0.5)
    assert claim.high < 2.0


def test_an_impossible_difference_leaves_what_the_loop_was_seen_waiting() -> None:
    claim = by_mechanisms(estimate(-26.0, 5.0), seen(estimate(4.9, 0.3)))
    assert [claim.value, claim.low, claim.high] == pytest.approx([4.9, 4.6, 5.2])


def test_a_fight_over_the_interpreter_that_no_wait_shows_stays_found() -> None:
    """The loop waits 0.2 ms and loses 2.1 of 5.4: the pin-memory thread runs 1.3 ms a batch."""
    fight = seen(estimate(0.2, 0.05), exposed=False, interpreter_ms=estimate(2.6, 0.3))
    difference = estimate(2.1, 0.3)
    assert by_mechanisms(difference, fight) == difference


def test_workers_that_take_the_cpu_from_the_loop_are_seen_in_the_run_queue() -> None:
    fight = seen(estimate(0.2, 0.05), run_queue_ms=estimate(20.0, 4.0))
    claim = by_mechanisms(estimate(15.0, 5.0), fight)
    assert claim.value == 15.0
    assert claim.low == pytest.approx(10.0)


def test_a_worker_that_hardly_runs_puts_nobody_in_the_run_queue() -> None:
    """A neighbour came while plain windows ran: 20 ms more in the queue, not by the loader."""
    idle = seen(run_queue_ms=estimate(20.0, 4.0), work_ms=estimate(0.8, 0.1))
    claim = by_mechanisms(estimate(22.0, 5.0), idle)
    assert claim.value == pytest.approx(0.5 + 0.8)
    assert claim.high < 2.0


def test_mapping_batches_counts_where_the_noise_of_cpu_time_hides_it() -> None:
    faults = seen(mapping_ms=5.5, cpu_ms=estimate(4.0, 9.0))
    claim = by_mechanisms(estimate(6.0, 1.0), faults)
    assert claim.value == 6.0
    assert claim.low == pytest.approx(5.0)


def test_what_its_own_noise_hides_carries_nothing_but_leaves_the_upper_end_open() -> None:
    unclear = seen(run_queue_ms=estimate(3.0, 8.0))
    claim = by_mechanisms(estimate(12.0, 10.0), unclear)
    assert claim.value < 1.0
    assert claim.high == pytest.approx(0.6 + 11.0 + 2 * 0.2)


@pytest.mark.parametrize("missing", ["run_queue_ms", "cpu_ms", "interpreter_ms", "work_ms"])
def test_without_one_mechanism_the_others_bound_what_is_shown_not_what_may_be(missing: str) -> None:
    difference = estimate(40.0, 5.0)
    gone: dict[str, Any] = {missing: None}
    claim = by_mechanisms(difference, replace(seen(mapping_ms=2.0), **gone))
    assert [claim.value, claim.low, claim.high] == pytest.approx([40.0, 2.5, 45.0])


def test_where_no_fetch_was_recorded_nothing_bounds_a_difference() -> None:
    difference = estimate(12.7, 11.5)
    assert by_mechanisms(difference, None) == difference
    assert by_mechanisms(difference, replace(seen(), wait_ms=None)) == difference


@pytest.mark.parametrize("exposed", [True, False])
def test_the_wait_of_a_single_window_bounds_what_is_shown(exposed: bool) -> None:
    rounds = estimate(40.0, 5.0, n=1)
    for waited_ms, low in ((50.0, 35.0), (0.5, 0.5)):
        of_one = Estimate.around(waited_ms, math.inf, n=1)
        claim = by_mechanisms(rounds, seen(of_one, exposed=exposed, run_queue_ms=None))
        assert claim == replace(rounds, low=low)


@pytest.mark.parametrize("work_ms", [estimate(450.0, 20.0), None])
@pytest.mark.parametrize("n_rounds", [1, 5])
def test_busy_workers_do_not_bear_a_difference_that_nothing_was_seen_to_carry(
    work_ms: Estimate | None, n_rounds: int
) -> None:
    """On other cores they work much longer than the loop waits: 0.35 of 1,749 ms."""
    pause = Estimate(value=1320.0, low=970.0, high=1670.0, n=n_rounds)
    known = seen(estimate(0.35, 0.1), exposed=False, run_queue_ms=None, work_ms=work_ms)
    claim = claimed(ablation(pause, mechanisms=known, step_ms=1749.0))
    assert claim is not None and claim.input_ms is not None
    share = claim.input_ms.scaled(1 / 1749.0)
    assert shown_severity(share.value, share.low) == "uncertain"
    assert claim.input_ms.high == 1670.0


@pytest.mark.parametrize("exposed", [True, False])
def test_a_wait_that_was_seen_bears_the_difference_however_it_varied(exposed: bool) -> None:
    """Few windows, each of another epoch: a wait of 107 ms, -45 to 259; 125 ± 39 of 190 by rounds.

    The windows that waited are those that differ.
    """
    rounds = estimate(125.5, 39.2, n=1)
    known = seen(estimate(107.0, 152.0), exposed=exposed, run_queue_ms=None, work_ms=None)
    claim = by_mechanisms(rounds, known)
    assert claim.low == pytest.approx(86.3)


def test_page_faults_that_were_measured_stay_after_one_round() -> None:
    rounds = estimate(10.0, 10.5, n=1)
    claim = by_mechanisms(rounds, seen(mapping_ms=9.0, run_queue_ms=None))
    assert claim.value == pytest.approx(9.5, abs=0.1)
    assert claim.low == pytest.approx(9.4)


def test_what_was_seen_is_weighed_in_once_where_others_use_the_cpus() -> None:
    """The wait is without what they kept a CPU from: it is the loader's as any other."""
    rounds = estimate(14.0, 8.0, n=1)
    known = seen(estimate(10.0, 4.0), run_queue_ms=None, parted=True)
    alone, beside = ablation(rounds, mechanisms=known), ablation(rounds, mechanisms=known)
    claims = claimed(alone), claimed(replace(beside, neighbours_ms=5.0))
    assert claims[0] is not None and claims[1] is not None
    assert claims[0].input_ms == claims[1].input_ms


def test_what_the_loop_waits_is_known_after_one_round() -> None:
    """Steps of 190 ms that wait 140, in 20 s: one round, whose interval holds everything."""
    wide = Estimate(value=140.0, low=-208.0, high=490.0, n=1)
    known = seen(estimate(141.0, 0.4), run_queue_ms=None)
    claim = by_mechanisms(wide, known)
    assert [claim.value, claim.low, claim.high] == pytest.approx([141.0, 140.6, 490.0])
    no_wait = by_mechanisms(wide, seen(estimate(2.0, 0.5), run_queue_ms=None))
    assert [no_wait.value, no_wait.low, no_wait.high] == pytest.approx([2.0, 1.5, 490.0], rel=0.01)
    surely = by_mechanisms(estimate(40.0, 5.0), seen(estimate(2.0, 0.5), run_queue_ms=None))
    assert [surely.value, surely.low, surely.high] == [40.0, 2.0, 45.0]
    assert by_mechanisms(wide, known, contended=True) == wide
    assert by_mechanisms(wide, replace(known, exposed=False, work_ms=None)) == wide
    denied = Estimate(value=10.0, low=-5.0, high=20.0, n=1)
    assert by_mechanisms(denied, known) == denied
    # A loop that waits for nothing is as unsure as before.
    quiet = by_mechanisms(estimate(5.0, 40.0), seen(estimate(0.2, 0.1), run_queue_ms=None))
    assert quiet.low == pytest.approx(0.1)


@pytest.mark.parametrize("run_queue_ms", [NOTHING, None])
def test_rounds_below_the_wait_by_noise_alone_leave_some_of_it(
    run_queue_ms: Estimate | None,
) -> None:
    """Read in this process beside busy programs: two rounds, and 1.6 ms at least are reading."""
    rounds, waited = estimate(-3.8, 5.1, n=2), estimate(3.5, 1.4)
    claim = by_mechanisms(rounds, seen(waited, run_queue_ms=run_queue_ms))
    assert [claim.value, claim.low, claim.high] == pytest.approx([2.1, -8.9, 2.1])


@pytest.mark.parametrize("run_queue_ms", [NOTHING, None])
@pytest.mark.parametrize(
    "rounds", [estimate(0.4, 0.7), estimate(5.0, 1.0)], ids=["hidden", "half hidden"]
)
def test_rounds_that_deny_a_wait_stand(rounds: Estimate, run_queue_ms: Estimate | None) -> None:
    """A thread of the user's own fetches ahead: what it waits the loop does not."""
    claim = by_mechanisms(rounds, seen(estimate(14.8, 0.6), run_queue_ms=run_queue_ms))
    assert rounds.value <= claim.value <= claim.high == rounds.high
    assert claim.low == rounds.low


def test_the_start_of_each_epoch_is_in_the_difference_however_noisy_beside_others() -> None:
    """Workers start again every 20 steps for 4.8 ms a step; two rounds say 1.5 ± 11.1 of 19.3."""
    known = seen(
        estimate(6.3, 1.5),
        got_ms=estimate(1.5, 0.3),
        boundary_ms=4.8,
        run_queue_ms=estimate(-3.6, 59.0),
        cpu_ms=estimate(-1.0, 2.0),
        interpreter_ms=estimate(0.4, 1.7),
        work_ms=estimate(6.5, 1.5),
    )
    beside = replace(
        ablation(estimate(1.5, 11.1, n=2), mechanisms=known, step_ms=19.3), neighbours_ms=1.8
    )
    claim = claimed(beside)
    assert claim is not None and claim.input_ms is not None
    assert claim.input_ms.value == pytest.approx(6.3, abs=0.1)
    assert shown_severity(claim.input_ms.value / 19.3, claim.input_ms.low / 19.3) == "high"
    # Where none start, what the loop waits may be the others' doing.
    ready = replace(known, boundary_ms=0.0, wait_ms=estimate(1.5, 0.3))
    claim = claimed(replace(beside, mechanisms=ready))
    assert claim is not None and claim.input_ms is not None
    assert claim.input_ms.value < 2.0


def test_after_one_round_a_loader_costs_no_more_than_its_work_can() -> None:
    # cuDNN's autotuner on an H200, a pause between its runs: 1,749 ms and 419 with ready batches,
    # where the loop waits 0.4 ms and the loader works 0.6.
    once = Estimate(value=1330.0, low=981.0, high=1678.0, n=1)
    known = replace(seen(estimate(0.4, 0.5), run_queue_ms=None), exposed=False)
    idle = by_mechanisms(once, replace(known, work_ms=estimate(0.6, 0.2)))
    assert idle.value == pytest.approx(0.4 + 4 * 0.6)
    assert idle.high < 5.0
    # Workers that compute for as long may have taken all of it, which nothing shows.
    for work_ms in (estimate(1200.0, 50.0), None):
        busy = by_mechanisms(once, replace(known, work_ms=work_ms))
        assert busy == replace(once, low=0.4)


def test_waits_that_other_programs_may_have_caused_are_no_floor() -> None:
    wide = Estimate(value=7.9, low=0.5, high=8.4, n=5)
    claim = by_mechanisms(wide, seen(estimate(8.0, 0.2)), contended=True)
    assert claim.low == 0.5


def test_without_its_parts_the_step_is_the_rest_of_what_is_claimed() -> None:
    noisy = ablation(estimate(-43.0, 120.0), mechanisms=seen(estimate(5.0, 0.5)))
    claim = claimed(noisy)
    assert claim is not None and claim.input_ms and claim.no_input_ms and claim.raw is noisy
    assert claim.no_input_ms.value == pytest.approx(100.0 - claim.input_ms.value)
    assert claimed(claim) is claim  # bounded once


def test_a_difference_that_stands_keeps_its_windows_figures() -> None:
    clear = ablation(estimate(60.0, 1.0), mechanisms=seen(estimate(60.0, 1.0)))
    claim = claimed(clear)
    assert claim is not None
    assert (claim.no_input_ms, claim.raw) == (clear.no_input_ms, clear)


# ------------------------------------------------------------ with an accelerator


def gpu(busy_ms: float, **changes: Any) -> Any:
    return builders.trace(wall_ms=100.0, kernel_busy_ms=busy_ms, **changes)


def test_no_more_is_claimed_than_the_accelerator_is_idle() -> None:
    """14 workers on 16 cores, GPU busy 94 %: 15 ± 178 % by few rounds."""
    claim = claimed(ablation(estimate(15.0, 178.0)), gpu(94.0, copies=()))
    assert claim is not None and claim.input_ms is not None
    assert claim.input_ms.value == pytest.approx(6.0)
    assert [claim.input_ms.low, claim.input_ms.high] == pytest.approx([0.0, 7.0])


def test_what_the_rounds_show_stands_where_the_loader_itself_computes_on_the_device() -> None:
    claim = claimed(ablation(estimate(30.0, 2.0)), gpu(94.0, copies=()))
    assert claim is not None and claim.input_ms is not None
    assert claim.input_ms.value == pytest.approx(28.0)


COPIES = (
    builders.copy_facts(
        n_per_step=2.0, busy_ms_per_step=0.2, host_blocked_ms_per_step=0.02, bytes_per_step=9e6
    ),
)


def test_copies_cost_no_more_than_the_trace_shows_of_them() -> None:
    claim = claimed(ablation(NOTHING, estimate(8.0, 7.0)), gpu(50.0, copies=COPIES))
    assert claim is not None and claim.copy_ms is not None
    assert claim.copy_ms.value == pytest.approx(0.22 + 2 * CALL_MS)


def test_free_copies_that_are_slower_cost_nothing() -> None:
    claim = claimed(ablation(NOTHING, estimate(-3.0, 1.0)), gpu(50.0, copies=COPIES))
    assert claim is not None and claim.copy_ms is not None
    assert (claim.copy_ms.value, claim.copy_ms.low, claim.copy_ms.high) == (0.0, 0.0, 0.0)


def test_a_loop_that_waits_for_its_copies_also_loses_its_lead() -> None:
    blocking = (builders.copy_facts(busy_ms_per_step=1.0, host_blocked_ms_per_step=3.0),)
    claim = claimed(
        ablation(NOTHING, estimate(8.0, 1.0)), gpu(50.0, copies=blocking, host_exposed_ms=20.0)
    )
    assert claim is not None and claim.copy_ms is not None
    assert claim.copy_ms.value == 8.0


WAITED_FOR = (
    builders.copy_facts(
        n_per_step=2.0, busy_ms_per_step=0.01, host_blocked_ms_per_step=95.0, bytes_per_step=4e3
    ),
)


def test_copies_cost_no_more_than_the_time_in_which_no_kernel_runs_whatever_the_rounds() -> None:
    """The call waits for the kernels before it, which take as long without the copy."""
    claim = claimed(ablation(NOTHING, estimate(16.0, 3.0)), gpu(98.0, copies=WAITED_FOR))
    assert claim is not None and claim.copy_ms is not None
    assert claim.copy_ms.value == pytest.approx(3.0)  # 2 ms, and 1 of the step's own interval
    assert claim.copy_ms.low <= claim.copy_ms.value <= claim.copy_ms.high
    assert claim.copy_ms.high <= 3.0 + TINY


def test_of_steps_that_differ_the_recorded_ones_may_have_been_long() -> None:
    walls = (60.0, 140.0, 80.0, 120.0)  # by its mean ± 58 ms
    trace = gpu(98.0, copies=WAITED_FOR, step_walls_ms=walls)
    claim = claimed(ablation(NOTHING, estimate(16.0, 3.0)), trace)
    assert claim is not None and claim.copy_ms is not None
    assert claim.copy_ms.value == pytest.approx(13.0)  # what the rounds show


def test_where_recorded_steps_were_much_quicker_copies_cost_what_the_trace_leaves_them() -> None:
    """Others had no turn on the device while it was recorded: 74 of 100 ms, 71 of it kernels."""
    trace = replace(
        gpu(71.0, copies=WAITED_FOR, shares=builders.shares(copy=0.004)),
        wall_ms=74.0,
        step_walls_ms=(74.0, 74.0),
    )
    claim = claimed(ablation(NOTHING, estimate(19.0, 8.0)), trace)
    assert claim is not None and claim.copy_ms is not None
    assert claim.copy_ms.value < 5.0  # 3 of 74 ms, of 100
    assert claim.copy_ms.low < 0.5
    waited = claimed(ablation(estimate(26.0, 1.0), estimate(19.0, 8.0)), trace)  # for the loader
    assert waited is not None and waited.copy_ms is not None
    assert waited.copy_ms.low == pytest.approx(11.0)
    loud = replace(trace, shares=builders.shares(copy=0.3), kernels=gpu(50.0).kernels)
    shown = claimed(ablation(NOTHING, estimate(19.0, 8.0)), loud)
    assert shown is not None and shown.copy_ms is not None
    assert shown.copy_ms.low == pytest.approx(11.0)  # the trace has them as well


def test_tensors_converted_on_the_way_cost_what_no_copy_shows() -> None:
    sent = TransferRecord(
        call="to", site="train.py:5", code=None, shape=(8,), dtype="float64", n_bytes=18_000_000,
        pinned=False, non_blocking=False,
    )  # fmt: skip
    claim = claimed(ablation(NOTHING, estimate(8.0, 1.0)), gpu(50.0, copies=COPIES), (sent,))
    assert claim is not None and claim.copy_ms is not None
    assert claim.copy_ms.value == 8.0
    beyond = claimed(ablation(NOTHING, estimate(8.0, 1.0)), gpu(99.0, copies=COPIES), (sent,))
    assert beyond is not None and beyond.copy_ms is not None
    assert beyond.copy_ms.value == 7.0  # the conversion may be a kernel


# ------------------------------------------------------------ whatever is measured

ms = st.floats(min_value=-300.0, max_value=300.0)
margins = st.floats(min_value=0.0, max_value=400.0)
estimates = st.builds(lambda value, margin: estimate(value, margin), ms, margins)
waits = st.builds(
    lambda value, margin: estimate(value, margin),
    st.floats(min_value=0.0, max_value=150.0),
    st.floats(min_value=0.0, max_value=50.0),
)
mechanisms_ = st.builds(
    Mechanisms,
    wait_ms=waits,
    exposed=st.booleans(),
    run_queue_ms=estimates,
    cpu_ms=estimates,
    interpreter_ms=estimates,
    work_ms=waits,
    mapping_ms=st.floats(min_value=0.0, max_value=20.0),
)
TINY = 1e-6


@given(difference=estimates, seen=mechanisms_)
def test_no_claim_is_beyond_what_carries_it_nor_beyond_the_difference(
    difference: Estimate, seen: Mechanisms
) -> None:
    claim = claimed(ablation(difference, mechanisms=seen))
    assert claim is not None and claim.input_ms is not None and seen.wait_ms is not None
    found = claim.input_ms
    assert 0.0 <= found.low <= found.value <= found.high <= claim.plain_ms.value
    others = (seen.run_queue_ms, seen.cpu_ms, seen.interpreter_ms)
    most_ms = seen.wait_ms.high + seen.mapping_ms
    most_ms += sum(max(0.0, x.high) for x in others if x is not None)
    assert found.high <= max(0.0, most_ms) + TINY
    if difference.high > 0.0:  # but for a wait that noise alone hides
        hidden = seen.exposed and not denied(difference, seen.wait_ms)
        assert found.high <= max(difference.high, seen.wait_ms.low if hidden else 0.0) + TINY


@given(
    difference=estimates,
    copies=estimates,
    seen=mechanisms_,
    busy_ms=st.floats(min_value=0.0, max_value=130.0),
    accelerator=st.booleans(),
)
def test_shares_sum_to_one_whatever_was_measured(
    difference: Estimate, copies: Estimate, seen: Mechanisms, busy_ms: float, accelerator: bool
) -> None:
    trace = gpu(busy_ms, has_accelerator=accelerator)
    claim = claimed(ablation(difference, copies, seen), trace)
    shares = best_shares(trace, None, claim)
    assert shares is not None
    assert sum(v for v in shares.as_dict().values() if v is not None) == pytest.approx(1.0)
