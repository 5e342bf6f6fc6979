"""Ranks beside one another: waiting for a later rank is told from communication, exactly."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loaderdoctor.attribution import attribute
from loaderdoctor.attribution.ranks import (
    Collectives,
    RankTrace,
    compare,
    rank_trace,
    slowest,
    without_peer_wait,
)
from loaderdoctor.facts import RankFacts
from tests.attribution.build import AUTOGRAD, TraceBuilder

REDUCE = "gloo:all_reduce"
KERNEL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
N_STEPS = 8
COMPUTE, TRANSFER = 100.0, 50.0  # microseconds


def gloo_ranks(
    inputs: Sequence[float],
    *,
    first_steps: Sequence[int] | None = None,
    lead_us: Sequence[float] | None = None,
    hosts: Sequence[str | None] | None = None,
    n_steps: int = N_STEPS,
) -> list[RankTrace]:
    """A job in step: each rank fetches for as long as told (us), computes, then all reduce.

    `first_steps`: the step with which each rank's trace begins; `lead_us`: how far its clock is
    ahead.
    """
    traces = []
    length = max(inputs) + COMPUTE + TRANSFER
    for rank, fetch in enumerate(inputs):
        builder = TraceBuilder()
        for n in range(first_steps[rank] if first_steps else 0, n_steps):
            start = n * length
            builder.step(n, start, start + length)
            builder.fetch(start, start + fetch)
            builder.op(start + fetch, start + fetch + COMPUTE)
            builder.annotation(start + fetch + COMPUTE, start + length, REDUCE, AUTOGRAD)
        base = 1_700_000_000_000_000_000 + round((lead_us[rank] if lead_us else 0.0) * 1000)
        built = replace(
            builder.trace(),
            rank=rank,
            host_name=hosts[rank] if hosts else "one",
            base_time_ns=base,
        )
        traces.append(rank_trace(attribute(built)))
    return traces


def compared(traces: Sequence[RankTrace]) -> tuple[RankFacts, ...]:
    return compare(traces, range(len(traces)))


def test_the_wait_for_a_later_rank_is_no_communication() -> None:
    fast, slow, middle = compared(gloo_ranks([200.0, 1000.0, 600.0]))
    assert (fast.peer_wait_ms, slow.peer_wait_ms, middle.peer_wait_ms) == (0.8, 0.0, 0.4)
    for rank in (fast, slow, middle):
        assert rank.part_ms("communication") == pytest.approx(TRANSFER / 1000)
        assert rank.part_ms("compute") == pytest.approx(COMPUTE / 1000)
        assert rank.wall_ms == pytest.approx(1.15)
    assert [r.part_ms("input") for r in (fast, slow, middle)] == pytest.approx([0.2, 1.0, 0.6])
    assert slowest((fast, slow, middle)) is slow


def test_shares_are_of_the_time_without_the_wait() -> None:
    fast, _ = compared(gloo_ranks([250.0, 1000.0]))
    assert fast.own_ms == pytest.approx(0.4)
    assert fast.shares.as_dict() == pytest.approx(
        {"compute": 0.25, "communication": 0.125, "copy": None, "input": 0.625, "host": 0.0,
         "other": 0.0}
    )  # fmt: skip


def test_traces_need_not_begin_at_the_same_step() -> None:
    ranks = compared(gloo_ranks([200.0, 1000.0], first_steps=[0, 3]))
    # Five of the first rank's eight collectives have a partner.
    assert ranks[0].peer_wait_ms == pytest.approx(0.8 * 5 / 8)
    assert ranks[1].peer_wait_ms == 0.0


def test_clocks_of_different_machines_are_aligned_by_the_ends_of_collectives() -> None:
    traces = gloo_ranks([200.0, 1000.0, 600.0], lead_us=[0.0, 350.0, -410.0], hosts=["a", "b", "c"])
    assert [r.peer_wait_ms for r in compared(traces)] == pytest.approx([0.8, 0.0, 0.4])


def test_on_one_machine_the_clock_is_believed() -> None:
    """What differs there is the ranks' own lateness: nothing is aligned away."""
    traces = gloo_ranks([200.0, 1000.0], lead_us=[0.0, 30.0])
    assert compared(traces)[0].peer_wait_ms == pytest.approx(0.83)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_order_of_traces_changes_nothing(order: tuple[int, ...]) -> None:
    traces = gloo_ranks([200.0, 1000.0, 600.0])
    ranks = compare([traces[i] for i in order], order)
    assert {r.rank: r.peer_wait_ms for r in ranks} == {0: 0.8, 1: 0.0, 2: 0.4}


