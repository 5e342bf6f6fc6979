"""Copies, synchronising calls and launches, each with its exact figures."""

from __future__ import annotations

import pytest

from loaderdoctor.attribution.trace_rows import name_flags
from loaderdoctor.facts.trace import TraceFacts
from tests.attribution.build import AUTOGRAD, H2D_PAGEABLE, H2D_PINNED, PIN, TraceBuilder
from tests.trace_facts import trace_facts

STEP = 1000
D2H = "Memcpy DtoH (Device -> Pageable)"


def facts_of(b: TraceBuilder) -> TraceFacts:
    return trace_facts(b.trace())


def steps(n: int = 5) -> tuple[TraceBuilder, list[float]]:
    b = TraceBuilder()
    times = [float(i * STEP) for i in range(n)]
    for i, t in enumerate(times):
        b.step(i, t, t + STEP)
        b.fetch(t, t + 50)
    return b, times


def test_several_copies_a_step_are_grouped_by_source_and_stream() -> None:
    b, times = steps()
    for t in times:
        b.copy(t + 60, t + 61, t + 100, t + 200, name=H2D_PAGEABLE, n_bytes=1_000_000)
        b.copy(t + 62, t + 63, t + 200, t + 220, name=H2D_PINNED, n_bytes=2_000_000)
        b.copy(t + 64, t + 65, t + 220, t + 240, name=H2D_PINNED, n_bytes=4_000_000)
        b.copy(t + 66, t + 67, t + 300, t + 350, name=H2D_PINNED, n_bytes=500, stream=9)
        b.kernel(t + 70, t + 250, t + 340)
    pageable, pinned, side = facts_of(b).copies
    assert (pageable.source, pinned.source, side.source) == ("pageable", "pinned", "pinned")
    assert (pinned.n_per_step, pinned.bytes_per_step) == (2.0, 6_000_000)
    assert pinned.busy_ms_per_step == pytest.approx(0.04)
    assert pinned.bandwidth_gb_per_s == pytest.approx(6e6 / 40e-6 / 1e9)
    assert pinned.median_bytes == 3_000_000
    assert (pinned.same_stream_as_compute, side.same_stream_as_compute) == (True, False)
    # The side copy runs 40 us beside the kernel: only 10 of it, and its call, are exposed.
    assert side.exposed_ms_per_step == pytest.approx(0.011)
    assert pageable.exposed_ms_per_step == pytest.approx(0.101)
    exposed = sum(c.exposed_ms_per_step for c in facts_of(b).copies)
    assert exposed == pytest.approx((facts_of(b).shares.copy or 0) * facts_of(b).wall_ms)


def test_copies_of_other_threads_are_counted_apart() -> None:
    b, times = steps()
    for t in times:
        for k in range(9):
            b.copy(t + 60 + k, t + 61 + k, t + 400, t + 401, thread=PIN, n_bytes=4096)
        b.copy(t + 80, t + 81, t + 402, t + 403, n_bytes=4096)
        b.kernel(t + 90, t + 300, t + 900)
    (copies,) = facts_of(b).copies
    assert (copies.n_per_step, copies.n_beside_per_step) == (10, 9)


def test_a_copys_own_sync_is_tied_by_its_op_and_other_syncs_are_not() -> None:
    b, times = steps()
    for t in times:
        b.copy(t + 60, t + 70, t + 70, t + 80, name=H2D_PAGEABLE, synced=t + 100)
        b.kernel(t + 200, t + 300, t + 500)
        b.call(t + 210, t + 510, "cudaStreamSynchronize")
    facts = facts_of(b)
    assert facts.copies[0].host_blocked_ms_per_step == pytest.approx(0.04)
    assert facts.syncs.n_per_step == 1
    assert facts.syncs.wait_ms == pytest.approx(0.3)


def test_without_external_ids_the_very_next_call_is_the_copys_sync() -> None:
    b, times = steps()
    for t in times:
        b.copy(t + 60, t + 70, t + 70, t + 80, name=H2D_PAGEABLE, synced=t + 100, external=False)
        b.kernel(t + 200, t + 300, t + 500)
        b.call(t + 210, t + 510, "cudaStreamSynchronize")
    facts = facts_of(b)
    assert facts.copies[0].host_blocked_ms_per_step == pytest.approx(0.04)
    assert facts.syncs.n_per_step == 1


