"""What the training thread does while the accelerator idles for want of work: where `host` goes.

Each exposed instant goes to the deepest thing that the trace names: with Python stacks the deepest
frame of the user's own code, else the outermost op (or optimizer span) running on the training
thread, else autograd's thread, else an annotation around a silence that is no mere launching, else
the silence between two ops, named by its neighbours.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from loaderdoctor.attribution.device_work import MIN_SILENCE_NS, CopyRows, silences_behind
from loaderdoctor.attribution.fetches import Fetches, named_events
from loaderdoctor.attribution.trace_rows import (
    FETCH_PREFIX,
    OPTIMIZER_PREFIX,
    Index,
    Rows,
    flags_of,
)
from loaderdoctor.attribution.user_code import (
    MAX_SHOWN_CHARS,
    Frame,
    called,
    hotspots_of,
    hotspots_of_stack_samples,
    open_from_start,
    stack_samples_within,
)
from loaderdoctor.facts.trace import MIN_TENSOR_BYTES, HostHotspot
from loaderdoctor.intervals import EMPTY, Intervals
from loaderdoctor.trace.columns import I32, I64, Category, LineStackSample
from loaderdoctor.trace.events import shortened
from loaderdoctor.units import NS_PER_MS

MAX_HOTSPOTS = 10
# Kineto's word for a call of the CUDA runtime that is newer than its list of them.
UNNAMED = "INVALID"
MAX_TABLE = 1_000_000  # 8 MB

_FRAME = re.compile(r"^(?P<file>.+\.pyx?)\((?P<line>[0-9]{1,9})\): (?P<function>.+)$")
# torch's Python tracer writes paths relative to sys.path: installed packages by their own name.
_NOT_USER_PACKAGES = frozenset(
    (
        *("torch", "torchaudio", "torchdata", "torchvision", "triton", "tensorboard"),
        *("accelerate", "ignite", "lightning", "pytorch_lightning", "transformers"),
        *("numpy", "pandas", "PIL", "prefetch_generator", "skimage", "tqdm", "loaderdoctor"),
    )
)
_STDLIB = frozenset(sys.stdlib_module_names)


def host_hotspots(
    rows: Rows, host: Intervals, per_step: int, stack_samples: tuple[LineStackSample, ...] = ()
) -> tuple[HostHotspot, ...]:
    """At most ten places, largest first, that together hold most of the exposed host time.

    `stack_samples` of the training thread tell the lines of the user's frames.
    """
    host = host.subtract(_between_steps(rows))
    if len(host) == 0:
        return ()
    hotspots: dict[str, HostHotspot] = {}
    left = host
    for hotspot in _user_frames(rows, left, stack_samples):
        before = hotspots.get(hotspot.name)
        if before is not None:
            hotspot = replace(hotspot, ms_per_step=hotspot.ms_per_step + before.ms_per_step)
        hotspots[hotspot.name] = hotspot
    if hotspots:
        left = left.subtract(rows.intervals(_user_frame_rows(rows)))
    else:  # stacks that lie on a row of their own: our trace for Perfetto moves those that cross
        hotspots = {
            hotspot.name: hotspot
            for hotspot in hotspots_of_stack_samples(rows, stack_samples, left)
        }
        left = EMPTY if hotspots else left
    for name, total_ns, n in _operations(rows, left):
        shown = "unnamed CUDA calls" if name == UNNAMED else shortened(name, MAX_SHOWN_CHARS)
        ms, times = total_ns / NS_PER_MS, None if n is None else n / per_step
        if name in hotspots:  # calls between other ops, told by the op before them
            ms += hotspots[name].ms_per_step
            times = (times or 0.0) + (hotspots[name].n_per_step or 0.0)
        hotspots[name] = HostHotspot(name=shown, ms_per_step=ms, n_per_step=times)
    ranked = sorted(hotspots.values(), key=lambda s: (-s.ms_per_step, s.name))
    return tuple(
        replace(s, ms_per_step=s.ms_per_step / per_step)
        for s in ranked[:MAX_HOTSPOTS]
        if s.ms_per_step > 0
    )


def _between_steps(rows: Rows) -> Intervals:
    """Time outside the step marks, which is the profiler's: ending a step, beginning the next.

    After the last mark it stops (`cudaDeviceSynchronize`), and nothing there is the loop's own.
    """
    steps = rows.intervals(
        rows.named(rows.flags.step, Category.USER_ANNOTATION) & rows.on_training_thread()
    )
    if len(steps) == 0:
        return EMPTY
    end = max(int(rows.spans.end_ns.max()), int(steps.ends[-1]))
    return Intervals.span(int(steps.starts[0]), end).subtract(steps)


def is_user_frame(name: str) -> bool:
    """Whether a python_function row is a frame of the user's own code."""
    frame = _FRAME.match(name)
    if frame is None:  # <built-in …>, nn.Module: …
        return False
    path = frame["file"].replace("\\", "/")
    if "loaderdoctor/_recipes/" in path:  # shipped with us, a user's code in kind
        return True
    if "site-packages/" in path or "dist-packages/" in path or path.startswith("<"):
        return False
    if re.search(r"(^|/)lib/python3[.\d]*/", path):
        return False
    top = path.lstrip("/").split("/", 1)[0]
    # A script called like a standard module, e.g. `profile.py`, is taken for that module.
    return top not in _NOT_USER_PACKAGES and top.removesuffix(".py") not in _STDLIB


