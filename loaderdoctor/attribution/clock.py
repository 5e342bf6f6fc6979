"""The step clock of a trace: where steps begin and end, by what the accelerator has done.

The host runs ahead of the accelerator (ten steps and more), so a host `ProfilerStep` span says
when a step was *queued*, not when it happened. Device rows are joined to the host step in which
their launching call ran; a step ends when the last kernel launched in it ends. The window lies
between two such ends, in wall time, so each of its instants can be compared with what the host
did at that same instant.

The first step only opens the window. torch.profiler drains the device when it starts
(`cudaDeviceSynchronize`), so that step runs with an empty queue, behind kernels launched before
the trace began, and its beginning is not the loop's own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from loaderdoctor.attribution.fetches import turns
from loaderdoctor.attribution.trace_rows import Index, Mask, Rows
from loaderdoctor.intervals import EMPTY, Intervals
from loaderdoctor.trace.columns import ABSENT, I64, Category
from loaderdoctor.units import NS_PER_MS

Clock = Literal["device", "host-annotations", "fetches", "optimizer", "window"]

# Step marks that follow each other within a step's own length belong to one recording. A longer
# silence means that nothing was recorded there (several captures in one file).
MAX_UNRECORDED_STEPS = 1.0
# Of a step's launches, those that never ran beyond what is usual; a choice.
MAX_LOST_PART = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class StepClock:
    """Steps of a trace. Arrays have one entry per step kept, in order; ns on the trace's clock."""

    kind: Clock
    start_ns: I64  # by the step clock
    end_ns: I64
    host_start_ns: I64  # when the host began the same step, and ended it
    host_end_ns: I64
    n_dropped: int  # steps at the edges that can't be measured whole
    window: Intervals  # union of the steps
    host_window: Intervals
    run_ahead_steps: float | None

    @property
    def n_steps(self) -> int:
        """Steps measured; 0 where the trace has no marks to tell steps by."""
        return int(self.start_ns.size) if self.kind != "window" else 0

    @property
    def per_step(self) -> int:
        """What totals are divided by: the steps, or 1 for a whole window without marks."""
        return max(self.n_steps, 1)

    def ms_per_step(self, total_ns: int) -> float:
        """A total of all steps as the mean of one."""
        return total_ns / NS_PER_MS / self.per_step


def step_clock(rows: Rows) -> StepClock:
    """Steps by the best marks there are: ProfilerStep, else fetches, else optimizer steps."""
    source, starts, ends = _host_steps(rows)
    if source == "window" or starts.size == 0:
        return _whole_window(rows)
    device_ends = _device_ends(rows, starts, ends)
    if device_ends is None:
        kept = np.ones(starts.size, np.bool_)
        if source == "fetches" and starts.size > 1:
            kept[-1] = False  # from the last fetch on: nothing says where that step ends
        return _clock(source, starts[kept], ends[kept], starts[kept], ends[kept], starts.size, None)
    # A recording's first step has no beginning by the device's clock, and a pause isn't a step.
    typical = float(np.median(ends - starts))
    kept = np.concatenate(
        ([False], starts[1:] - ends[:-1] <= MAX_UNRECORDED_STEPS * typical)
    ) & ~_cut_off(rows, starts, ends)
    if source == "fetches":
        kept[-1] = False
    index = np.flatnonzero(kept)
    done = np.searchsorted(device_ends, starts[index], side="right")
    ahead = float(np.median(index - done)) if index.size else None
    if index.size == 0:
        # One step, or one that ran: what it holds, to the end of its device work, is all there is.
        last = np.maximum(ends, device_ends)
        return _clock(source, starts[:1], last[:1], starts[:1], ends[:1], starts.size, None)
    return _clock(
        "device" if source == "host-annotations" else source,
        device_ends[index - 1],
        device_ends[index],
        starts[index],
        ends[index],
        starts.size,
        ahead,
    )


# A step that is this many times as long as the others' median, and what of that is silence, is a
# pause of the loop's: seen once, it tells nothing of steps (something built at first use, a file
# saved). Six traces whose mean step was up to nine times any other's were told by it.
PAUSE_STEPS = 5.0
PAUSE_SILENT = 0.8
MIN_STEPS_OF_PAUSE = 4


