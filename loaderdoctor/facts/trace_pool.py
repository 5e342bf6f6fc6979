"""Whether a trace's loop goes at the pace of its worker processes: then nothing else sets it."""

from __future__ import annotations

import math

from loaderdoctor.facts.shares import HIGH_SHARE, MODERATE_SHARE
from loaderdoctor.facts.trace import TraceFacts

# Receiving a batch from a worker (descriptors, unpickling) is no waiting for it. Beside an
# accelerator it takes 0.1 to 0.3 ms, and 8.6 µs a tensor where there are many (129 in
# `many_small_copies`, H200); on a CPU that workers share it was seen to take 4 ms and more.
RECEIVING_MS = 0.3
RECEIVING_MS_PER_TENSOR = 0.01
BURST_PART = 0.25


def in_bursts(waits_ms: tuple[float, ...]) -> bool:
    """Whether half of all waiting is in a quarter of the fetches: no cost that each of them has."""
    if len(waits_ms) < 4:
        return False
    longest = sorted(waits_ms, reverse=True)[: max(1, round(len(waits_ms) * BURST_PART))]
    return 2 * math.fsum(longest) > math.fsum(waits_ms) > 0


# Copies that cost this much more than the waits do are no mere part of them: the waits come now and
# then, of slow batches.
MAX_COPY_PER_WAIT = 1.5


def only_workers_help(trace: TraceFacts, *, input_share: float, copy_share: float) -> bool:
    """Whether the loop would but wait the longer for its workers if its copies were faster."""
    return workers_set_the_pace(trace) and copy_share <= MAX_COPY_PER_WAIT * input_share


def workers_set_the_pace(trace: TraceFacts) -> bool:
    """Whether the loop waits for batches that worker processes are making.

    A pool's pace is its own: what the loop does meanwhile, and what recording adds to that, is
    time that it waits less. Not where it waits for workers to start, or receives what is ready.
    Fooled by: batches that take far longer to receive than those seen.
    """
    fetching, share = trace.fetching, trace.shares.input or 0.0
    if fetching.kind not in ("multi-process", "mixed") or trace.wall_ms <= 0:
        return False
    started_ms = fetching.all_boundaries_ms / max(1, trace.n_steps)
    waiting = share - started_ms / trace.wall_ms
    if waiting < share / 2:
        return False
    if waiting >= 2 * MODERATE_SHARE and in_bursts(fetching.waits_ms):
        return True
    if not trace.has_accelerator:
        return waiting >= HIGH_SHARE
    n_tensors = sum(c.n_per_step for c in trace.copies)
    received_ms = RECEIVING_MS + RECEIVING_MS_PER_TENSOR * n_tensors
    return waiting - received_ms * (fetching.n_per_step or 1.0) / trace.wall_ms >= MODERATE_SHARE
