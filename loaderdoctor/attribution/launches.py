"""Kernels, launches and synchronising calls of the measured steps."""

from __future__ import annotations

import numpy as np

from loaderdoctor.attribution.clock import StepClock
from loaderdoctor.attribution.copies import CopyRows
from loaderdoctor.attribution.identity import Partition
from loaderdoctor.attribution.trace_rows import Index, Rows
from loaderdoctor.facts.trace import KernelFacts, SyncFacts
from loaderdoctor.intervals import Intervals
from loaderdoctor.trace.columns import ABSENT, I64, Category
from loaderdoctor.units import NS_PER_US

_NEVER = np.iinfo(np.int64).max


def kernel_facts(
    rows: Rows, clock: StepClock, partition: Partition, *, has_accelerator: bool
) -> KernelFacts:
    """Kernels of the measured steps, collectives apart; each is counted where it was launched."""
    spans, flags = rows.spans, rows.flags
    kernel = spans.category[rows.device_rows] == Category.KERNEL
    kernel &= ~flags.collective_kernel[spans.name[rows.device_rows]]
    kernels, call = rows.device_rows[kernel], rows.launched_by[kernel]
    begun = np.where(call != ABSENT, spans.start_ns[np.maximum(call, 0)], spans.start_ns[kernels])
    kernels = kernels[clock.host_window.contains(begun)]
    lengths = spans.end_ns[kernels] - spans.start_ns[kernels]
    return KernelFacts(
        n_per_step=kernels.size / clock.per_step,
        busy_ms=clock.ms_per_step(partition.compute.total_ns) if has_accelerator else 0.0,
        mean_us=float(lengths.mean()) / NS_PER_US if kernels.size else None,
        communication_ms=clock.ms_per_step(partition.communication.total_ns),
    )


def launch_calls(rows: Rows, clock: StepClock) -> tuple[int, int | None]:
    """How many calls launched something in the measured steps, and the time inside them (ns).

    No time where no runtime calls were recorded.
    """
    spans = rows.spans
    launches = np.flatnonzero(rows.named(rows.flags.launch, Category.RUNTIME))
    launches = launches[clock.host_window.contains(spans.start_ns[launches])]
    total_ns = int((spans.end_ns[launches] - spans.start_ns[launches]).sum())
    return int(launches.size), total_ns if rows.of_category[Category.RUNTIME].size else None


def sync_facts(
    rows: Rows,
    copies: CopyRows,
    clock: StepClock,
    kernels: Intervals,
    host: Intervals,
    *,
    has_accelerator: bool,
) -> SyncFacts:
    """Syncs of the loop within the measured host steps; their times only of an accelerator.

    Stream, device and event syncs of the training thread, together with the D2H copy that some
    belong to (`.item()`, `.cpu()`). Not: the sync of an H2D copy, which is the copy's own; what
    other threads wait for; the profiler's own device syncs, which lie before the second step and
    after the last. `idle_after_ms` counts only what the identity calls `host`: after a sync, a
    wait for the loader is the loader's.
    """
    spans = rows.spans
    mask = rows.named(rows.flags.sync, Category.RUNTIME) & rows.on_training_thread()
    mask[copies.sync[copies.sync != ABSENT]] = False
    every = np.flatnonzero(mask)
    syncs = every[clock.host_window.contains(spans.start_ns[every])]
    if not has_accelerator:
        return SyncFacts(n_per_step=syncs.size / clock.per_step, wait_ms=None, idle_after_ms=None)
    # What follows the syncs lies in the window of the device's steps, which the host's precede.
    ends = spans.end_ns[every]
    ends = ends[clock.window.contains(ends)]
    after = np.searchsorted(kernels.ends, ends, side="right")
    next_kernel = np.append(kernels.starts, _NEVER)[after]
    waited_ns = int((spans.end_ns[syncs] - _with_own_copy(rows, syncs)).sum())
    idle = Intervals.of(ends, next_kernel).intersect(host)
    to_host = rows.device_rows[
        (spans.category[rows.device_rows] == Category.MEMCPY)
        & rows.flags.d2h[spans.name[rows.device_rows]]
    ]
    to_host = to_host[clock.window.contains(spans.start_ns[to_host])]
    n_bytes = spans.bytes[to_host]
    return SyncFacts(
        n_per_step=syncs.size / clock.per_step,
        wait_ms=clock.ms_per_step(waited_ns),
        idle_after_ms=clock.ms_per_step(idle.total_ns),
        n_to_host_per_step=to_host.size / clock.per_step,
        to_host_bytes=float(n_bytes[n_bytes != ABSENT].sum(dtype=np.float64)) / clock.per_step,
        to_host_ms=clock.ms_per_step(rows.intervals(to_host).intersect(host).total_ns),
    )


def _with_own_copy(rows: Rows, syncs: Index) -> I64:
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
