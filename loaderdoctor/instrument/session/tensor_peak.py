"""How much memory the tensors of one step take, where no allocator keeps a peak: on the CPU.

Runs on the training thread, in one step after a window's timed ones. torch's profiler reports every
allocation of the CPU's allocator; the process's memory would say little, since the C library keeps
what was freed and everything else of the process lies in it too.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from loaderdoctor.instrument.session.profiling import ProfilerBusyError, refuse_second_profiler
from loaderdoctor.instrument.wire.protocol import WindowDone, WindowRequest

if TYPE_CHECKING:
    from loaderdoctor.instrument.session.session import Session

_ALLOCATION = "[memory]"  # as kineto names the allocator's reports


def with_tensor_peak(
    session: Session, request: WindowRequest, steps: Generator[None, int, WindowDone]
) -> Generator[None, int, WindowDone]:
    """The window of `steps`, and where it is asked for the memory of one more step."""
    done = yield from steps
    if not request.tensor_memory or session.device is not None or done.reason is not None:
        return done
    peak = yield from _watched_step()
    return msgspec.structs.replace(done, tensor_peak_bytes=peak)


def _watched_step() -> Generator[None, int, int | None]:
    """Bytes; None where the script's own profiler is at work."""
    from torch.profiler import ProfilerActivity, profile

    try:
        refuse_second_profiler(1)
    except ProfilerBusyError:
        return None
    watch = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    watch.start()
    try:
        yield
    finally:
        watch.stop()
    results = watch.profiler.kineto_results if watch.profiler is not None else None
    if results is None:
        return None
    events: list[Any] = results.events()
    changes = [(one.start_ns(), one.nbytes()) for one in events if one.name() == _ALLOCATION]
    changes.sort(key=lambda change: change[0])  # stable: as reported where the clock stood still
    return largest_rise(n_bytes for _, n_bytes in changes)


def largest_rise(changes: Iterable[int]) -> int:
    """The most that the sum of these changes rises above an earlier value of it.

    Not above its start: what the step before left, as gradients that are dropped first, doesn't
    count.
    """
    level = lowest = rise = 0
    for change in changes:
        level += change
        lowest = min(lowest, level)
        rise = max(rise, level - lowest)
    return rise
