"""The memory that a window takes: torch's history of it, and the peak of one step on the CPU.

Runs on the training thread, at step boundaries. Each wraps the window that is being timed.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.profiler import ProfilerActivity, profile

from loaderdoctor.instrument.session.profiling import (
    ProfilerBusyError,
    refuse_second_profiler,
    release,
)
from loaderdoctor.instrument.session.sources import SourceRefusedError
from loaderdoctor.instrument.wire.protocol import WindowDone, WindowRequest
from loaderdoctor.instrument.wire.window_records import SnapshotRecord

Timed = Generator[None, int, WindowDone]

_ALLOCATION = "[memory]"  # as kineto names the allocator's reports


def with_history(
    device: torch.device | None, request: WindowRequest, timed: Timed, *, in_group: bool
) -> Timed:
    """The window `timed`, with the allocator's history recorded over it and saved, where asked.

    The snapshot is torch's own (`torch.cuda.memory._snapshot`, pickled as `_dump_snapshot` does),
    which https://pytorch.org/memory_viz opens. The allocator keeps the latest `max_entries` events;
    each has the Python stack it was made from.

    Raises SourceRefusedError where it can't be recorded, OSError where it can't be saved.
    """
    if not request.memory_entries:
        return (yield from timed)
    _begin(device, request.memory_entries)
    try:
        done = yield from timed
        if request.snapshot_path is None:
            return done
        path = _own_path(Path(request.snapshot_path), in_group=in_group)
        saved = SnapshotRecord(path=str(path), n_entries=_save(path))
        return msgspec.structs.replace(done, snapshot=saved)
    finally:
        _end()


def _begin(device: torch.device | None, max_entries: int) -> None:
    """Start recording. Raises SourceRefusedError where there is none, or the script's own runs."""
    if device is None or device.type != "cuda":
        raise SourceRefusedError("torch records the memory history of CUDA and ROCm devices only")
    if torch._C._cuda_isHistoryEnabled():
        raise SourceRefusedError(
            "the script records torch's memory history itself, and recording it again would drop "
            "what it has"
        )
    # Python stacks only: those of C++ take many times as long to record and to save.
    torch.cuda.memory._record_memory_history(
        "all", context="all", stacks="python", max_entries=max_entries
    )


def _save(path: Path) -> int:
    """Write the snapshot; how many events of the history it holds. Raises OSError."""
    snapshot = torch.cuda.memory._snapshot()
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".part")
    try:
        with unfinished.open("wb") as file:
            pickle.dump(snapshot, file)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return sum(len(events) for events in snapshot["device_traces"])


def _end() -> None:
    """Stop recording and drop what was recorded."""
    torch.cuda.memory._record_memory_history(None)


def _own_path(path: Path, *, in_group: bool) -> Path:
    """Ranks of one job get the same path, and may share the folder."""
    if not in_group:
        return path
    return path.with_name(f"{path.stem}-rank{os.environ.get('RANK', '0')}{path.suffix}")


def with_tensor_peak(device: torch.device | None, request: WindowRequest, timed: Timed) -> Timed:
    """The window `timed`, and where it is asked for the memory of one more step.

    On the CPU no allocator keeps a peak. torch's profiler reports every allocation there; the
    process's memory would say little, since the C library keeps what was freed and everything else
    of the process lies in it too.
    """
    done = yield from timed
    if not request.tensor_memory or device is not None or done.reason is not None:
        return done
    peak = yield from _watched_step()
    return msgspec.structs.replace(done, tensor_peak_bytes=peak)


def _watched_step() -> Generator[None, int, int | None]:
    """Bytes; None where the script's own profiler is at work."""
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
    release(watch)
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
