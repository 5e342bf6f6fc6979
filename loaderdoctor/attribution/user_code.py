"""The user's own code in a trace: lines, by stack samples, and its `record_function` ranges.

torch's Python stacks name a function by its first line, and the one that was running when the
profiler began by the line it was at then. Neither says where in a loop the time goes: which lines a
function's own host time goes to tell stack samples, or what it calls.

A range is a `user_annotation` span that neither torch, a library it brings, nor we opened. Device
work belongs to every range in which its launching call was made (joined by correlation id), so that
an outer range holds what its inner ones launch; a range nested in one of the same name counts once.
Device time is the sum of what kernels, copies and memsets took: of several streams it can exceed
the wall time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from loaderdoctor.attribution.clock import StepClock
from loaderdoctor.attribution.trace_rows import (
    FETCH_PREFIX,
    OPTIMIZER_PREFIX,
    STEP_PREFIX,
    Index,
    Rows,
)
from loaderdoctor.facts.trace import HostHotspot, RangeFacts
from loaderdoctor.intervals import Intervals
from loaderdoctor.trace.columns import ABSENT, I64, Category, LineStackSample
from loaderdoctor.trace.events import shortened
from loaderdoctor.units import NS_PER_MS

MAX_RANGES = 50
# Ranges deeper than this are passed over: time grows with depth, and people nest a few.
MAX_DEPTH = 200

# What torch (2.6 to 2.14) opens by itself, and we do; the rest is the user's, or a framework's that
# named it for the user (Lightning's `[pl][profile]…`).
_NOT_THE_USERS = re.compile(
    "|".join(
        (
            *map(re.escape, (STEP_PREFIX, FETCH_PREFIX, OPTIMIZER_PREFIX, "loaderdoctor: ")),
            r"enumerate\(DataPipe\)",
            r"(nccl|gloo|mpi|ucc|xccl):",
            r"(c10d|aten|autograd|cuda|torch)::",
            r"(Distributed)?DataParallel\.",
            r"(FullyShardedDataParallel|FSDP)(\b|::)",
            r"DDP(Sink|\.|::)",
            r"ZeroRedundancyOptimizer",
            r"## Call CompiledFxGraph",
            r"Torch-Compiled Region",
            r"TorchDynamo |TORCHDYNAMO$|.*\(dynamo_timed\)$",
            r".*_data: (fn_name|compile_id)=",  # each phase of a compilation, torch 2.14
            r"Pregraph bytecode",
            r"fused_(scaled_)?matmul_reduce_scatter$|fused_all_gather_(scaled_)?matmul$",
            r"Compiled(Function|FxGraph)",
            r"PyTorch Profiler \(",
            r"Iteration Start: PyTorch Profiler",
        )
    )
)


@dataclass(frozen=True, slots=True)
class _Ranges:
    """Spans of the user's, thread after thread, by start, outer before inner."""

    rows: Index
    thread: I64
    start_ns: I64
    end_ns: I64
    name: I64
    parent: I64  # index into these arrays, ABSENT for the outermost
    depth: I64


