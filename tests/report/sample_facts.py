"""The facts behind the sample reports: a diagnosis on an H100, and what differs from it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from loaderdoctor.estimate import Estimate
from loaderdoctor.facts import Facts
from loaderdoctor.facts.loop import AblationFacts, MachineFacts, StepFacts
from loaderdoctor.facts.step import Hidden, Shares
from loaderdoctor.facts.trace import (
    BusyFacts,
    FetchFacts,
    GpuDeviceFacts,
    HostFacts,
    IdleGapFacts,
    KernelFacts,
    RangeFacts,
    SyncFacts,
    TraceFacts,
)
from loaderdoctor.instrument.wire.records import Environment, LoaderRecord
from loaderdoctor.settings import Settings
from tests.trace_facts import changed

LOADER = LoaderRecord(
    id="train.py:41",
    role="train",
    code="loader = DataLoader(train_set, batch_size=64, shuffle=True)",
    settings=Settings(num_workers=0, pin_memory=False),
    dataset="Scans",
    n_samples=60_000,
    batch_size=64,
    steps_per_epoch=938,
)
ENVIRONMENT = Environment(
    torch="2.11.0+cu130",
    python="3.11.9",
    platform="Linux",
    device_name="NVIDIA H100 80GB HBM3",
    device_memory_bytes=85_017_493_504,
    cuda="13.0",
    usable_cpus=16.0,
    n_threads=8,
    memory_available_bytes=100_000_000_000,
    shm_free_bytes=8_000_000_000,
    open_files_limit=1024,
    start_method="fork",
    host="node1",
)


def estimate(value: float, margin: float, n: int = 6) -> Estimate:
    return Estimate(value=value, low=value - margin, high=value + margin, n=n)


def shares(**parts: float | None) -> Shares:
    names = ("compute", "communication", "copy", "input", "host", "other")
    return Shares(**{name: parts.get(name, 0.0) for name in names})


def step_facts(wall: Estimate, *, n_steps: int = 120, **changes: Any) -> StepFacts:
    given: dict[str, Any] = {
        "definition": "one batch of train.py:41",
        "wall_ms": wall,
        "within_epoch_ms": Estimate(value=wall.value - 0.1, low=wall.low, high=wall.high, n=wall.n),
        "boundary_ms": 94.0,
        "steps_per_epoch": 938,
        "n_steps": n_steps,
        "raw_wait_ms": 10.6,
        "waits_ms": (),
        "samples_per_step": 64.0,
        "clock": "device",
        "n_iterators_created": 1,
        "worker_cpu_cores": None,
        "main_cpu_cores": 1.0,
    }
    return StepFacts(**(given | changes))


def trace_facts(parts: Shares, **changes: Any) -> TraceFacts:
    found = TraceFacts(
        n_steps=20,
        wall_ms=17.2,
        step_walls_ms=(17.2,) * 20,
        step_clock="device",
        shares=parts,
        hidden=Hidden(input_ms=0.1, copy_ms=0.0),
        has_accelerator=True,
        fetching=FetchFacts(
            recorded=True,
            kind="single-process",
            n_per_step=1.0,
            raw_wait_ms=11.2,
            waits_ms=(),
            n_iterators_created=0,
            n_exhausted=0,
            startup_ms=(),
        ),
        copies=(),
        kernels=KernelFacts(n_per_step=40.0, busy_ms=0.4, mean_us=10.0, communication_ms=None),
        syncs=SyncFacts(n_per_step=0.0, wait_ms=None, idle_after_ms=None),
        host=HostFacts(
            exposed_ms=1.3,
            hotspots=(),
            launch_call_ms=0.3,
            run_ahead_steps=0.0,
        ),
    )
    return changed(found, **changes)


def facts(**changes: Any) -> Facts:
    parts = shares(input=0.865, copy=0.003, compute=0.031, host=0.101)
    given: dict[str, Any] = {
        "command": "diagnose",
        "shares": parts,
        "shares_low": {"input": 0.83, "copy": 0.0},
        "hidden": Hidden(input_ms=0.1, copy_ms=0.0),
        "step": step_facts(estimate(13.118, 0.21)),
        "trace": trace_facts(shares(input=0.75, copy=0.002, compute=0.024, host=0.224)),
        "loaders": (LOADER,),
        "transfers": (),
        "workers": None,
        "ablation": AblationFacts(
            plain_ms=estimate(13.118, 0.21),
            no_input_ms=estimate(1.769, 0.06),
            no_copy_ms=estimate(1.729, 0.05),
            input_ms=estimate(11.349, 0.25),
            copy_ms=estimate(0.04, 0.08),
            n_rounds=6,
        ),
        "machine": MachineFacts(
            usable_cpus=16.0,
            memory_available_bytes=None,
            shm_free_bytes=None,
            open_files_limit=None,
            device_name="NVIDIA H100 80GB HBM3",
            device_memory_bytes=None,
            n_threads=8,
        ),
        "profiler_overhead": 1.31,
    }
    return Facts(**(given | changes))


BUSY = BusyFacts(
    every_ms=4.25,
    over_ms=17.0,
    shares=tuple(0.0 if i % 20 < 9 else 0.031 for i in range(80)),
    window_ms=340.0,
    idle_gaps=IdleGapFacts(
        spans_ms=((0.0, 38.0), (85.0, 123.0), (170.0, 208.0), (255.0, 293.0)),
        n=4,
        mean_ms=38.0,
        usual_share=0.031,
        low_share=0.0,
        of_window_share=0.447,
        period_ms=85.0,
        period_steps=5.0,
        regular=True,
        matches=None,
        match_steps=None,
        waiting_share=0.97,
    ),
)
DEVICE = GpuDeviceFacts(
    index=0,
    name="NVIDIA H100 80GB HBM3",
    memory_bytes=85_017_493_504,
    peak_allocated_bytes=None,
    peak_reserved_bytes=None,
    utilization_share=0.028,
    sm_efficiency_share=0.023,
    occupancy_share=0.12,
    tensor_core_share=0.41,
    plugin_tensor_core_share=0.114,
)
RANGES = (
    RangeFacts(
        name="train step", n_calls=20, host_ms_per_step=5.83, gpu_ms_per_step=0.41,
        n_kernels_per_step=40.0, depth=0,
    ),
    RangeFacts(
        name="log [red]metrics[/red]", n_calls=4, host_ms_per_step=0.312, gpu_ms_per_step=0.0,
        n_kernels_per_step=0.0, depth=1,
    ),
)  # fmt: skip


def with_gpu() -> Facts:
    """The facts of a diagnosis on a GPU, its use and the user's own ranges among them."""
    found = facts()
    assert found.trace is not None
    assert found.step is not None
    return replace(
        found,
        trace=replace(found.trace, gpu_devices=(DEVICE,), busy=BUSY, ranges=RANGES),
        step=replace(
            found.step,
            gpu_peak_allocated_bytes=1_310_000_000,
            gpu_peak_reserved_bytes=1_610_612_736,
        ),
    )
