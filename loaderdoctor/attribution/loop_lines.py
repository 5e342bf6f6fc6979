"""Which lines a function's own host time goes to, by stack samples, or what it calls.

torch's Python stacks name a function by its first line, and the one that was running when the
profiler began by the line it was at then. Neither says where in a loop the time goes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from loaderdoctor.attribution.trace_rows import Index, Rows
from loaderdoctor.facts.trace import HostHotspot
from loaderdoctor.intervals import Intervals
from loaderdoctor.trace.columns import Category, LineStackSample
from loaderdoctor.trace.events import shortened
from loaderdoctor.units import NS_PER_MS

# With fewer stack samples a line's share is a guess: of 8, two may be elsewhere by chance (95 %).
MIN_STACK_SAMPLES = 8
# A line with less of its function's time is not worth a row of its own.
MIN_LINE_SHARE = 0.05
# What a function calls is named with it where that is most of its own time.
MIN_CALLED_PART = 0.5
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
    for mark in {stack_sample.mark for stack_sample in stack_samples}:
        number = numbers.get(mark)
        if number is not None:
            starts = spans.start_ns[annotations[spans.name[annotations] == number]]
            if starts.size:
                begins[mark] = int(starts.min())
    placed = [stack_sample for stack_sample in stack_samples if stack_sample.mark in begins]
    at_ns = np.array(
        [begins[stack_sample.mark] + stack_sample.after_ns for stack_sample in placed],
        dtype=np.int64,
    )
    inside = host.contains(at_ns) if at_ns.size else np.empty(0, np.bool_)
    return [
        stack_sample for stack_sample, within in zip(placed, inside.tolist(), strict=True) if within
    ]


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
    by_line = Counter(stack_sample.line for stack_sample in mine)
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
    places = Counter(
        (stack_sample.file, stack_sample.line, stack_sample.function) for stack_sample in within
    )
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