def _user_frames(
    rows: Rows, host: Intervals, stack_samples: tuple[LineStackSample, ...]
) -> Iterator[HostHotspot]:
    """Exposed time of each user frame without the user frames it calls."""
    index = _user_frame_rows(rows)
    if index.size == 0:
        return
    spans = rows.spans
    own = _self_time(spans.start_ns[index], spans.end_ns[index], host)
    within = stack_samples_within(rows, stack_samples, host)
    numbers = {rows.names[n]: n for n in np.unique(spans.name[index]).tolist()}
    for name, total in _by_name(rows, index, own):
        match = _FRAME.match(name)
        if match is None or total <= 0:
            continue
        frame = Frame(file=match["file"], line=int(match["line"]), function=match["function"])
        mine = index[spans.name[index] == numbers[name]]
        running = open_from_start(rows, mine)
        calls = _called(rows, mine, index, host) if running else None
        yield from hotspots_of(frame, total, within, open_from_start=running, calls=calls)


def _called(rows: Rows, mine: Index, users: Index, host: Intervals) -> str | None:
    """What most of these frames' own time passes in."""
    spans = rows.spans
    start, end = spans.start_ns[mine], spans.end_ns[mine]
    inside = users[(spans.start_ns[users] >= start.min()) & (spans.end_ns[users] <= end.max())]
    callees = rows.intervals(np.setdiff1d(inside, mine))
    own = rows.intervals(mine).intersect(host).subtract(callees)
    return called(rows, own, mine, users)


# A batch of worker processes that nobody pinned lies in memory that the system maps as it is first
# read and frees when it is dropped: 0.18 to 0.24 ms a MB (`traces/`, H100 and H200), up to 0.4 on
# a virtual machine (`benchmarks/page_faults.py`). What takes less is too little to be that.
LEAST_FREEING_MS_PER_MB, MOST_FREEING_MS_PER_MB = 0.1, 0.4


def freeing(
    rows: Rows,
    copies: CopyRows,
    fetches: Fetches,
    stack_samples: tuple[LineStackSample, ...] = (),
) -> Intervals:
    """Silences in which the training thread may free a batch that workers handed it.

    Behind the fetch, where the loop still has the batch before by name then; else behind copies, as
    each tensor is dropped for its copy. No event tells it from the loop's own Python: it is as long
    as so many bytes take. What is called meanwhile, where stacks tell that, frees none.
    """
    spans, delivered_ns = rows.spans, fetches.delivered_ns
    mine = rows.flags.pageable[spans.name[copies.rows]]
    n_bytes = spans.bytes[copies.rows[mine]]
    n_bytes = n_bytes[n_bytes >= MIN_TENSOR_BYTES]
    has_workers = fetches.kind in ("multi-process", "mixed")
    if not has_workers or not n_bytes.size or delivered_ns.size < 2:
        return EMPTY
    mb = float(n_bytes.sum(dtype=np.float64)) / delivered_ns.size / 1e6
    least_ns, most_ns = (
        int(mb * rate * NS_PER_MS) for rate in (LEAST_FREEING_MS_PER_MB, MOST_FREEING_MS_PER_MB)
    )
    following_ns = named_events(rows).next_start(delivered_ns)
    frames = rows.of_category[Category.PYTHON]
    frames = frames[spans.thread[frames] == rows.training_thread]

    def without_called(silent: Intervals) -> Intervals:
        called = frames[silent.contains(spans.start_ns[frames])]
        most = Intervals.of(silent.starts, np.minimum(silent.ends, silent.starts + most_ns))
        return most.subtract(rows.intervals(called)) if called.size else most

    found = without_called(Intervals.of(delivered_ns, following_ns))
    each_ns = found.covered_before(following_ns) - found.covered_before(delivered_ns)
    if float(np.median(each_ns)) < least_ns:
        found = without_called(silences_behind(rows, replace(copies, call=copies.call[mine])))
        if found.total_ns < least_ns * delivered_ns.size:
            return EMPTY
    of_loop = {
        (x.file, x.function) for x in stack_samples_within(rows, stack_samples, fetches.getting)
    }
    within = stack_samples_within(rows, stack_samples, found) if of_loop else []
    n_called = sum((x.file, x.function) not in of_loop for x in within)
    return EMPTY if 2 * n_called > len(within) else found


