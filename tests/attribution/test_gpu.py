"""GPU efficiency: our vectorised figures against the plugin's own loops, and by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch_tb_profiler.profiler.gpu_metrics_parser import GPUMetricsParser
from torch_tb_profiler.profiler.tensor_core import TC_Allowlist
from torch_tb_profiler.profiler.trace import EventTypes

from loaderdoctor.attribution.clock import step_clock
from loaderdoctor.attribution.gpu import (
    PLUGIN_TENSOR_CORE_NAMES,
    all_steps,
    gpu_facts,
    occupancy,
    sm_efficiency,
    tensor_core_share,
)
from loaderdoctor.attribution.trace_rows import rows_of
from loaderdoctor.intervals import Intervals
from loaderdoctor.trace.columns import Category, Device, KernelShapes, MemoryPeak, Trace
from tests.attribution.build import TraceBuilder

kernels = st.lists(
    st.tuples(
        st.integers(0, 60),  # start
        st.integers(1, 20),  # length
        st.sampled_from([None, 0.0, 0.2, 0.7, 1.0, 3.5]),  # blocks per SM
        st.sampled_from([None, 0, 3, 50, 100]),  # occupancy, percent
    ),
    min_size=1,
    max_size=8,
)


@given(kernels, st.integers(0, 40), st.integers(1, 50))
def test_overlapping_kernels_give_the_plugins_figures(
    launched: list[tuple[int, int, float | None, int | None]], begin: int, length: int
) -> None:
    end = begin + length
    events: list[Any] = [
        SimpleNamespace(
            type=EventTypes.KERNEL, ts=at, duration=took, pid=0, device_id=0,
            blocks_per_sm=blocks, occupancy=percent,
        )
        for at, took, blocks, percent in launched
    ]  # fmt: skip
    theirs = GPUMetricsParser.parse_events(events, 0, 100, begin, end)
    starts = np.array([at for at, *_ in launched], np.int64)
    ends = starts + np.array([took for _, took, *_ in launched], np.int64)
    blocks = np.array([math.nan if b is None else b for *_, b, _ in launched])
    percent = np.array([math.nan if p is None else p for *_, p in launched])
    window = Intervals.span(begin, end)
    busy = Intervals.of(starts, ends).intersect(window).total_ns / window.total_ns
    assert busy == pytest.approx(theirs.gpu_utilization[0])
    ours = sm_efficiency(starts, ends, blocks, window)
    plugin = theirs.avg_approximated_sm_efficiency_per_device[0]
    # Where no kernel runs within the steps the plugin says nothing; we say 0, as it does of kernels
    # that run there without a block.
    assert (ours or 0.0) == pytest.approx(plugin or 0.0, abs=1e-9)
    mean = occupancy(starts, ends, percent, window)
    expected = theirs.avg_occupancy_per_device[0]
    assert (mean is None) == (expected is None)
    if mean is not None:
        assert mean * 100 == pytest.approx(expected)


def test_the_list_of_names_is_the_plugins() -> None:
    assert list(PLUGIN_TENSOR_CORE_NAMES) == TC_Allowlist.allowlist


def of_kernels(*names: str) -> Trace:
    """One step; each kernel runs 10 us."""
    b = TraceBuilder()
    b.step(1, 0, 100)
    for i, name in enumerate(names):
        b.kernel(1 + i, 10 + 10 * i, 20 + 10 * i, name=name)
    return b.trace()


def test_tensor_cores_are_told_by_name_where_the_plugins_list_errs() -> None:
    fma = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_ffma_execute_kernel"
    hopper = "nvjet_tst_128x64_64x8_2x1_v_bz_TNN"
    both = "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x3_tn"
    trace = of_kernels(fma, hopper, both, "vectorized_elementwise_kernel")
    assert tensor_core_share(trace) == pytest.approx(0.5)  # hopper, both
    rows = rows_of(trace)
    (device,) = gpu_facts(trace, rows, step_clock(rows))
    assert device.tensor_core_share == pytest.approx(0.5)
    assert device.plugin_tensor_core_share == pytest.approx(0.5)  # fma, both


def test_no_kernel_means_no_figure_and_no_launch_figures_mean_none() -> None:
    b = TraceBuilder()
    b.step(1, 0, 100)
    trace = b.trace()
    rows = rows_of(trace)
    assert gpu_facts(trace, rows, step_clock(rows)) == ()
    assert tensor_core_share(trace) is None
    trace = of_kernels("gemm")
    rows = rows_of(trace)
    (device,) = gpu_facts(trace, rows, step_clock(rows))
    assert device.sm_efficiency_share is None
    assert device.occupancy_share is None
    assert device.utilization_share == pytest.approx(0.1)


def test_each_device_has_figures_of_its_own() -> None:
    b = TraceBuilder()
    b.step(1, 0, 100)
    b.kernel(1, 10, 60, device=0)
    b.kernel(2, 20, 40, device=1)
    b.kernel(3, 30, 50, device=1, stream=8)
    trace = b.trace()
    of_kernel = trace.spans.of(Category.KERNEL)
    trace = replace(
        trace,
        devices=(Device(index=1, name="second", memory_bytes=7),),
        memory_peaks=(MemoryPeak(device=1, allocated_bytes=3, reserved_bytes=5),),
        kernel_shapes=KernelShapes(
            blocks_per_sm=np.where(of_kernel.device == 0, 0.5, 0.8),
            occupancy_percent=np.where(of_kernel.stream == 8, 100.0, 50.0),
        ),
    )
    rows = rows_of(trace)
    first, second = gpu_facts(trace, rows, step_clock(rows))
    assert (first.index, first.name, first.memory_bytes) == (0, None, None)
    assert (second.index, second.name, second.memory_bytes) == (1, "second", 7)
    assert (first.peak_allocated_bytes, first.peak_reserved_bytes) == (None, None)
    assert (second.peak_allocated_bytes, second.peak_reserved_bytes) == (3, 5)
    assert first.utilization_share == pytest.approx(0.5)
    assert first.sm_efficiency_share == pytest.approx(0.25)
    assert first.occupancy_share == pytest.approx(0.5)
    assert second.utilization_share == pytest.approx(0.3)
    # 0.8 alone for 20 us, both together full for 10 us.
    assert second.sm_efficiency_share == pytest.approx((20 * 0.8 + 10 * 1.0) / 100)
    assert second.occupancy_share == pytest.approx(0.75)


def test_all_steps_reach_to_the_last_device_work_and_leave_out_a_cut_off_step() -> None:
    b = TraceBuilder()
    for n in range(3):
        b.step(n, 100 * n, 100 * n + 90)
    for n in range(2):
        for k in range(5):
            b.kernel(100 * n + 5 + 5 * k, 100 * n + 60 + 20 * k, 100 * n + 70 + 20 * k)
    trace = b.trace()
    rows = rows_of(trace)
    # The third launched nothing: the second ends with its last kernel, at 250.
    assert all_steps(rows, step_clock(rows)) == Intervals.span(0, 250_000)
    b.kernel(205, 260, 270)  # one kernel of five: the plugin takes that step for cut off
    rows = rows_of(b.trace())
    assert all_steps(rows, step_clock(rows)) == Intervals.span(0, 250_000)
    for k in range(4):
        b.kernel(210 + k * 5, 270 + 10 * k, 280 + 10 * k)
    rows = rows_of(b.trace())
    assert all_steps(rows, step_clock(rows)) == Intervals.span(0, 310_000)


def test_work_launched_before_the_first_step_delays_its_begin() -> None:
    b = TraceBuilder()
    b.kernel(1, 20, 40)
    b.step(1, 10, 100)
    b.kernel(20, 50, 60)
    rows = rows_of(b.trace())
    assert all_steps(rows, step_clock(rows)) == Intervals.span(40_000, 100_000)


def test_a_kernel_of_absurd_figures_is_like_one_that_fills_the_device() -> None:
    """1e308 blocks beside half a block: neither lost nor left over in the sum."""
    starts, ends = np.array([0, 0, 5]), np.array([4, 2, 10])
    window = Intervals.span(0, 10)
    for huge in (1e308, math.inf, 7.0):
        blocks = np.array([0.5, huge, 0.25])
        assert sm_efficiency(starts, ends, blocks, window) == pytest.approx(
            (2 * 1.0 + 2 * 0.5 + 5 * 0.25) / 10
        )


def test_an_occupancy_beyond_all_is_none() -> None:
    starts, ends = np.array([0, 5]), np.array([5, 10])
    window = Intervals.span(0, 10)
    for absurd in (101.0, 1e308, -1.0, math.nan):
        assert occupancy(starts, ends, np.array([40.0, absurd]), window) == pytest.approx(0.4)
