"""A trace as columns: one numpy array per field, one row per complete event we need.

All times are integer nanoseconds on the trace's own clock, relative to the earliest event kept.

`ClockMap` ties the processes' clock to a trace's. The measuring process noted the instant at which
it opened certain spans (`WindowDone.clock_marks`). Both clocks run at the same rate (the kernel
disciplines both), so one offset maps them: the median over the marks, because a single mark may be
late when the thread lost the CPU in between.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import overload

import numpy as np
from numpy.typing import NDArray

from loaderdoctor.errors import TraceError

I8 = NDArray[np.int8]
I32 = NDArray[np.int32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


class Category(IntEnum):
    """What kind of event a row is, from the file's `cat`."""

    OTHER = 0
    CPU_OP = 1
    USER_ANNOTATION = 2
    RUNTIME = 3  # cuda_runtime and cuda_driver (hip and xpu likewise): calls on a host thread
    KERNEL = 4
    MEMCPY = 5
    MEMSET = 6
    GPU_ANNOTATION = 7  # gpu_user_annotation: a user annotation's shadow on a stream
    PYTHON = 8  # python_function, with `with_stack`
    WORKER = 9  # tracks we add: dataloader_worker


# Device rows have `device` and `stream`; every other row belongs to a host thread.
DEVICE_CATEGORIES = (Category.KERNEL, Category.MEMCPY, Category.MEMSET)
_ON_DEVICE = np.isin(np.arange(len(Category)), DEVICE_CATEGORIES)  # by category
ABSENT = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """Rows sorted by start. All arrays have the same length; ABSENT (-1) marks a missing value."""

    start_ns: I64
    end_ns: I64  # >= start_ns
    category: I8  # Category
    name: I32  # index into Trace.names
    thread: I32  # index into Trace.threads (device rows too: their pid/tid are device/stream)
    correlation: I64  # joins a RUNTIME row to the device rows it launched; ops have none
    external_id: I64
    device: I32
    stream: I32
    bytes: I64  # MEMCPY and MEMSET

    def __len__(self) -> int:
        return int(self.start_ns.shape[0])

    def where(self, mask: NDArray[np.bool_] | NDArray[np.intp]) -> Spans:
        """The rows selected, same order."""
        return Spans(
            start_ns=self.start_ns[mask],
            end_ns=self.end_ns[mask],
            category=self.category[mask],
            name=self.name[mask],
            thread=self.thread[mask],
            correlation=self.correlation[mask],
            external_id=self.external_id[mask],
            device=self.device[mask],
            stream=self.stream[mask],
            bytes=self.bytes[mask],
        )

    def of(self, *categories: Category) -> Spans:
        """The rows of these categories, same order."""
        return self.where(np.isin(self.category, np.asarray(categories, dtype=np.int8)))


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelShapes:
    """How each kernel was launched: one entry for each KERNEL row, in order. NaN: not recorded."""

    blocks_per_sm: F64  # thread blocks / multiprocessors of the device
    occupancy_percent: F64  # estimated achieved occupancy of the multiprocessors, 0…100


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPeak:
    """Highest totals of torch's allocator for one device, by memory events (`profile_memory`)."""

    device: int
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """A host thread, or a device stream for device rows. `tid` may be text in the file."""

    pid: str
    tid: str
    process_name: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """An accelerator as the trace's deviceProperties describe it."""

    index: int
    name: str
    memory_bytes: int | None
    compute_major: int | None = None  # CUDA: 8 is Ampere


@dataclass(frozen=True, slots=True, kw_only=True)
class LineStackSample:
    """Where the training thread's own code was at one instant, as our sampler saw it."""

    mark: str  # the last span of ours that had begun
    after_ns: int  # since then
    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """How large the file is that a trace was read from: what reading all of it would take."""

    n_bytes: int = 0  # unpacked
    n_events: int = 0  # of every kind
    n_begun: int = 0  # spans written as two events, where no other was found
    is_strict: bool = True  # whether every event decoded at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One capture of one process.

    `origin_us` is the file's `ts` (microseconds, `base_time_ns` apart from the epoch) at our
    nanosecond 0, so that `ts = origin_us + ns / 1000` leads back to the file.
    """

    source: Path
    spans: Spans
    names: tuple[str, ...]
    threads: tuple[Thread, ...]
    devices: tuple[Device, ...]
    origin_us: float
    base_time_ns: int
    rank: int | None  # distributedInfo, else None
    n_ranks: int | None
    n_dropped_events: int  # malformed events left out; reported, never silent
    host_name: str | None = None  # the machine it was recorded on, where the file says
    # Spans that begin after the part that was kept, for want of memory; 0: the trace is whole.
    n_later_events: int = 0
    n_memory_events: int = 0  # with `profile_memory`, of any device
    kernel_shapes: KernelShapes | None = None  # None: no kernel says
    memory_peaks: tuple[MemoryPeak, ...] = ()  # of accelerators; empty: no memory events
    stack_samples: tuple[LineStackSample, ...] = ()  # traces of ours with Python stacks
    text: Text = Text()

    @property
    def has_accelerator(self) -> bool:
        """Whether any work ran on a device in this trace."""
        return bool(_ON_DEVICE[self.spans.category].any())


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockMap:
    """trace ns = monotonic ns + `offset_ns`. Strictly monotone."""

    offset_ns: int

    @overload
    def to_trace(self, monotonic_ns: int) -> int: ...
    @overload
    def to_trace(self, monotonic_ns: I64) -> I64: ...
    def to_trace(self, monotonic_ns: int | I64) -> int | I64:
        """Trace time of an instant that a process noted."""
        return monotonic_ns + self.offset_ns


def calibrate(trace: Trace, marks: Sequence[tuple[str, int]]) -> ClockMap:
    """The map from marks: (name of a span, monotonic ns at which it was opened).

    Spans that bear one name are paired with its marks in order; a name whose spans and marks
    differ in number is left out. Raises TraceError where no mark can be paired.
    """
    noted: defaultdict[str, list[int]] = defaultdict(list)
    for name, at_ns in marks:
        noted[name].append(at_ns)
    spans = trace.spans
    host = np.isin(spans.category, (Category.USER_ANNOTATION, Category.CPU_OP, Category.OTHER))
    numbers = {name: i for i, name in enumerate(trace.names)}
    offsets: list[I64] = []
    for name, instants in noted.items():
        if name not in numbers:
            continue
        starts = np.sort(spans.start_ns[host & (spans.name == numbers[name])])
        if starts.size == len(instants):
            offsets.append(starts - np.sort(np.asarray(instants, dtype=np.int64)))
    if not offsets:
        raise TraceError(
            f"{trace.source}: none of the {len(marks)} clock marks is in the trace, so what "
            "workers recorded can't be placed in it. Record the window again."
        )
    every = np.sort(np.concatenate(offsets))
    # In integers: a float holds no 10^18 to the nanosecond.
    return ClockMap(offset_ns=int(every[every.size // 2]))
