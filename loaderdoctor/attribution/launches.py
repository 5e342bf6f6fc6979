"""Kernels, launches and synchronising calls of the measured steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loaderdoctor.attribution.clock import StepClock
from loaderdoctor.attribution.copies import CopyRows
from loaderdoctor.attribution.rows import Rows
from loaderdoctor.intervals import Intervals
from loaderdoctor.trace.columns import ABSENT, I64, Category

_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """Totals over the measured steps; kernels are counted with the host step that launched them."""

    n_kernels: int
    mean_kernel_us: float | None
    n_launches: int
    launch_call_ns: int | None  # None: no runtime calls recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class Syncs:
    """Calls that block the host until the accelerator has caught up."""

    starts: I64
    ends: I64
    idle_after: Intervals  # from each one's end to the next kernel, the accelerator idle


def launches_of(rows: Rows, clock: StepClock) -> Launches:
    """Kernels run and launch calls made, collectives left out of the kernels."""
    spans, flags = rows.spans, rows.flags
    kernel = spans.category[rows.device_rows] == Category.KERNEL
    kernel &= ~flags.collective_kernel[spans.name[rows.device_rows]]
    kernels, call = rows.device_rows[kernel], rows.launched_by[kernel]
    begun = np.where(call != ABSENT, spans.start_ns[np.maximum(call, 0)], spans.start_ns[kernels])
    kernels = kernels[clock.host_window.contains(begun)]
    launches = np.flatnonzero(rows.named(flags.launch, Category.RUNTIME))
    has_runtime = bool((spans.category == Category.RUNTIME).any())
    launches = launches[clock.host_window.contains(spans.start_ns[launches])]
    lengths = spans.end_ns[kernels] - spans.start_ns[kernels]
    return Launches(
        n_kernels=int(kernels.size),
        mean_kernel_us=float(lengths.mean()) / 1e3 if kernels.size else None,
        n_launches=int(launches.size),
        launch_call_ns=(
            int((spans.end_ns[launches] - spans.start_ns[launches]).sum()) if has_runtime else None
        ),
    )


def syncs_of(
    rows: Rows, copies: CopyRows, clock: StepClock, kernels: Intervals, host: Intervals
) -> Syncs:
    """Syncs of the loop within the measured host steps.

    Stream, device and event syncs of the training thread, together with the D2H copy that some
    belong to (`.item()`, `.cpu()`). Not: the sync of an H2D copy, which is the copy's own; what
    other threads wait for; the profiler's own device syncs, which lie before the second step and
    after the last. `idle_after` counts only what the identity calls `host`: after a sync, a wait
    for the loader is the loader's.
    """
    spans = rows.spans
    mask = rows.named(rows.flags.sync, Category.RUNTIME) & rows.on_training_thread()
    mask[copies.sync[copies.sync != ABSENT]] = False
    every = np.flatnonzero(mask)
    # What follows the syncs lies in the window of the device's steps, which the host's precede.
    ends = spans.end_ns[every]
    ends = ends[clock.window.contains(ends)]
    after = np.searchsorted(kernels.ends, ends, side="right")
    next_kernel = np.append(kernels.starts, _NEVER)[after]
    syncs = every[clock.host_window.contains(spans.start_ns[every])]
    return Syncs(
        starts=_with_own_copy(rows, syncs),
        ends=spans.end_ns[syncs],
        idle_after=Intervals.of(ends, next_kernel).intersect(host),
    )


def _with_own_copy(rows: Rows, syncs: np.ndarray[tuple[int], np.dtype[np.intp]]) -> I64:
    """Where each sync's blocking begins: with the D2H copy of the same op, if it has one."""
    spans = rows.spans
    starts = spans.start_ns[syncs].copy()
    is_d2h = (spans.category[rows.device_rows] == Category.MEMCPY) & (
        rows.flags.d2h[spans.name[rows.device_rows]] & (rows.launched_by != ABSENT)
    )
    calls = rows.launched_by[is_d2h]
    calls = calls[
        (spans.thread[calls] == rows.training_thread) & (spans.external_id[calls] != ABSENT)
    ]
    if calls.size == 0 or syncs.size == 0:
        return starts
    calls = calls[np.argsort(spans.external_id[calls], kind="stable")]
    ids = spans.external_id[calls]
    at = np.minimum(np.searchsorted(ids, spans.external_id[syncs]), ids.size - 1)
    same = (ids[at] == spans.external_id[syncs]) & (spans.start_ns[calls[at]] <= starts)
    return np.where(same, spans.start_ns[calls[at]], starts)
