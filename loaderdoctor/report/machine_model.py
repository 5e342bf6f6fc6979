"""What report.json says of GPUs, of CPUs, and of the run besides its steps: part of `model.Report`.

Null where not recorded.
"""

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


class Outside(msgspec.Struct, frozen=True, kw_only=True):
    """What the run pays for outside its training steps, of one kind and place."""

    what: Literal["validation", "saving", "other"]
    site: str | None
    ms_per_step: float | None  # spread over the training steps; None: too few seen to know
    seconds: float  # each
    n: int  # seen
    every_steps: float | None
    at_epoch_end: bool = False
    in_steps: bool = False  # the step's own time holds it
    wait_share: float | None = None  # of a pass, getting its batches
    n_batches: float | None = None
    with_grad: bool = False


class Wall(msgspec.Struct, frozen=True, kw_only=True):
    """All of the run's time, spread over its training steps; milliseconds a step."""

    total_ms: float
    step_ms: float  # as in Step.wall_ms
    outside_ms: float
    outside_share: float  # of total_ms
    n_steps: int  # that were watched
    outside: tuple[Outside, ...]  # the largest first


class Cpu(msgspec.Struct, frozen=True, kw_only=True):
    """Who used the CPUs while plain windows were timed; CPU time / wall time, on average."""

    usable: float | None
    training: float | None  # the training process
    workers: float | None
    others: float | None  # other programs, of the usable ones; null: this system does not tell
    waiting_threads: float | None  # of the training process: ready to run and no CPU free
    throttled_share: float | None  # of a quota's periods; null: there is no quota
