"""What report.json says of GPUs, null where not recorded: part of `model.Report`."""

from __future__ import annotations

from typing import Literal

import msgspec

from loaderdoctor.estimate import Interval


class GpuDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One device over all steps of the profiled window: docs/gpu.md has the definitions."""

    index: int
    name: str | None
    memory_bytes: int | None
    utilization_share: float | None
    sm_efficiency_share: float | None
    occupancy_share: float | None
    tensor_core_share: float | None  # of the time in kernels
    plugin_tensor_core_share: float | None  # likewise, as TensorBoard shows it


class GpuIdleGaps(msgspec.Struct, frozen=True, kw_only=True):
    """When the GPU falls idle: how deep, how long, how often, and what goes with it."""

    n: int
    mean_ms: float
    usual_share: float  # busy share of a typical step
    low_share: float  # within the gaps
    of_window_share: float
    period_ms: float | None
    period_steps: float | None
    regular: bool
    matches: Literal["worker-cycle", "epoch", None]
    match_steps: int | None
    waiting_share: float | None  # of their time: the loop waits for a batch
    spans_ms: tuple[Interval, ...]  # since the window's begin


class GpuBusy(msgspec.Struct, frozen=True, kw_only=True):
    """Busy share over the profiled window's steps: every `every_ms`, each of `over_ms`."""

    summary: str
    window_ms: float
    every_ms: float
    over_ms: float
    shares: tuple[float, ...]
    idle_gaps: GpuIdleGaps | None = msgspec.field(name="dips")  # None: there are none


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """How well the GPU is used.

    Peaks are torch's allocator's in a plain window; without one, those of the trace's memory
    events, of the device that holds most.
    """

    devices: tuple[GpuDevice, ...]
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    busy: GpuBusy | None
