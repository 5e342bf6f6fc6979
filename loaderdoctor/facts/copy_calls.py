"""What host-to-device copies of a trace cost beside the time in which they run."""

from __future__ import annotations

from loaderdoctor.facts.trace import CopyFacts, TraceFacts

# Fewer are a usual batch: images, labels, a mask or two, and the optimizer's scalars.
MIN_SMALL_COPIES = 8
# Tensors below this are copied in microseconds, pinned or not (a label vector, a scalar): that they
# are not pinned says nothing about the batch. 64 KiB is also where CUDA stops staging a pageable
# copy synchronously inside the call.
MIN_TENSOR_BYTES = 64 * 1024
# A `.to()` takes the host 0.02 to 0.03 ms (`traces/`, pinned labels), half of it for the profiler:
# copies that the device does in less are calls, and not bytes.
CALL_MS = 0.01


def small_copies(trace: TraceFacts) -> tuple[CopyFacts, ...]:
    """Those of many small ones, each of which costs a call; empty where there are few."""
    small = tuple(
        c
        for c in trace.copies
        if c.median_bytes < MIN_TENSOR_BYTES or c.busy_ms_per_step < CALL_MS * c.n_per_step
    )
    return small if sum(c.n_per_step for c in small) >= MIN_SMALL_COPIES else ()


def copy_calls_ms(trace: TraceFacts) -> float:
    """Exposed host time, ms a step, that copies cause.

    Idle time of the accelerator behind those that waited for all the work before them, and what
    the ops take that issue many small ones.
    """
    idle_ms = sum(c.idle_after_ms_per_step for c in trace.copies)
    return idle_ms + sum(c.op_host_ms_per_step for c in small_copies(trace))