def _user_frame_rows(rows: Rows) -> Index:
    if rows.of_category[Category.PYTHON].size == 0:
        return rows.of_category[Category.PYTHON]
    user = rows.named(flags_of(rows.names, is_user_frame), Category.PYTHON)
    return np.flatnonzero(user & rows.on_training_thread())


def _self_time(start_ns: I64, end_ns: I64, within: Intervals) -> I64:
    """Part of each properly nested span that lies in `within` and in none of its children.

    Spans sorted by start. The depth of a span is the number of earlier ones still open; its
    parent is the last one of the depth above that began before it.
    """
    long = end_ns > start_ns
    if not long.all():  # what takes no time has none, and would count as ended before it began
        own = np.zeros(start_ns.size, np.int64)
        if long.any():
            own[long] = _self_time(start_ns[long], end_ns[long], within)
        return own
    order = np.lexsort((-end_ns, start_ns))
    start, end = start_ns[order], end_ns[order]
    # At a common instant the ending span comes first: touching spans are siblings.
    opened = np.arange(start.size)
    closed = np.searchsorted(np.sort(end), start, side="right")
    depth = np.maximum(opened - closed, 0)
    covered = within.covered_before(end) - within.covered_before(start)
    own = covered.copy()
    by_depth = np.argsort(depth, kind="stable")
    bounds = np.searchsorted(depth[by_depth], np.arange(int(depth.max()) + 2)).tolist()
    for above_begin, begin, end_of in zip(bounds, bounds[1:], bounds[2:], strict=False):
        above, child = by_depth[above_begin:begin], by_depth[begin:end_of]
        parent = above[np.searchsorted(above, child) - 1]
        np.subtract.at(own, parent, covered[child])
    result = np.empty_like(own)
    result[order] = np.maximum(own, 0)
    return result


def _operations(rows: Rows, host: Intervals) -> Iterator[tuple[str, int, int | None]]:
    """Exposed time by outermost op, then autograd, then annotation, then silence.

    Of silences also how many there are.
    """
    spans, flags = rows.spans, rows.flags
    training = rows.on_training_thread()
    ops = rows.outermost(training & rows.events)
    covered = host.covered_before(spans.end_ns[ops]) - host.covered_before(spans.start_ns[ops])
    yield from _uncounted(_by_name(rows, ops, covered))
    left = host.subtract(rows.intervals(ops))

    others = np.flatnonzero((spans.category == Category.CPU_OP) & ~training & ~rows.by_producers())
    backward = rows.intervals(others)
    yield "backward (autograd thread)", backward.intersect(left).total_ns, None
    left = left.subtract(backward)

    annotated = rows.named(~(flags.step | flags.fetch | flags.optimizer), Category.USER_ANNOTATION)
    notes = np.flatnonzero(annotated & training)
    if notes.size:
        noted = rows.intervals(notes).intersect(_no_launching(rows, ops, others, notes, left))
        own = _self_time(spans.start_ns[notes], spans.end_ns[notes], noted)
        total = int(own.sum())
        if total > noted.total_ns:  # some cross, which those of one thread should not: shared out
            own = (own * (noted.total_ns / total)).astype(np.int64)
        yield from _uncounted(_by_name(rows, notes, own))
        left = left.subtract(noted)

    either = training & rows.fetches
    either[ops] = True
    yield from _silences(rows, rows.outermost(either), left)


