"""One step as a picture: what each thread, the accelerator and the workers did, as typed spans.

Rows of one picture share one clock: milliseconds since the step began by the step clock. The host
runs ahead of the accelerator, so a row of the host may show work for a later step; that is what
happened at that moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from loaderdoctor.attribution import Attributed
from loaderdoctor.errors import TraceError
from loaderdoctor.facts.step import Doing, StepTimeline, Strip, TimelineRow
from loaderdoctor.instrument.wire.protocol import WindowDone
from loaderdoctor.instrument.wire.worker_log import MAIN_PROCESS, ProcessRecord, WorkerLog
from loaderdoctor.intervals import Intervals
from loaderdoctor.trace.columns import Category, ClockMap, calibrate
from loaderdoctor.units import NS_PER_MS

# More spans of one row are thinner than a pixel: those with the smallest gaps are joined.
MAX_SPANS = 700
MAX_WORKER_ROWS = 8
# Steps this close to the median are alike: device step times repeat within about 1 %.
TYPICAL_WITHIN = 0.02


def step_timelines(
    attributed: Attributed, log: WorkerLog | None = None, clock: ClockMap | None = None
) -> tuple[StepTimeline, ...]:
    """A step of about the median length and the longest one; empty where the trace marks no steps.

    `log` and `clock` (the trace's) add the workers' own records.
    """
    steps = attributed.clock
    if not steps.n_steps:
        return ()
    length = steps.end_ns - steps.start_ns
    off = np.abs(length / max(float(np.median(length)), 1.0) - 1.0)  # steps may be empty
    # The first that comes close: towards the end of a trace a host far ahead only waits.
    typical = int(np.flatnonzero(off <= max(TYPICAL_WITHIN, off.min()))[0])
    slowest = int(length.argmax())
    if length.size == 1:
        return (_timeline(attributed, log, clock, 0, "only"),)
    return (
        _timeline(attributed, log, clock, typical, "typical"),
        _timeline(attributed, log, clock, slowest, "slowest"),
    )


def timelines_of_window(
    attributed: Attributed, window: WindowDone, log: WorkerLog | None
) -> tuple[StepTimeline, ...]:
    """`step_timelines` of a profiled window, with the workers where their clock is known in it."""
    if log is None or not window.clock_marks:
        return step_timelines(attributed)
    try:
        clock = calibrate(attributed.trace, window.clock_marks)
    except TraceError:  # none of our marks is in the trace
        return step_timelines(attributed)
    return step_timelines(attributed, log, clock)


def _timeline(
    attributed: Attributed,
    log: WorkerLog | None,
    clock: ClockMap | None,
    index: int,
    which: Literal["typical", "slowest", "only"],
) -> StepTimeline:
    steps = attributed.clock
    window = _Window(int(steps.start_ns[index]), int(steps.end_ns[index]))
    workers: list[TimelineRow] = []
    if log is not None and clock is not None:
        trace = _Window(int(steps.start_ns[0]), int(steps.end_ns[-1]))
        workers = list(_worker_rows(log, clock, window, trace))
    rows = [
        window.row("counted as", _shares(attributed)),
        window.row("training thread", _training_thread(attributed)),
        window.row("other threads", _other_threads(attributed)),
        window.row("copies to the device", [("copy", attributed.copies.device)]),
        window.row(
            "kernels",
            [
                ("compute", attributed.work.kernels),
                ("communication", attributed.work.collectives.subtract(attributed.work.kernels)),
            ],
        ),
        *workers[:MAX_WORKER_ROWS],
    ]
    return StepTimeline(
        which=which,
        number=index + 1,
        n_steps=steps.n_steps,
        wall_ms=window.length_ns / NS_PER_MS,
        rows=tuple(row for row in rows if row.strips),
        n_workers_left_out=max(0, len(workers) - MAX_WORKER_ROWS),
    )


@dataclass(frozen=True, slots=True)
class _Window:
    """The step's limits on the trace's clock (ns)."""

    start_ns: int
    end_ns: int

    @property
    def length_ns(self) -> int:
        return self.end_ns - self.start_ns

    def row(self, name: str, parts: Sequence[tuple[Doing, Intervals]]) -> TimelineRow:
        strips = (self._strip(doing, spans) for doing, spans in parts)
        return TimelineRow(name=name, strips=tuple(strip for strip in strips if strip.spans))

    def _strip(self, doing: Doing, spans: Intervals) -> Strip:
        inside = spans.clip(self.start_ns, self.end_ns)
        drawn = _joined(inside)
        covered = inside.covered_before(drawn.ends) - inside.covered_before(drawn.starts)
        columns = zip(
            ((drawn.starts - self.start_ns) / NS_PER_MS).tolist(),
            (drawn.lengths_ns / NS_PER_MS).tolist(),
            (covered / drawn.lengths_ns).tolist(),
            strict=True,
        )
        return Strip(doing=doing, spans=tuple(columns))


def _joined(spans: Intervals) -> Intervals:
    """At most MAX_SPANS spans: the widest gaps stay."""
    if len(spans) <= MAX_SPANS:
        return spans
    gaps = spans.starts[1:] - spans.ends[:-1]
    kept = np.sort(np.argpartition(-gaps, MAX_SPANS - 2)[: MAX_SPANS - 1])
    return Intervals(
        np.concatenate((spans.starts[:1], spans.starts[kept + 1])),
        np.concatenate((spans.ends[kept], spans.ends[-1:])),
    )


def _shares(attributed: Attributed) -> list[tuple[Doing, Intervals]]:
    parts = attributed.partition.parts()
    order: tuple[Doing, ...] = ("input", "copy", "communication", "compute", "host", "other")
    return [(doing, parts[doing]) for doing in order if doing in parts]


def _training_thread(attributed: Attributed) -> list[tuple[Doing, Intervals]]:
    """Getting a batch > a copy's call > waiting for the accelerator > ops; else Python, blank."""
    rows = attributed.rows
    accelerated = attributed.trace.has_accelerator
    own = rows.on_training_thread()
    syncs = rows.intervals(rows.named(rows.flags.sync, Category.RUNTIME) & own)
    events = rows.intervals(rows.events & own)
    getting = attributed.fetches.getting
    copying = attributed.copies.on_host.subtract(getting)
    waiting = syncs.subtract(getting).subtract(copying)
    ops = events.subtract(getting).subtract(copying).subtract(waiting)
    return [
        ("input", getting),
        ("copy", copying),
        ("sync", waiting),
        ("host" if accelerated else "compute", ops),
    ]


def _other_threads(attributed: Attributed) -> list[tuple[Doing, Intervals]]:
    """Autograd's threads; and threads that make, pin or move batches."""
    rows = attributed.rows
    others = ~rows.on_training_thread()
    producers = rows.by_producers()
    fetching = rows.intervals(producers & rows.fetches)
    moving = rows.intervals(producers & rows.events).subtract(fetching)
    ops = rows.intervals(rows.events & others & ~producers).subtract(fetching).subtract(moving)
    own: Doing = "host" if attributed.trace.has_accelerator else "compute"
    return [("fetch", fetching), ("pin", moving), (own, ops)]


def _worker_rows(
    log: WorkerLog, clock: ClockMap, window: _Window, trace: _Window
) -> Iterator[TimelineRow]:
    """What each worker made within the step, and the pin-memory thread.

    Idle workers have a row where any of their pool made a batch during the trace: of a trial's that
    was ended by force nobody recorded when.
    """
    batches = log.batches
    begin, end = clock.to_trace(batches.begin_ns), clock.to_trace(batches.end_ns)
    split = batches.collate_ns >= 0
    fetched = np.where(split, clock.to_trace(batches.collate_ns), end)
    sent = np.where(batches.send_ns >= 0, clock.to_trace(batches.sent_ns), end)
    during = (end > trace.start_ns) & (begin < trace.end_ns)
    at_work = set(batches.pid[during].tolist())
    pools = {process.serial for process in log.processes if process.pid in at_work}
    for name, pids in _workers_by_row(log, pools, clock, window):
        mine = np.isin(batches.pid, pids)
        making = Intervals.of(begin[mine], end[mine])
        parts: list[tuple[Doing, Intervals]] = [
            ("fetch", Intervals.of(begin[mine], fetched[mine])),
            ("collate", Intervals.of(fetched[mine], end[mine])),
            ("send", Intervals.of(end[mine], sent[mine]).subtract(making)),
        ]
        row = window.row(name, parts)
        yield row if row.strips else TimelineRow(name=row.name, strips=(_NOTHING,))
    main = batches.worker == MAIN_PROCESS
    row = window.row(
        "making batches (0 workers)",
        [
            ("fetch", Intervals.of(begin[main], fetched[main])),
            ("collate", Intervals.of(fetched[main], end[main])),
        ],
    )
    if row.strips:
        yield row
    pins = log.pins.where(log.pins.wait_ns < log.pins.start_ns)  # by the thread, not in the fetch
    pinning = Intervals.of(clock.to_trace(pins.start_ns), clock.to_trace(pins.end_ns))
    row = window.row("pin-memory thread", [("pin", pinning)])
    if row.strips:
        yield row


def _workers_by_row(
    log: WorkerLog, pools: set[int], clock: ClockMap, window: _Window
) -> Iterator[tuple[str, list[int]]]:
    """(name, processes) of each row: those that took one worker's place one after the other.

    Of `pools` (iterators' serial numbers); of all where that is empty.

    Workers started again within the step are one row; another loader's have their own.
    """
    loaders = {i.serial: i.loader for i in log.iterators}
    places: dict[tuple[str, int], list[int]] = {}
    for process in log.processes:
        of_pool = process.serial in pools or not pools
        if process.role == "worker" and of_pool and _lived(process, clock, window):
            loader = loaders.get(process.serial) or ""
            places.setdefault((loader, process.worker), []).append(process.pid)
    several = len({loader for loader, _ in places}) > 1
    for (loader, worker), pids in sorted(places.items()):
        of = f" of {loader}" if several and loader else ""
        started = f" (started {len(pids)} times)" if len(pids) > 1 else ""
        yield f"worker {worker}{of}{started}", pids


def _lived(process: ProcessRecord, clock: ClockMap, window: _Window) -> bool:
    if clock.to_trace(process.started_ns) >= window.end_ns:
        return False
    return process.exit_ns is None or clock.to_trace(process.exit_ns) > window.start_ns


_NOTHING = Strip(doing="fetch", spans=())
