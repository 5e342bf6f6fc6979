"""torch's memory history over one window: recorded, saved as a snapshot, and switched off again.

The snapshot is torch's own (`torch.cuda.memory._snapshot`, pickled as `_dump_snapshot` does), which
https://pytorch.org/memory_viz opens. The allocator keeps the latest `max_entries` events; each has
the Python stack it was made from. Runs on the training thread, at step boundaries.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from loaderdoctor.instrument.session.sources import SourceRefusedError
from loaderdoctor.instrument.wire.protocol import WindowDone, WindowRequest

if TYPE_CHECKING:
    from loaderdoctor.instrument.session.session import Session

Timed = Generator[None, int, WindowDone]


def recorded(session: Session, request: WindowRequest, timed: Timed) -> Timed:
    """The window `timed`, with the allocator's history recorded over it and saved, where asked.

    Raises SourceRefusedError where it can't be recorded, OSError where it can't be saved.
    """
    if not request.memory_entries:
        return (yield from timed)
    begin(session.device, request.memory_entries)
    try:
        done = yield from timed
        if request.snapshot_path is None:
            return done
        path = _own_path(Path(request.snapshot_path), in_group=session.group)
        return msgspec.structs.replace(done, snapshot_path=str(path), snapshot_entries=save(path))
    finally:
        end()


def begin(device: Any, max_entries: int) -> None:
    """Start recording. Raises SourceRefusedError where there is none, or the script's own runs."""
    import torch

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


def save(path: Path) -> int:
    """Write the snapshot; how many events of the history it holds. Raises OSError."""
    import torch

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


def end() -> None:
    """Stop recording and drop what was recorded."""
    import torch

    torch.cuda.memory._record_memory_history(None)


def _own_path(path: Path, *, in_group: bool) -> Path:
    """Ranks of one job get the same path, and may share the folder."""
    if not in_group:
        return path
    return path.with_name(f"{path.stem}-rank{os.environ.get('RANK', '0')}{path.suffix}")