def _no_launching(
    rows: Rows, ops: Index, others: Index, notes: Index, silent: Intervals
) -> Intervals:
    """What of the silence may be told by an annotation around it: work, not a way to the next op.

    All that lies in annotations without an op; around ops, what is far longer than between two that
    are launched one after another. Not while autograd's thread works, which is waited for.
    """
    spans = rows.spans
    begun, ended = spans.start_ns[ops], spans.end_ns[ops]
    start, end = spans.start_ns[notes], spans.end_ns[notes]
    alone = notes[np.searchsorted(begun, end) == np.searchsorted(begun, start)]
    since = np.append(0, ended)[np.searchsorted(begun, silent.starts, side="right")]
    theirs = spans.start_ns[others]
    waits = np.searchsorted(theirs, silent.ends) > np.searchsorted(theirs, since)
    long = (silent.lengths_ns >= MIN_SILENCE_NS) & ~waits
    return Intervals(silent.starts[long], silent.ends[long]).union(
        silent.intersect(rows.intervals(alone))
    )


def _uncounted(named: Iterable[tuple[str, int]]) -> Iterator[tuple[str, int, None]]:
    for name, total_ns in named:
        yield name, total_ns, None


def _silences(rows: Rows, ops: Index, left: Intervals) -> Iterator[tuple[str, int, int]]:
    """Exposed time between the outermost ops, by the pair of names around it, and how often."""
    spans = rows.spans
    if ops.size < 2:
        yield "Python outside any op", left.total_ns, 1
        return
    reach = np.maximum.accumulate(spans.end_ns[ops])
    begin, end = reach[:-1], np.maximum(spans.start_ns[ops][1:], reach[:-1])
    covered = left.covered_before(end) - left.covered_before(begin)
    told = _told_by(rows, ops)
    for before, after, total_ns, n in _largest_pairs(spans.name[told], spans.name[ops], covered):
        text = f"Python between {_short(rows.names[before])} and {_short(rows.names[after])}"
        yield text, total_ns, n


def _told_by(rows: Rows, ops: Index) -> Index:
    """Of each op the one to name it by, where something comes behind it.

    A call of the runtime outside any op is some op's aftermath (the event that ends a pinned copy):
    the op tells more. One that waits is named itself.
    """
    spans = rows.spans
    asides = (spans.category[ops] == Category.RUNTIME) & ~rows.flags.sync[spans.name[ops]]
    last = np.where(asides, -1, np.arange(ops.size))
    last = np.maximum.accumulate(last)
    return np.where(last >= 0, ops[last], ops)


def _largest_pairs(before: I32, after: I32, between_ns: I64) -> Iterator[tuple[int, int, int, int]]:
    """The pairs of names in a row with most time between them: both names, the time, how often.

    `before` and `after` name the same ops, of which `between_ns` are the times behind all but the
    last. Pairs are counted in a table, of the names that occur: most traces have few. Sorting a
    million pairs takes ten times as long.
    """
    occurring = np.concatenate((before, after))
    present = np.flatnonzero(np.bincount(occurring))
    silent = between_ns > 0
    if present.size**2 <= max(MAX_TABLE, 4 * before.size):
        number = np.zeros(int(present[-1]) + 1, np.int64)
        number[present] = np.arange(present.size)
        pair = number[before[:-1]] * present.size + number[after[1:]]
        totals = np.bincount(pair, weights=between_ns)
        counts = np.bincount(pair, weights=silent)
        keys = np.flatnonzero(totals)
        totals, counts = totals[keys], counts[keys]
    else:
        present = np.arange(int(occurring.max()) + 1)
        pair = before[:-1].astype(np.int64) * present.size + after[1:]
        keys, which = np.unique(pair, return_inverse=True)
        totals = np.bincount(which.reshape(-1), weights=between_ns)
        counts = np.bincount(which.reshape(-1), weights=silent)
    for at in np.argsort(-totals, kind="stable")[:MAX_HOTSPOTS]:
        first, second = divmod(int(keys[at]), present.size)
        yield int(present[first]), int(present[second]), int(totals[at]), int(counts[at])


def _short(name: str) -> str:
    if name == UNNAMED:
        return "an unnamed CUDA call"
    if name.startswith(FETCH_PREFIX):
        return "the fetch"
    if name.startswith(OPTIMIZER_PREFIX) and "#" in name:
        name = name.split("#", 1)[1]
    return shortened(name, MAX_SHOWN_CHARS // 2 - 20)


def _by_name(rows: Rows, index: Index, total_ns: I64) -> Iterator[tuple[str, int]]:
    """Sum per distinct name."""
    if index.size == 0:
        return
    sums = np.bincount(rows.spans.name[index], weights=total_ns, minlength=len(rows.names))
    for name in np.flatnonzero(sums):
        yield rows.names[name], int(sums[name])
