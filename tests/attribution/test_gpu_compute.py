"""How the steps of a trace compute, from real traces where the machine allows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from loaderdoctor.facts.trace import ComputeFacts, TraceFacts
from loaderdoctor.trace import read_trace
from tests.attribution.build import AUTOGRAD, TraceBuilder
from tests.attribution.test_cases import facts_of
from tests.trace_facts import trace_facts


def compute_of(facts: TraceFacts) -> ComputeFacts:
    assert facts.compute is not None
    return facts.compute


def test_float32_products_are_told_from_tf32_and_convolutions_on_real_kernels() -> None:
    resident = facts_of("gpu_resident")  # an MLP: float32 products, torch's default precision
    assert compute_of(resident).float32_gemm_ms == pytest.approx(
        0.71 * resident.kernels.busy_ms, rel=0.05
    )
    assert compute_of(resident).convolution_ms == 0.0
    images = facts_of("enough_workers")  # a ResNet: TF32 convolutions, one small Linear
    assert compute_of(images).convolution_ms > 0.25 * images.kernels.busy_ms
    assert compute_of(images).float32_gemm_ms < 0.01 * images.kernels.busy_ms
    assert compute_of(images).compute_major == 9


@pytest.mark.parametrize("to_none", [True, False])
def test_zero_fills_of_zero_grad_show_in_a_real_trace(to_none: bool, tmp_path: Path) -> None:
    model = torch.nn.Linear(256, 256)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(4):
            optimizer.zero_grad(set_to_none=to_none)
            model(torch.zeros(2, 256).zero_()).sum().backward()
            optimizer.step()
            profiler.step()
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    compute = compute_of(trace_facts(read_trace(path)))
    # The loop's own zero_() is no clearing of gradients.
    assert compute.zero_fill_ms > 0.0
    assert (compute.zero_grad_fill_ms > 0.0) is not to_none
    assert compute.zero_grad_fill_ms < compute.zero_fill_ms


def test_fills_on_a_device_cost_their_kernels_and_each_once() -> None:
    builder = TraceBuilder()
    for n in range(3):
        at = 1000.0 * n
        builder.step(n, at, at + 1000)
        builder.annotation(at + 100, at + 200, "Optimizer.zero_grad#SGD.zero_grad")
        builder.op(at + 110, at + 190, "aten::_foreach_zero_")
        builder.op(at + 120, at + 180, "aten::zero_")
        builder.kernel(at + 130, at + 300, at + 350, name="multi_tensor_apply_kernel")
        builder.kernel(at + 400, at + 500, at + 900, name="ampere_sgemm_128x64_nn")
        builder.kernel(at + 150, at + 950, at + 960, thread=AUTOGRAD)  # another thread's work
    compute = compute_of(trace_facts(builder.trace()))
    assert compute.zero_grad_fill_ms == pytest.approx(0.05)
    assert compute.float32_gemm_ms == pytest.approx(0.4)


def test_data_parallel_is_counted_with_the_devices_that_compute() -> None:
    builder = TraceBuilder()
    for n in range(4):
        at = 1000.0 * n
        builder.step(n, at, at + 1000)
        builder.annotation(at + 100, at + 600, "DataParallel.forward")
        for device in (0, 1):
            builder.kernel(at + 200 + device, at + 300, at + 800, device=device)
    compute = compute_of(trace_facts(builder.trace()))
    assert compute.n_data_parallel_forwards == pytest.approx(1.0, abs=0.35)  # an edge may be cut
    assert compute.n_computing_devices == 2
