"""The identity: the order of subtraction is the definition, and nothing is counted twice."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loaderdoctor.attribution.identity import Partition, with_accelerator, without_accelerator
from loaderdoctor.facts.step import Shares
from loaderdoctor.intervals import EMPTY, Intervals
from loaderdoctor.trace.columns import Category
from tests.attribution.build import AUTOGRAD, H2D_PAGEABLE, Row, TraceBuilder
from tests.trace_facts import trace_facts

SIZE = 30
spans = st.lists(st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)), max_size=6).map(
    lambda pairs: Intervals.of([min(p) for p in pairs], [max(p) for p in pairs])
)
# Nothing, everything, nearly everything, or any spans.
sets = st.one_of(
    st.just(EMPTY), st.just(Intervals.span(0, SIZE)), st.just(Intervals.span(1, SIZE)), spans
)


def instants(intervals: Intervals | None) -> set[int]:
    if intervals is None:
        return set()
    return {t for a, b in zip(intervals.starts, intervals.ends, strict=True) for t in range(a, b)}


def parts(partition: Partition) -> list[set[int]]:
    return [
        instants(p)
        for p in (
            partition.compute,
            partition.communication,
            partition.copy,
            partition.input,
            partition.host,
            partition.other,
        )
    ]


@given(sets, sets, sets, sets, sets, st.one_of(st.none(), sets), sets, sets)
def test_each_instant_goes_to_the_first_share_that_claims_it(
    window: Intervals,
    kernels: Intervals,
    collectives: Intervals,
    copies: Intervals,
    calls: Intervals,
    getting: Intervals | None,
    recorded: Intervals,
    held_up: Intervals,
) -> None:
    partition = with_accelerator(
        window=window,
        kernels=kernels,
        collectives=collectives,
        copies=copies,
        copy_calls=calls,
        getting=getting,
        recorded=recorded,
        held_up=held_up,
    )
    others = instants(held_up) - instants(copies)
    claims = [
        instants(kernels),
        instants(collectives),
        (instants(copies) | instants(calls)) - others,
        instants(getting) - others,
        instants(recorded) - others,
    ]
    expected: list[set[int]] = [set() for _ in range(6)]
    for t in instants(window):
        expected[next((i for i, claim in enumerate(claims) if t in claim), 5)].add(t)
    assert parts(partition) == expected
    assert (partition.input is None) == (getting is None)
    check_sum(partition)


@given(sets, st.one_of(st.none(), sets), sets, sets, sets)
def test_without_an_accelerator_input_comes_first_and_copy_means_nothing(
    window: Intervals,
    getting: Intervals | None,
    communicating: Intervals,
    computing: Intervals,
    recorded: Intervals,
) -> None:
    partition = without_accelerator(
        window=window,
        getting=getting,
        communicating=communicating,
        computing=computing,
        recorded=recorded,
    )
    claims = [instants(x) for x in (getting, communicating, computing, recorded)]
    order = [3, 1, 0, 4]  # where each claim's instants go, in the order of `parts`
    expected: list[set[int]] = [set() for _ in range(6)]
    for t in instants(window):
        expected[next((k for k, c in zip(order, claims, strict=True) if t in c), 5)].add(t)
    assert parts(partition) == expected
    assert partition.copy is None
    check_sum(partition)


def check_sum(partition: Partition) -> None:
    shares = partition.shares()
    assert math.fsum(v for v in shares.as_dict().values() if v is not None) == pytest.approx(1)
    assert sum(len(p) for p in parts(partition)) == partition.window.total_ns


# ------------------------------------------------------------------------------- whole traces


def accelerator_loop(n_steps: int = 5, length: float = 1000) -> TraceBuilder:
    """Steps of 1000 us, host-bound: fetch 100, H2D 50, kernels 300, the rest host."""
    b = TraceBuilder()
    for i in range(n_steps):
        t = i * length
        b.step(i, t, t + length)
        b.fetch(t, t + 100)
        b.copy(t + 100, t + 110, t + 110, t + 160)
        b.kernel(t + 200, t + 300, t + 600)
    return b


def test_a_loop_of_known_parts_gets_exactly_these_shares() -> None:
    facts = trace_facts(accelerator_loop().trace())
    # 10 us inside the copy's call with the device idle and 50 us of copying are copy.
    assert facts.shares == Shares(
        compute=0.3, communication=0.0, copy=0.06, input=0.1, host=0.54, other=0.0
    )
    assert facts.wall_ms == 1.0
    assert facts.n_steps == 4


@given(st.integers(0, 1000), st.floats(0, 5000))
def test_order_of_events_and_splitting_a_span_change_nothing(seed: int, at: float) -> None:
    whole = trace_facts(accelerator_loop().trace())
    split = accelerator_loop().split_at(
        at, Category.KERNEL, Category.MEMCPY, Category.CPU_OP, Category.PYTHON
    )
    again = trace_facts(split.trace(shuffle=seed))
    assert again.shares == whole.shares
    assert again.wall_ms == whole.wall_ms


@pytest.mark.parametrize(
    "name",
    [
        "ncclDevKernel_AllReduce",
        "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)",
        "mscclKernel_Sum_hip_bfloat16_Simple_false",  # RCCL's, through MSCCL
    ],
)
def test_a_collective_counts_only_where_no_other_kernel_runs(name: str) -> None:
    b = accelerator_loop()
    for i in range(5):
        # 500..800: 100 us beside the gemm, 200 us alone.
        b.kernel(i * 1000 + 210, i * 1000 + 500, i * 1000 + 800, name=name, stream=9)
    facts = trace_facts(b.trace())
    assert facts.shares.communication == pytest.approx(0.2)
    assert facts.shares.compute == pytest.approx(0.3)
    assert facts.kernels.n_per_step == 1  # the collective is no kernel of the model


def test_memsets_and_copies_within_the_device_are_compute_and_others_are_host() -> None:
    b = accelerator_loop()
    for i in range(5):
        t = i * 1000
        b.copy(t + 210, t + 211, t + 600, t + 640, name="Memset (Device)", category=Category.MEMSET)
        b.copy(t + 220, t + 221, t + 640, t + 700, name="Memcpy DtoD (Device -> Device)")
        b.copy(t + 230, t + 231, t + 700, t + 900, name="Memcpy DtoH (Device -> Pinned)")
        b.copy(t + 240, t + 241, t + 900, t + 950, name="Memcpy PtoP (Device -> Device)")
    facts = trace_facts(b.trace())
    assert facts.shares.compute == pytest.approx(0.4)
    assert facts.shares.copy == pytest.approx(0.06)
    assert facts.shares.input == pytest.approx(0.1)


def test_a_staging_call_counts_as_copy_only_while_the_device_idles() -> None:
    b = TraceBuilder()
    for i in range(5):
        t = i * 1000
        b.step(i, t, t + 1000)
        b.fetch(t, t + 100)
        # 400 us inside the call, of which the copy itself runs 50; the sync 20 more.
        b.copy(t + 100, t + 500, t + 450, t + 500, name=H2D_PAGEABLE, synced=t + 520)
        # A kernel of the step before covers the first half of the staging.
        b.kernel(t + 600, t + 900, t + 1300)
    facts = trace_facts(b.trace())
    assert facts.shares.compute == pytest.approx(0.4)
    assert facts.shares.copy == pytest.approx(0.22)  # 300..520
    assert facts.shares.input == pytest.approx(0.0)  # hidden
    assert facts.hidden.input_ms == pytest.approx(0.1)
    (copy,) = facts.copies
    assert copy.source == "pageable"
    assert copy.host_blocked_ms_per_step == pytest.approx(0.42)
    assert copy.exposed_ms_per_step == pytest.approx(0.22)
    assert facts.syncs.n_per_step == 0  # the copy's own sync waits for no compute


def test_the_python_span_of_a_copy_is_never_the_measure() -> None:
    b = accelerator_loop()
    for i in range(5):
        b.op(i * 1000 + 99, i * 1000 + 199, "aten::to")
    assert trace_facts(b.trace()).shares == trace_facts(accelerator_loop().trace()).shares


def test_annotations_on_the_device_lane_count_for_nothing() -> None:
    b = accelerator_loop()
    for i in range(5):
        b.add(i * 1000 + 100, i * 1000 + 990, Category.GPU_ANNOTATION, f"ProfilerStep#{i}", 4)
    facts, plain = trace_facts(b.trace()), trace_facts(accelerator_loop().trace())
    assert (facts.n_steps, facts.shares) == (plain.n_steps, plain.shares)


def test_two_devices_and_two_streams_are_busy_together() -> None:
    b = accelerator_loop()
    for i in range(5):
        b.kernel(i * 1000 + 210, i * 1000 + 500, i * 1000 + 700, device=1)
        b.kernel(i * 1000 + 220, i * 1000 + 650, i * 1000 + 800, stream=9)
    assert trace_facts(b.trace()).shares.compute == pytest.approx(0.5)


def test_without_an_accelerator_ops_are_compute() -> None:
    b = TraceBuilder()
    for i in range(4):
        t = i * 1000
        b.step(i, t, t + 1000)
        b.fetch(t, t + 300)
        b.op(t + 100, t + 200, "aten::stack")  # collate, within the fetch
        b.op(t + 400, t + 600, "aten::linear")
        b.op(t + 450, t + 500, "aten::addmm")  # nested
        b.op(t + 550, t + 700, "autograd::engine::evaluate_function", AUTOGRAD)
        b.optimizer(t + 800, t + 900)
        b.annotation(t + 650, t + 750, "gloo:all_reduce", AUTOGRAD)
    facts = trace_facts(b.trace())
    assert facts.shares == Shares(
        compute=0.35, communication=0.1, copy=None, input=0.3, host=0.25, other=0.0
    )
    assert facts.hidden.input_ms == 0.0
    assert facts.step_clock == "host-annotations"
    assert facts.n_steps == 4
    assert facts.copies == ()
    assert facts.host.launch_call_ms is None


def test_a_trace_of_nothing_gives_no_steps_and_no_shares_of_anything() -> None:
    facts = trace_facts(TraceBuilder().trace())
    assert facts.n_steps == 0
    assert facts.step_clock == "window"
    assert facts.shares.other == 1.0
    assert facts.shares.input is None


def test_a_saturated_device_leaves_nothing_for_others() -> None:
    b = TraceBuilder()
    for i in range(5):
        t = i * 1000
        b.step(i, t, t + 1000)
        b.fetch(t, t + 900)
        b.kernel(t + 950, t + 1000, t + 2000)
    facts = trace_facts(b.trace())
    assert facts.shares.compute == 1.0
    assert facts.hidden.input_ms == pytest.approx(0.9)
    assert facts.shares.input == 0.0
    assert facts.fetching.raw_wait_ms == pytest.approx(0.9)


def test_idle_time_before_and_after_the_host_was_recorded_is_nobodys() -> None:
    b = TraceBuilder()
    b.op(100, 200, "aten::mm")
    b.kernel(110, 150, 250)
    b.copy(120, 121, 400, 500, name="Memcpy DtoH (Device -> Pinned)")
    facts = trace_facts(b.trace())
    assert facts.step_clock == "window"
    assert facts.shares.other == pytest.approx(250 / 400)


NAMES = (
    "ProfilerStep#1",
    "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
    "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
    "Optimizer.step#SGD.step",
    "aten::empty",
    "aten::random_",
    "aten::item",
    "aten::randperm",
    "aten::mm",
    "gloo:all_reduce",
    "cudaLaunchKernel",
    "cudaMemcpyAsync",
    "cudaStreamSynchronize",
    "Memcpy HtoD (Pageable -> Device)",
    "Memcpy DtoH (Device -> Pinned)",
    "ncclDevKernel_AllReduce",
    "loaderdoctor: create iterator",
    "loaderdoctor: wait for batch",
    "train.py(3): main",
)
any_row = st.builds(
    Row,
    start=st.integers(0, 40),
    end=st.integers(0, 40),
    category=st.sampled_from(Category),
    name=st.sampled_from(NAMES),
    thread=st.integers(0, 3),
    correlation=st.integers(-1, 6),
    external=st.integers(-1, 4),
    device=st.integers(-1, 1),
    stream=st.integers(-1, 2),
    n_bytes=st.integers(-1, 9),
).map(lambda r: replace(r, start=min(r.start, r.end), end=max(r.start, r.end)))


@settings(max_examples=150)
@given(st.lists(any_row, max_size=40), st.integers(0, 9))
def test_any_rows_at_all_give_shares_that_sum_to_one(rows: list[Row], seed: int) -> None:
    trace = TraceBuilder(rows=rows).trace(shuffle=seed)
    facts = trace_facts(trace)  # Shares raises where they don't sum to one
    assert facts.wall_ms >= 0
    assert (facts.shares.copy is None) == (not trace.has_accelerator)
    assert len(facts.step_walls_ms) == facts.n_steps
    for value in (
        facts.fetching.raw_wait_ms,
        facts.hidden.input_ms,
        facts.hidden.copy_ms,
        facts.syncs.idle_after_ms,
        facts.syncs.wait_ms,
        *facts.fetching.waits_ms,
        *(s.ms_per_step for s in facts.host.hotspots),
        *(c.exposed_ms_per_step for c in facts.copies),
    ):
        assert value is None or value >= 0
    hotspots_ms = sum(s.ms_per_step for s in facts.host.hotspots)
    assert hotspots_ms <= facts.host.exposed_ms * (1 + 1e-9)