def user_ranges(rows: Rows, clock: StepClock) -> tuple[tuple[RangeFacts, ...], int]:
    """Those that begin within the measured host steps, costliest first; how many were left out."""
    ranges = _ranges_of(rows, clock)
    if ranges.rows.size == 0:
        return (), 0
    spans = rows.spans
    within_own_name = _within_own_name(ranges)
    length = ranges.end_ns - ranges.start_ns
    joined = rows.launched_by != ABSENT
    device_ns = np.zeros(length.size, np.int64)
    n_kernels = np.zeros(length.size, np.int64)
    if joined.any():
        device, call = rows.device_rows[joined], rows.launched_by[joined]
        at = _innermost(rows, ranges, call)
        device, at = device[at != ABSENT], at[at != ABSENT]
        np.add.at(device_ns, at, spans.end_ns[device] - spans.start_ns[device])
        np.add.at(n_kernels, at, spans.category[device] == Category.KERNEL)
        for level in range(int(ranges.depth.max()), 0, -1):
            inner = np.flatnonzero(ranges.depth == level)
            np.add.at(device_ns, ranges.parent[inner], device_ns[inner])
            np.add.at(n_kernels, ranges.parent[inner], n_kernels[inner])
    outer = ~within_own_name
    present, number = np.unique(ranges.name, return_inverse=True)

    def total(values: I64, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> I64:
        sums = np.zeros(present.size, np.int64)
        np.add.at(sums, number[chosen], values[chosen])
        return sums

    calls = np.bincount(number)
    host, on_device = total(length, outer), total(device_ns, outer)
    kernels = total(n_kernels, outer)
    order = np.lexsort((present, -np.maximum(host, on_device)))
    found = tuple(
        RangeFacts(
            name=shortened(rows.names[int(present[i])], MAX_SHOWN_CHARS),
            n_calls=int(calls[i]),
            host_ms_per_step=clock.ms_per_step(int(host[i])),
            gpu_ms_per_step=(clock.ms_per_step(int(on_device[i])) if joined.any() else None),
            n_kernels_per_step=int(kernels[i]) / clock.per_step if joined.any() else None,
            depth=int(ranges.depth[number == i].min()),
        )
        for i in order[:MAX_RANGES].tolist()
    )
    return found, max(0, present.size - MAX_RANGES)


def is_users(name: str) -> bool:
    """Whether an annotation is the user's own."""
    return _NOT_THE_USERS.match(name) is None


def _ranges_of(rows: Rows, clock: StepClock) -> _Ranges:
    spans = rows.spans
    annotated = rows.of_category[Category.USER_ANNOTATION]
    theirs = np.zeros(len(rows.names), np.bool_)
    for name in np.flatnonzero(np.bincount(spans.name[annotated])).tolist():
        theirs[name] = is_users(rows.names[name])
    index = annotated[theirs[spans.name[annotated]]]
    index = index[clock.host_window.contains(spans.start_ns[index])]
    thread = spans.thread[index].astype(np.int64)
    order = np.lexsort((-spans.end_ns[index], spans.start_ns[index], thread))
    index, thread = index[order], thread[order]
    start, end = spans.start_ns[index], spans.end_ns[index]
    depth, parent = _nesting(thread, start, end)
    if depth.size and int(depth.max()) > MAX_DEPTH:
        index, thread = index[depth <= MAX_DEPTH], thread[depth <= MAX_DEPTH]
        start, end = spans.start_ns[index], spans.end_ns[index]
        depth, parent = _nesting(thread, start, end)
    return _Ranges(
        rows=index,
        thread=thread,
        start_ns=start,
        end_ns=end,
        name=spans.name[index].astype(np.int64),
        parent=parent,
        depth=depth,
    )


def _nesting(thread: I64, start_ns: I64, end_ns: I64) -> tuple[I64, I64]:
    """How deep each span lies, and the span around it; spans of one thread by start, outer first.

    Spans that cross (opened and closed out of order) count as nested in the one that began before.
    """
    depth = np.zeros(start_ns.size, np.int64)
    parent = np.full(start_ns.size, ABSENT, np.int64)
    for _, mine in _by_thread(thread, np.arange(thread.size)):
        # At a common instant the ending span comes first: touching spans are siblings.
        closed = np.searchsorted(np.sort(end_ns[mine]), start_ns[mine], side="right")
        depth[mine] = np.maximum(np.arange(mine.size) - closed, 0)
        for level in range(1, min(MAX_DEPTH, int(depth[mine].max(initial=0))) + 1):
            inner = mine[depth[mine] == level]
            above = mine[depth[mine] == level - 1]
            parent[inner] = above[np.searchsorted(above, inner) - 1]
    return depth, parent


def _by_thread(thread: I64, index: Index) -> Iterator[tuple[int, Index]]:
    """Each thread and the part of `index` that is its own, in order."""
    order = np.argsort(thread, kind="stable")
    cuts = np.flatnonzero(np.diff(thread[order])) + 1
    for part in np.split(order, cuts):
        if part.size:
            yield int(thread[part[0]]), index[part]


def _within_own_name(ranges: _Ranges) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which spans lie in another of the same name."""
    inside = np.zeros(ranges.name.size, np.bool_)
    ancestor = ranges.parent.copy()
    while (known := ancestor != ABSENT).any():
        inside[known] |= ranges.name[ancestor[known]] == ranges.name[known]
        ancestor[known] = ranges.parent[ancestor[known]]
    return inside


def _innermost(rows: Rows, ranges: _Ranges, call: I64) -> I64:
    """The innermost range around each launching call; ABSENT where there is none.

    A call counts with the ranges of its own thread. Threads that have none and make no batches are
    autograd's: they work while the training thread waits in `backward`, so their calls count with
    the ranges that are open there.
    """
    spans = rows.spans
    thread = spans.thread[call].astype(np.int64)
    having = np.unique(ranges.thread)
    lent = ~np.isin(thread, having) & ~np.isin(thread, np.asarray(rows.producer_threads, np.int64))
    thread[lent] = rows.training_thread
    at_ns = spans.start_ns[call]
    found = np.full(call.size, ABSENT, np.int64)
    of_thread = dict(_by_thread(ranges.thread, np.arange(ranges.thread.size)))
    for number, calls in _by_thread(thread, np.arange(thread.size)):
        mine = of_thread.get(number)
        if mine is None:
            continue
        last = np.searchsorted(ranges.start_ns[mine], at_ns[calls], side="right") - 1
        found[calls] = np.where(last >= 0, mine[np.maximum(last, 0)], ABSENT)
    # The last range begun may be over: then what was around it.
    while (over := (found != ABSENT) & (ranges.end_ns[found] <= at_ns)).any():
        found[over] = ranges.parent[found[over]]
    return found


# With fewer stack samples a line's share is a guess: of 8, two may be elsewhere by chance (95 %).
MIN_STACK_SAMPLES = 8
# A line with less of its function's time is not worth a row of its own.
MIN_LINE_SHARE = 0.05
# What a function calls is named with it where that is most of its own time.
MIN_CALLED_PART = 0.5
# Longer names are cut where people read them: two lines of a terminal.
MAX_SHOWN_CHARS = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A frame of the user's code as the trace names it."""

    file: str
    line: int
    function: str

    @property
    def name(self) -> str:
        """`train.py(57): log_metrics`."""
        return f"{self.file}({self.line}): {self.function}"


def stack_samples_within(
    rows: Rows, stack_samples: tuple[LineStackSample, ...], host: Intervals
) -> list[LineStackSample]:
    """Stack samples at instants of `host` (ns, trace clock), by the marks they were taken after."""
    if not stack_samples:
        return []
    numbers = {name: i for i, name in enumerate(rows.names)}
    spans = rows.spans
    annotations = rows.of_category[Category.USER_ANNOTATION]
    begins: dict[str, int] = {}
    for mark in {x.mark for x in stack_samples}:
        number = numbers.get(mark)
        if number is not None:
            starts = spans.start_ns[annotations[spans.name[annotations] == number]]
            if starts.size:
                begins[mark] = int(starts.min())
    placed = [x for x in stack_samples if x.mark in begins]
    at_ns = np.array([begins[x.mark] + x.after_ns for x in placed], dtype=np.int64)
    inside = host.contains(at_ns) if at_ns.size else np.empty(0, np.bool_)
    return [x for x, within in zip(placed, inside.tolist(), strict=True) if within]


def hotspots_of(
    frame: Frame,
    total_ns: int,
    stack_samples: list[LineStackSample],
    *,
    open_from_start: bool,
    calls: str | None,
) -> Iterator[HostHotspot]:
    """The frame's own time by line, in nanoseconds for now; one hotspot where no line can be told.

    `calls`: the call that most of that time passes in, if there is one.
    """
    mine = [x for x in stack_samples if _same(x, frame)]
    if len(mine) < MIN_STACK_SAMPLES:
        # The line of a frame that was running already is where the profiler found it.
        name = f"{frame.file}: {frame.function}" if open_from_start else frame.name
        if calls is not None:
            name += f", calling {calls}"
        line = None if open_from_start else frame.line
        yield _hotspot(name, total_ns, frame.file, line)
        return
    by_line = Counter(x.line for x in mine)
    shown = {n: k for n, k in by_line.most_common() if k >= MIN_LINE_SHARE * len(mine)}
    n_shown = sum(shown.values())
    for line, n in shown.items():
        own = Frame(file=frame.file, line=line, function=frame.function)
        yield _hotspot(own.name, total_ns * n // n_shown, frame.file, line)


def hotspots_of_stack_samples(
    rows: Rows, stack_samples: tuple[LineStackSample, ...], host: Intervals
) -> Iterator[HostHotspot]:
    """All of `host` by line, in nanoseconds for now, where no frame of the user's is on the row."""
    within = stack_samples_within(rows, stack_samples, host)
    if len(within) < MIN_STACK_SAMPLES:
        return
    places = Counter((x.file, x.line, x.function) for x in within)
    for (file, line, function), n in places.most_common():
        path = file.replace("\\", "/").rpartition("/")[2]
        frame = Frame(file=path, line=line, function=function.rpartition(".")[2])
        yield _hotspot(frame.name, host.total_ns * n // len(within), path, line)


def called(rows: Rows, own: Intervals, mine: Index, users: Index) -> str | None:
    """The call that most of a frame's `own` time passes in: `<built-in function sleep>`.

    `mine` are its rows; `users` those of the user's own frames, which are never what is called.
    """
    spans = rows.spans
    frames = rows.of_category[Category.PYTHON]
    frames = frames[spans.thread[frames] == rows.training_thread]
    # Frames around it began before; all that were open at the end end together.
    within = spans.start_ns[frames] > spans.start_ns[mine].min()
    inner = np.setdiff1d(frames[within & (spans.end_ns[frames] <= spans.end_ns[mine].max())], users)
    if inner.size == 0:
        return None
    cost = own.covered_before(spans.end_ns[inner]) - own.covered_before(spans.start_ns[inner])
    sums = np.bincount(spans.name[inner], weights=cost, minlength=len(rows.names))
    most = int(sums.argmax())
    if sums[most] < MIN_CALLED_PART * own.total_ns:
        return None
    return shortened(rows.names[most], MAX_SHOWN_CHARS // 2)


def open_from_start(rows: Rows, index: Index) -> bool:
    """Whether these rows are one frame that was running when the profiler began."""
    spans = rows.spans
    others = rows.on_training_thread() & (spans.category != Category.PYTHON)
    if index.size != 1 or not others.any():
        return False
    return int(spans.start_ns[index[0]]) <= int(spans.start_ns[others].min())


def _same(stack_sample: LineStackSample, frame: Frame) -> bool:
    """A stack sample's file is whole, the trace's may be relative; its function is qualified."""
    path = stack_sample.file.replace("\\", "/")
    if not (path == frame.file or path.endswith("/" + frame.file.lstrip("./"))):
        return False
    return stack_sample.function.rpartition(".")[2] == frame.function.rpartition(".")[2]


def _hotspot(name: str, total_ns: int, file: str, line: int | None) -> HostHotspot:
    return HostHotspot(
        name=shortened(name, MAX_SHOWN_CHARS),
        ms_per_step=total_ns / NS_PER_MS,
        file=shortened(file, MAX_SHOWN_CHARS),
        line=line,
    )
