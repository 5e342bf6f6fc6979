"""What is known of the accelerator's use: each device, busy time and its idle gaps, ranges.

Made by `attribution`'s `gpu`, `busy` and `user_ranges`, which hold the definitions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuDeviceFacts:
    """One device over all steps of a trace, by the TensorBoard plugin's definitions."""

    index: int
    name: str | None
    memory_bytes: int | None  # what the device has
    peak_allocated_bytes: int | None  # by the trace's memory events; None: it has none
    peak_reserved_bytes: int | None
    utilization_share: float | None  # a kernel runs
    sm_efficiency_share: float | None  # estimated
    occupancy_share: float | None  # estimated, achieved
    tensor_core_share: float | None  # of the kernels' time, by the names we know
    plugin_tensor_core_share: float | None  # likewise, by the plugin's list of names


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleGapFacts:
    """Times in which the accelerator falls idle, while at others it is busy."""

    spans_ms: tuple[tuple[float, float], ...]  # (begin, end), since the series' begin
    n: int
    mean_ms: float  # how long one lasts
    usual_share: float  # busy share of a typical step
    low_share: float  # busy share within the gaps
    of_window_share: float  # what the gaps take of the window
    period_ms: float | None  # begin to begin, mean; None for a single one
    period_steps: float | None  # likewise, in steps, median
    regular: bool  # they come back after about as many steps each time
    matches: Literal["worker-cycle", "epoch", None]
    match_steps: int | None  # steps of that cycle or epoch, where known
    waiting_share: float | None  # of their time: the loop waits for a batch; None: not recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyFacts:
    """How busy the accelerator is over the measured steps of a trace."""

    every_ms: float  # between two values
    over_ms: float  # each is the busy share of so long a time
    shares: tuple[float, ...]
    window_ms: float
    idle_gaps: IdleGapFacts | None  # None: there are none


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeFacts:
    """One of the user's own `record_function` ranges, over the measured steps of a trace."""

    name: str
    n_calls: int
    host_ms_per_step: float
    gpu_ms_per_step: float | None  # of kernels, copies, memsets launched inside; None: no device
    n_kernels_per_step: float | None
    depth: int  # of other ranges around it, at the least