def without_pause(clock: StepClock, active: Intervals, begun_ns: I64) -> tuple[StepClock, int]:
    """The clock less the one step that stood still, with its length (ns; 0: there is none).

    `active`: when a batch was fetched, or anything computed or copied. Where workers may
    have been started (`begun_ns`) that is the loader's, and belongs to the steps.
    """
    if clock.n_steps < MIN_STEPS_OF_PAUSE:
        return clock, 0
    start, end = clock.start_ns, clock.end_ns
    length = end - start
    silent = length - (active.covered_before(end) - active.covered_before(start))
    longest = int(length.argmax())
    kept = np.arange(length.size) != longest
    typical = float(np.median(length[kept]))
    excess = float(length[longest]) - typical
    alone = length[longest] >= PAUSE_STEPS * typical > length[kept].max()
    still = silent[longest] - float(np.median(silent[kept])) >= PAUSE_SILENT * excess
    begun = ((begun_ns >= start[longest]) & (begun_ns < end[longest])).any()
    if not alone or not still or begun:
        return clock, 0
    host_start, host_end = clock.host_start_ns[kept], clock.host_end_ns[kept]
    rest = _clock(
        clock.kind, start[kept], end[kept], host_start, host_end, 0, clock.run_ahead_steps
    )
    return replace(rest, n_dropped=clock.n_dropped), int(length[longest])


def outside_ns(clock: StepClock, recorded_ns: I64) -> int:
    """Time between steps of the host's in which events were recorded (`recorded_ns`, sorted).

    Only of more than a step: between two captures, or two steps, there may be anything.
    """
    if clock.n_steps < 2:
        return 0
    begin, until = clock.host_end_ns[:-1], clock.host_start_ns[1:]
    n_within = np.searchsorted(recorded_ns, until) - np.searchsorted(recorded_ns, begin)
    gap = until - begin
    typical = float(np.median(clock.host_end_ns - clock.host_start_ns))
    return int(gap[(gap > typical) & (n_within > 1)].sum())


def _clock(
    kind: Clock, start: I64, end: I64, host_start: I64, host_end: I64, n_seen: int,
    ahead: float | None,
) -> StepClock:  # fmt: skip
    return StepClock(
        kind=kind,
        start_ns=start,
        end_ns=end,
        host_start_ns=host_start,
        host_end_ns=host_end,
        n_dropped=n_seen - int(start.size),
        window=Intervals.of(start, end),
        host_window=Intervals.of(host_start, host_end),
        run_ahead_steps=ahead,
    )


def _host_steps(rows: Rows) -> tuple[Clock, I64, I64]:
    """Start and end of each step on the host, without overlaps.

    `gpu_user_annotation` rows repeat each ProfilerStep on the device's tracks: the host's count.
    """
    spans, flags = rows.spans, rows.flags
    marks = rows.outermost(
        rows.named(flags.step, Category.USER_ANNOTATION) & rows.on_training_thread()
    )
    first_fetches = turns(rows)
    # A single mark around many turns of the loop marks no steps: `step()` was never called.
    if marks.size > 1 or (marks.size == 1 and first_fetches.size <= 1):
        marks = _without_empty_last(rows, marks)
        return "host-annotations", spans.start_ns[marks], spans.end_ns[marks]
    if first_fetches.size > 1:
        last = int(spans.end_ns[rows.on_training_thread()].max())
        return "fetches", *_that_train(rows, first_fetches, np.append(first_fetches[1:], last))
    # A wrapped optimizer's span lies within the wrapper's.
    steps = rows.outermost(rows.named(flags.optimizer_step, Category.USER_ANNOTATION))
    if steps.size > 1:
        ends = spans.end_ns[steps]
        begin = int(spans.start_ns[rows.on_training_thread()].min())
        return "optimizer", np.append(begin, ends[:-1]), ends
    none = np.zeros(0, np.int64)
    return "window", none, none


def _that_train(rows: Rows, starts: I64, ends: I64) -> tuple[I64, I64]:
    """Turns with work of training in them, where any has: a pass of validation is no step."""
    trains = np.sort(_trained_ns(rows))
    kept = np.searchsorted(trains, ends) > np.searchsorted(trains, starts)
    return (starts[kept], ends[kept]) if kept.any() else (starts, ends)


def _without_empty_last(rows: Rows, marks: Index) -> Index:
    """Drop a last mark within which the loop did nothing, as it did in the others.

    A `step()` right before the profiler is stopped opens one that holds the stop alone, and the
    wait for the device.
    """
    spans = rows.spans
    begin, end = spans.start_ns[marks], spans.end_ns[marks]
    own = spans.start_ns[
        rows.named(~rows.flags.step, Category.USER_ANNOTATION)
        | rows.named(rows.flags.launch, Category.RUNTIME)
        | (spans.category == Category.CPU_OP)
    ]
    # Sorting all of them takes too long for the usual case, in which the last step is one.
    if marks.size < 2 or ((own >= begin[-1]) & (own < end[-1])).any():
        return marks
    own.sort()
    n_within = np.searchsorted(own, end[:-1]) - np.searchsorted(own, begin[:-1])
    return marks[:-1] if n_within.all() else marks


