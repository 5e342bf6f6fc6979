"""What a worker of a recorded run keeps of its batches: sums, in a small file that never grows.

One file a worker, mapped into memory by the worker and overwritten in place; the training process
reads all of them every few seconds and removes those of workers that have ended. Imports nothing
but the standard library: it is loaded in every worker. Times are CLOCK_MONOTONIC nanoseconds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

SUFFIX: Final = ".sums"
MAGIC: Final = 0x31534D55
LAYOUT: Final = Struct("<IIiIqqqqqq")


class WorkerSums(NamedTuple):
    """One worker so far. `ended`: it has said that it ends."""

    magic: int
    pid: int
    worker: int
    ended: int
    started_ns: int
    n_batches: int
    make_ns: int
    cpu_ns: int
    idle_ns: int
    longest_ns: int  # since the file was last read, or a little longer


def read_all(folder: Path) -> Iterator[tuple[Path, WorkerSums]]:
    """Every worker that has a file in `folder`; files that are no such are passed over."""
    try:
        with os.scandir(folder) as found:
            paths = [Path(entry.path) for entry in found if entry.name.endswith(SUFFIX)]
    except OSError:
        return
    for path in paths:
        with suppress(OSError):
            content = path.read_bytes()
            if len(content) == LAYOUT.size:
                sums = WorkerSums(*LAYOUT.unpack(content))
                if sums.magic == MAGIC:
                    yield path, sums