def test_a_read_of_the_loss_is_one_sync_and_promises_only_the_idle_gap() -> None:
    b, times = steps()
    for t in times:
        b.kernel(t + 200, t + 300, t + 700)
        b.copy(t + 210, t + 220, t + 700, t + 702, name=D2H, synced=t + 710, n_bytes=4)
        # The next kernel starts at t + 1300: 50 us of fetch are not the sync's.
    facts = facts_of(b)
    assert facts.syncs.n_per_step == 1
    assert facts.syncs.wait_ms == pytest.approx(0.5)  # from the copy's call on
    assert facts.syncs.idle_after_ms == pytest.approx(0.590 - 0.050)
    assert facts.copies == ()
    # Of what is copied to the host, only the time in which nothing else runs.
    assert (facts.syncs.n_to_host_per_step, facts.syncs.to_host_bytes) == (1, 4)
    assert facts.syncs.to_host_ms == pytest.approx(0.002)


def test_the_profilers_own_syncs_and_those_of_other_threads_do_not_count() -> None:
    b, times = steps()
    b.call(1, 40, "cudaDeviceSynchronize")
    b.call(times[-1] + STEP + 5, times[-1] + STEP + 20, "cudaDeviceSynchronize")
    for t in times:
        b.kernel(t + 200, t + 300, t + 700)
        b.call(t + 220, t + 230, "cudaEventSynchronize", thread=PIN)
    assert facts_of(b).syncs.n_per_step == 0


def test_kernels_and_launch_calls_are_counted_by_the_step_that_launched_them() -> None:
    b, times = steps()
    for t in times:
        for k in range(4):
            b.kernel(t + 100 + 10 * k, t + 300 + 10 * k, t + 305 + 10 * k, thread=AUTOGRAD)
    facts = facts_of(b)
    assert facts.kernels.n_per_step == 4
    assert facts.kernels.n_calls_per_step == 4
    assert facts.kernels.mean_us == pytest.approx(5)
    assert facts.host.launch_call_ms == pytest.approx(0.004)
    assert facts.kernels.busy_ms == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("name", "h2d", "d2h", "d2d", "pinned", "pageable"),
    [
        ("Memcpy HtoD (Pinned -> Device)", True, False, False, True, False),
        ("Memcpy HtoD (Pageable -> Device)", True, False, False, False, True),
        ("Memcpy HtoD (Host -> Device)", True, False, False, False, False),
        ("Memcpy DtoH (Device -> Pinned)", False, True, False, False, False),
        ("Memcpy DtoD (Device -> Device)", False, False, True, False, False),
        ("Memcpy PtoP (Device -> Device)", False, False, False, False, False),
        ("CopyHostToDevice", True, False, False, False, False),
        ("CopyDeviceToHost", False, True, False, False, False),
        ("MEMORY_COPY_DEVICE_TO_DEVICE", False, False, True, False, False),
        ("zeCommandListAppendMemoryCopy(M2D)", True, False, False, False, True),
        ("zeCommandListAppendMemoryCopy(H2D)", True, False, False, True, False),
        ("zeCommandListAppendMemoryCopy(D2M)", False, True, False, False, False),
    ],
)
def test_copies_of_every_vendor_are_understood(
    name: str, h2d: bool, d2h: bool, d2d: bool, pinned: bool, pageable: bool
) -> None:
    b = TraceBuilder()
    b.op(0, 1, name)
    flags = name_flags(b.trace())
    found = (flags.h2d, flags.d2h, flags.d2d, flags.pinned, flags.pageable)
    assert tuple(bool(f[0]) for f in found) == (h2d, d2h, d2d, pinned, pageable)


@pytest.mark.parametrize(
    ("name", "launch", "sync"),
    [
        ("cudaLaunchKernel", True, False),
        ("cudaLaunchKernelExC", True, False),
        ("cuLaunchKernelEx", True, False),
        ("cudaGraphLaunch", True, False),
        ("hipExtModuleLaunchKernel", True, False),
        ("zeCommandListAppendLaunchKernel", True, False),
        ("urEnqueueKernelLaunch", True, False),
        ("cudaStreamSynchronize", False, True),
        ("hipDeviceSynchronize", False, True),
        ("cudaEventSynchronize", False, True),
        ("cuCtxSynchronize", False, True),
        ("cudaStreamIsCapturing", False, False),
        ("cudaEventQuery", False, False),
        ("cudaMemcpyAsync", False, False),
    ],
)
def test_launches_and_syncs_of_every_vendor_are_understood(
    name: str, launch: bool, sync: bool
) -> None:
    b = TraceBuilder()
    b.op(0, 1, name)
    flags = name_flags(b.trace())
    assert (bool(flags.launch[0]), bool(flags.sync[0])) == (launch, sync)