def _device_ends(rows: Rows, starts: I64, ends: I64) -> I64 | None:
    """When the accelerator finished each host step's work; None where nothing ties it to steps.

    Kernels decide; copies do where a step launches no kernel. Work that threads beside the loop
    launch (a batch copied ahead) is not the step's. A step without work on the device ends with
    its host span. Ends never run backwards: work of several streams may.
    """
    spans = rows.spans
    joined = rows.launched_by != ABSENT
    if not joined.any():
        return None
    call = rows.launched_by[joined]
    device = rows.device_rows[joined]
    if rows.producer_threads:
        own = ~np.isin(spans.thread[call], np.asarray(rows.producer_threads, np.int32))
        call, device = call[own], device[own]
    step = np.searchsorted(starts, spans.start_ns[call], side="right") - 1
    # Launched while no step was recorded: nobody's.
    inside = (step >= 0) & (spans.start_ns[call] < ends[np.maximum(step, 0)])
    step, device = step[inside], device[inside]
    if step.size == 0:
        return None
    kernels = spans.category[device] == Category.KERNEL
    last = np.full(starts.size, -1, np.int64)
    np.maximum.at(last, step[kernels], spans.end_ns[device[kernels]])
    any_work = np.full(starts.size, -1, np.int64)
    np.maximum.at(any_work, step, spans.end_ns[device])
    last = np.where(last >= 0, last, any_work)
    return np.maximum.accumulate(np.where(last >= 0, last, ends))


def _cut_off(rows: Rows, starts: I64, ends: I64) -> Mask:
    """Steps whose kernels were launched but never seen to run: at the trace's end, or in a hole.

    The profiler drops records where its buffers are full. A step behind a hole has no beginning.
    """
    spans = rows.spans
    launches = np.flatnonzero(rows.named(rows.flags.launch, Category.RUNTIME))
    step = np.searchsorted(starts, spans.start_ns[launches], side="right") - 1
    inside = (step >= 0) & (spans.start_ns[launches] < ends[np.maximum(step, 0)])
    launches, step = launches[inside], step[inside]
    seen = np.zeros(len(spans), np.bool_)
    seen[rows.launched_by[rows.launched_by != ABSENT]] = True
    lost = np.bincount(step[~seen[launches]], minlength=starts.size)
    ran = np.bincount(step[seen[launches]], minlength=starts.size) > 0
    # Some launches never have a row (a call that failed, a filtered kernel): what every step that
    # ran loses is no cut. A host far ahead may have launched most steps of the trace in vain.
    usual = np.median(lost[ran] if ran.any() else lost)
    whole = np.flatnonzero(lost <= usual)
    holed = lost - usual > MAX_LOST_PART * np.bincount(step, minlength=starts.size)
    cut: Mask = holed | np.append(False, holed[:-1])
    cut[(whole[-1] + 1 if whole.size else 0) :] = True
    return cut


def _whole_window(rows: Rows) -> StepClock:
    """No marks: all that was recorded, as one window of an unknown number of steps."""
    spans = rows.spans
    none = np.zeros(0, np.int64)
    counted = spans.category != Category.WORKER
    if not counted.any():
        return StepClock(
            kind="window", start_ns=none, end_ns=none, host_start_ns=none, host_end_ns=none,
            n_dropped=0, window=EMPTY, host_window=EMPTY, run_ahead_steps=None,
        )  # fmt: skip
    start = np.asarray([spans.start_ns[counted].min()], np.int64)
    end = np.asarray([spans.end_ns[counted].max()], np.int64)
    return _clock("window", start, end, start, end, 1, None)


# What only training does, by name. A forward pass has fused operators too (`_fused_rms_norm`), and
# its stacks frames of autograd's (`no_grad`). Ops of a graph have no names, its kernels do.
_TRAINS = {
    category: re.compile(pattern, re.IGNORECASE)
    for category, pattern in (
        (Category.CPU_OP, r"autograd::engine|Backward\d*$|_fused_(adamw?|sgd|adagrad)|_foreach_"),
        (Category.USER_ANNOTATION, r"optimizer|backward"),
        (Category.PYTHON, r"torch[/\\]optim[/\\]|[/\\]_tensor\.py\(\d+\): backward"),
        (Category.KERNEL, r"backward|wgrad|multi_tensor_apply"),
    )
}


def trains(rows: Rows) -> bool:
    """Whether the loop trains, for all that was recorded; True where no op was."""
    return rows.of_category[Category.CPU_OP].size == 0 or _training(rows).size > 0


def _trained_ns(rows: Rows) -> I64:
    """When work of training was done, or launched; in any order."""
    by = _training(rows)
    call = np.append(rows.launched_by, ABSENT)[np.searchsorted(rows.device_rows, by)]
    on_device = (rows.spans.category[by] == Category.KERNEL) & (call != ABSENT)
    return rows.spans.start_ns[np.where(on_device, call, by)]


def _training(rows: Rows) -> Index:
    found = []
    for category, pattern in _TRAINS.items():
        index = rows.of_category[category]
        named = np.zeros(len(rows.names), np.bool_)
        for number in rows.names_of_category[category].tolist():
            named[number] = pattern.search(rows.names[number]) is not None
        found.append(index[named[rows.spans.name[index]]])
    return np.concatenate(found)