@pytest.mark.parametrize("base_ns", [(1 << 63) - 1, 1 << 62])
def test_a_base_time_that_no_clock_shows_is_none(base_ns: int) -> None:
    """Found by fuzzing: times added to it left 64 bits."""
    trace = TraceBuilder()
    trace.step(0, 0, 1000)
    trace.annotation(100, 900, REDUCE, AUTOGRAD)
    found = rank_trace(attribute(replace(trace.trace(), base_time_ns=base_ns)))
    assert found.start_ns == 0
    assert found.collectives.end_ns.tolist() == [900_000]


def test_without_collectives_waits_are_not_known() -> None:
    traces = gloo_ranks([200.0, 1000.0])
    alone = replace(traces[0], collectives=_none(traces[0]))
    ranks = compared([alone, traces[1]])
    assert [r.peer_wait_ms for r in ranks] == [None, None]
    assert ranks[0].shares == traces[0].facts.shares
    assert slowest(ranks).wall_ms == max(r.wall_ms for r in ranks)


def test_collectives_that_do_not_overlap_are_not_taken_for_one() -> None:
    """Two jobs in one folder, an hour apart: nobody waited for anybody."""
    one, two = gloo_ranks([200.0, 1000.0])[0], gloo_ranks([200.0, 1000.0], lead_us=[0, 3.6e9])[1]
    assert [r.peer_wait_ms for r in compared([one, two])] == [None, None]


def test_a_collective_kernel_that_spins_for_a_peer_is_told_apart_too() -> None:
    traces = []
    for rank, late in enumerate((0.0, 400.0)):
        builder = TraceBuilder()
        for n in range(N_STEPS):
            start = n * 1000.0
            builder.step(n, start, start + 1000)
            builder.kernel(start + 5, start + 10 + late, start + 310 + late)
            builder.kernel(start + 20, start + 310 + late, start + 990, name=KERNEL, stream=20)
        traces.append(rank_trace(attribute(replace(builder.trace(), rank=rank, host_name="one"))))
    early, late_rank = compared(traces)
    # The first step has no beginning by the device's clock, so seven are counted.
    assert early.n_steps == N_STEPS - 1
    assert early.peer_wait_ms == pytest.approx(0.4)
    assert late_rank.peer_wait_ms == 0.0
    assert early.part_ms("communication") == pytest.approx(0.28)
    assert early.part_ms("compute") == pytest.approx(0.3)


@given(st.lists(st.integers(10, 2000), min_size=2, max_size=6), st.data())
@settings(max_examples=40)
def test_waits_are_those_of_a_barrier(inputs: list[int], data: st.DataObject) -> None:
    first = [data.draw(st.integers(0, 2)) for _ in inputs]
    ranks = compared(gloo_ranks([float(x) for x in inputs], n_steps=10, first_steps=first))
    for rank, own, mine in zip(ranks, inputs, first, strict=True):
        shared = 0.0
        for step in range(mine, 10):
            present = [x for x, f in zip(inputs, first, strict=True) if f <= step]
            shared += (max(present) - own) / 1000 if len(present) > 1 else 0.0
        assert rank.peer_wait_ms == pytest.approx(shared / (10 - mine), abs=1e-9)
        assert sum(v for v in rank.shares.as_dict().values() if v) == pytest.approx(1.0, abs=1e-9)


def test_a_wait_as_long_as_the_step_leaves_the_facts_alone() -> None:
    facts = gloo_ranks([200.0, 1000.0])[0].facts
    assert without_peer_wait(facts, facts.wall_ms) is facts
    assert without_peer_wait(facts, None) is facts


def _none(trace: RankTrace) -> Collectives:
    c = trace.collectives
    return replace(c, name=c.name[:0], start_ns=c.start_ns[:0], end_ns=c.end_ns[:0])
