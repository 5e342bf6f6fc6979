"""One training process of a trace, where a file was merged from those of several.

torch.profiler records one process. Tools that merge the traces of a job's ranks keep each event's
pid, but correlation ids, and often devices, are each process's own and occur again in the others.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from loaderdoctor.attribution.rows import Mask, Rows
from loaderdoctor.trace.columns import (
    ABSENT,
    DEVICE_CATEGORIES,
    Category,
    KernelShapes,
    Spans,
    Trace,
)

# Rows whose pid is no process of the training: a device's number, or a track we add.
_NO_PROCESS = (*DEVICE_CATEGORIES, Category.GPU_ANNOTATION, Category.WORKER)


def other_processes(trace: Trace, rows: Rows) -> frozenset[str]:
    """Pids that have marks of a training loop of their own; empty in what torch.profiler writes."""
    flags = rows.flags
    marks = rows.named(flags.step | flags.optimizer | flags.fetch, Category.USER_ANNOTATION)
    threads = np.flatnonzero(np.bincount(rows.spans.thread[marks])).tolist()
    if rows.training_thread == ABSENT:
        return frozenset()
    return frozenset(trace.threads[t].pid for t in threads) - {
        trace.threads[rows.training_thread].pid
    }


def without_processes(trace: Trace, rows: Rows, pids: frozenset[str]) -> Trace:
    """The trace less what these processes did, on the host and on the devices."""
    spans = trace.spans
    foreign = np.array([thread.pid in pids for thread in trace.threads], np.bool_)[spans.thread]
    foreign &= ~np.isin(spans.category, np.asarray(_NO_PROCESS, np.int8))
    foreign[rows.device_rows] = _foreign_work(spans, rows, foreign)
    kept = ~foreign
    shapes = trace.kernel_shapes
    if shapes is not None:
        kernels = kept[spans.category == Category.KERNEL]
        shapes = KernelShapes(
            blocks_per_sm=shapes.blocks_per_sm[kernels],
            occupancy_percent=shapes.occupancy_percent[kernels],
        )
    return replace(trace, spans=spans.where(kept), kernel_shapes=shapes)


def _foreign_work(spans: Spans, rows: Rows, foreign: Mask) -> Mask:
    """Which device rows other processes launched, in the order of `rows.device_rows`.

    An id known in one process alone tells it. For the rest the majority of those on the same
    device does: as a rule each process has one of its own. Fooled by: processes that share a
    device, or have all their ids in common.
    """
    device = rows.device_rows
    calls = (spans.category == Category.RUNTIME) & (spans.correlation != ABSENT)
    wanted = spans.correlation[device]
    here = np.isin(wanted, spans.correlation[calls & ~foreign])
    there = np.isin(wanted, spans.correlation[calls & foreign])
    place = np.unique(
        np.stack((spans.thread[device], spans.device[device])), axis=1, return_inverse=True
    )[1].reshape(-1)
    lead = np.bincount(place, weights=there.astype(np.int64) - here.astype(np.int64))
    return np.where(here == there, lead[place] > 0, there)
