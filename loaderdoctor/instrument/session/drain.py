"""The loader alone: batches fetched back to back, of which the loop gets none.

Runs in the measuring process, on the training thread, between two steps of the paused loop. What
it gives is the ceiling that the loader sets, whatever the model does.
"""

from __future__ import annotations

from time import perf_counter_ns

from loaderdoctor.instrument.batches.replay_buffer import Source
from loaderdoctor.instrument.wire.protocol import WindowDone, WindowRequest


def drained(
    source: Source, request: WindowRequest, *, cycle: int, samples_per_batch: float, deadline: int
) -> WindowDone:
    """Times fetches of `source` until `n_steps` of them, or the deadline; `host_step_ns` has them.

    One cycle of the workers goes first: their first batches come together. Raises StopIteration
    where the data is at an end before anything was timed.
    """
    source.drop(cycle)
    start = before = perf_counter_ns()
    times: list[int] = []
    while len(times) < request.n_steps and before < deadline:
        source.next_batch()
        now = perf_counter_ns()
        times.append(now - before)
        before = now
    whole = len(times) == request.n_steps
    return WindowDone(
        id=request.id,
        mode=request.mode,
        status="ok" if whole else "short",
        reason=None if whole else f"the window's {request.limit_s} s were over",
        n_steps=len(times),
        n_samples=round(len(times) * samples_per_batch),
        start_ns=start,
        end_ns=before,
        host_step_ns=tuple(times),
        startup_ns=source.startup_ns,
    )
