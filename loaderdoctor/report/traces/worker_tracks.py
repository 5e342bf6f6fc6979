"""Tracks of our own for a trace: what workers and the pin-memory thread did -> trace events.

Each worker gets its own pid (its real one) with a row for the batches it makes and one for the
queue's feeder thread. The pin-memory thread, and batch making at 0 workers, get rows of the
training process under thread ids of ours. Spans of a row are disjoint (Perfetto drops crossing
ones), the category is our own, and an arrow leads from each batch to the `__next__` that
returned it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaderdoctor.instrument.wire.record_file import Outcome
from loaderdoctor.instrument.wire.worker_log import (
    MAIN_PROCESS,
    Batches,
    BatchSpans,
    WorkerLog,
    rows_of,
)
from loaderdoctor.report.traces.raw_trace import row_id
from loaderdoctor.trace.columns import Category, ClockMap, Trace
from loaderdoctor.units import NS_PER_MS

CATEGORY = "dataloader_worker"
Event = dict[str, Any]

# Rows within the training process need thread ids that no thread of it has (a Linux thread id is
# at most 2^22), and that stay below 2^31 for readers that keep them in 32 bits.
FIRST_OWN_TID = 1 << 30
MAKING_TID = FIRST_OWN_TID
PIN_TID = FIRST_OWN_TID + 1
# torch numbers its own arrows from 1; ours must not meet them.
FIRST_FLOW = 1 << 40
# Shorter waits are the loop's own bookkeeping.
MIN_IDLE_NS = 1_000


def track_events(log: WorkerLog, clock: ClockMap, trace: Trace) -> list[Event]:
    """Trace events (ts in the file's microseconds) of what lies within the trace's time."""
    spans = trace.spans
    if not len(spans):
        return []
    tracks = _Tracks(log, clock, trace)
    tracks.add_workers()
    tracks.add_pinning()
    tracks.add_arrows()
    return tracks.events


class _Tracks:
    """Collects events; knows the trace's limits and where the training process is in it."""

    def __init__(self, log: WorkerLog, clock: ClockMap, trace: Trace) -> None:
        self.log = log
        self.clock = clock
        self.trace = trace
        self.begin_ns = int(trace.spans.start_ns.min())
        self.end_ns = int(trace.spans.end_ns.max())
        # A double of microseconds misses its nanosecond: spans that touch here would cross there.
        self.gap_ns = math.ceil(2000 * math.ulp(self._ts(self.end_ns)))
        self.events: list[Event] = []
        self._loaders = {i.serial: i.loader for i in log.iterators if i.num_workers}
        self.pid = next((p.pid for p in log.processes if p.role == "main"), 0)
        self._reached: dict[tuple[int, int], int] = {}  # end of the last span of each row
        self._tails: dict[tuple[int, int, int], tuple[int, int, int]] = {}  # batch -> pid, tid, ns

    def add_workers(self) -> None:
        batches = self.log.batches
        for pid in np.unique(batches.pid).tolist():
            mine = batches.where(batches.pid == pid)
            mine = mine.where(self._visible(mine.wait_ns, np.maximum(mine.end_ns, mine.sent_ns)))
            if not len(mine):
                continue
            worker = int(mine.worker[0])
            if worker == MAIN_PROCESS:
                self._name_thread(pid, MAKING_TID, "batch making (0 workers)")
                self._add_making(mine, pid, MAKING_TID)
                continue
            self._name_process(pid, f"DataLoader worker {worker}{self._loader_of(mine)}", worker)
            self._name_thread(pid, pid, "batches")
            self._add_making(mine, pid, pid)
            self._add_sending(mine, pid)

    def add_pinning(self) -> None:
        pins = self.log.pins
        from_thread = pins.wait_ns < pins.start_ns  # within the fetch nobody waits
        pins = pins.where(from_thread & self._visible(pins.wait_ns, pins.end_ns))
        for number, thread in enumerate(np.unique(pins.thread).tolist()):
            tid = PIN_TID + number
            self._name_thread(self.pid, tid, "pin-memory thread")
            mine = pins.where(pins.thread == thread)
            for i in range(len(mine)):
                about = _about(mine, i)
                self._span("wait for batch", self.pid, tid, mine.wait_ns[i], mine.start_ns[i], {})
                self._span("pin", self.pid, tid, mine.start_ns[i], mine.end_ns[i], about)

    def add_arrows(self) -> None:
        """From each batch to the `__next__` that returned it, where the trace has both."""
        nexts = _next_spans(self.trace)
        deliveries = self.log.deliveries
        at_ns = self.clock.to_trace((deliveries.start_ns + deliveries.end_ns) // 2)
        order = np.argsort(nexts.start_ns, kind="stable")
        starts, ends, threads = nexts.start_ns[order], nexts.end_ns[order], nexts.thread[order]
        row = np.searchsorted(starts, at_ns, side="right") - 1
        spans = self.trace.spans
        begins = {t: np.sort(spans.start_ns[spans.thread == t]) for t in np.unique(threads)}
        for i in np.flatnonzero((row >= 0) & (row < starts.size)).tolist():
            r = int(row[i])
            key = (int(deliveries.serial[i]), int(deliveries.epoch[i]), int(deliveries.idx[i]))
            tail = self._tails.get(key)
            if tail is None or at_ns[i] > ends[r]:
                continue
            thread = self.trace.threads[int(threads[r])]
            pid, tid = _number(thread.pid), _number(thread.tid)
            common = {"name": "batch", "cat": CATEGORY, "id": FIRST_FLOW + len(self.events)}
            from_pid, from_tid, from_ns = tail
            self.events.append(
                {**common, "ph": "s", "pid": from_pid, "tid": from_tid, "ts": self._ts(from_ns)}
            )
            # Perfetto binds an arrow to the span that last began on the thread, ended or not
            # (and lets it lead from the span that began earlier, seen in v52).
            head_ns = _first_begin(begins, threads[r], int(starts[r]), int(ends[r])) - self.gap_ns
            if head_ns <= from_ns:
                head_ns = int(ends[r]) - 1
            self.events.append(
                {**common, "ph": "f", "bp": "e", "pid": pid, "tid": tid, "ts": self._ts(head_ns)}
            )

    def _add_making(self, batches: Batches, pid: int, tid: int) -> None:
        slowest = self._slowest_samples(batches)
        in_worker = tid != MAKING_TID
        for i in range(len(batches)):
            begin, end = int(batches.begin_ns[i]), int(batches.end_ns[i])
            collate = int(batches.collate_ns[i])
            about = _about(batches, i)
            if in_worker:
                self._span("idle", pid, tid, int(batches.wait_ns[i]), begin, {}, MIN_IDLE_NS)
            outcome = Outcome(int(batches.outcome[i]))
            if outcome is not Outcome.OK:
                about["outcome"] = outcome.name.lower()
            about["samples"] = int(batches.n_samples[i])
            about["cpu_ms"] = round(int(batches.thread_cpu_ns[i]) / NS_PER_MS, 3)
            if slowest[i] >= 0:
                about["slowest_sample_ms"] = round(int(slowest[i]) / NS_PER_MS, 3)
            last = "fetch"
            if collate >= 0:
                self._span("fetch", pid, tid, begin, collate, about)
                begin, last, about = collate, "collate", _about(batches, i)
            self._span(last, pid, tid, begin, end, about)
            if self._is_inside(end):
                key = (int(batches.serial[i]), int(batches.epoch[i]), int(batches.idx[i]))
                self._tails[key] = (pid, tid, self.clock.to_trace(end) - 1)

    def _add_sending(self, batches: Batches, pid: int) -> None:
        """The feeder thread's row: pickling into shared memory, then the pipe.

        The end is what the worker noted; the training process may have the batch a moment
        before, as the bytes are there before the call returns.
        """
        sent = batches.where(batches.send_ns >= 0)
        sent = sent.where(np.argsort(sent.send_ns, kind="stable"))
        if not len(sent):
            return
        tid = int(sent.feeder[0])
        self._name_thread(pid, tid, "queue feeder")
        free_ns = 0
        for i in range(len(sent)):
            start = max(free_ns, int(sent.end_ns[i]))
            free_ns = int(sent.sent_ns[i])
            about = {**_about(sent, i), "bytes": int(sent.n_bytes[i])}
            self._span("queue put", pid, tid, start, free_ns, about)

    def _slowest_samples(self, batches: Batches) -> NDArray[np.int64]:
        samples = self.log.samples
        slowest = np.full(len(self.log.batches), -1, dtype=np.int64)
        np.maximum.at(slowest, samples.batch, samples.duration_ns)
        rows = rows_of(batches.key, self.log.batches.key)
        return np.where(rows >= 0, slowest[rows], -1)

    def _visible(self, start_ns: NDArray[np.int64], end_ns: NDArray[np.int64]) -> NDArray[np.bool_]:
        shown = self.clock.to_trace(end_ns) > self.begin_ns
        return shown & (self.clock.to_trace(start_ns) < self.end_ns)

    def _is_inside(self, at_ns: int) -> bool:
        return self.begin_ns < self.clock.to_trace(at_ns) <= self.end_ns

    def _span(
        self,
        name: str,
        pid: int,
        tid: int,
        start_ns: int,
        end_ns: int,
        args: Event,
        at_least_ns: int = 1,
    ) -> None:
        """One complete event, cut to the trace and to what its row already shows."""
        start = max(int(self.clock.to_trace(int(start_ns))), self.begin_ns)
        start = max(start, self._reached.get((pid, tid), start - self.gap_ns) + self.gap_ns)
        end = min(int(self.clock.to_trace(int(end_ns))), self.end_ns)
        if end - start < at_least_ns:
            return
        self._reached[pid, tid] = end
        self.events.append(
            {
                "ph": "X",
                "cat": CATEGORY,
                "name": name,
                "pid": pid,
                "tid": tid,
                "ts": self._ts(start),
                "dur": (end - start) / 1000,
                "args": args,
            }
        )

    def _loader_of(self, mine: Batches) -> str:
        """` of train.py:41` where workers of several loaders are shown; else nothing."""
        loader = self._loaders.get(int(mine.serial[0]))
        several = len({x for x in self._loaders.values() if x is not None}) > 1
        return f" of {loader}" if several and loader is not None else ""

    def _name_process(self, pid: int, name: str, worker: int) -> None:
        self._metadata("process_name", pid, 0, {"name": name})
        self._metadata("process_sort_index", pid, 0, {"sort_index": FIRST_OWN_TID + worker})

    def _name_thread(self, pid: int, tid: int, name: str) -> None:
        self._metadata("thread_name", pid, tid, {"name": name})

    def _metadata(self, kind: str, pid: int, tid: int, args: Event) -> None:
        event = {"ph": "M", "name": kind, "pid": pid, "tid": tid, "ts": self._ts(self.begin_ns)}
        self.events.append({**event, "args": args})

    def _ts(self, trace_ns: int) -> float:
        return self.trace.origin_us + trace_ns / 1000


def _first_begin(
    begins: dict[np.int32, NDArray[np.int64]], thread: np.int32, start_ns: int, end_ns: int
) -> int:
    """When the first span within another one begins; the other's end where it holds none."""
    at = int(np.searchsorted(begins[thread], start_ns, side="right"))
    return min(int(begins[thread][at]), end_ns) if at < begins[thread].size else end_ns


def _about(rows: Batches | BatchSpans, i: int) -> Event:
    about = {"batch": int(rows.idx[i])}
    if rows.epoch[i]:
        about["epoch"] = int(rows.epoch[i])
    return about


def _next_spans(trace: Trace) -> Any:
    """The trace's `enumerate(DataLoader)#….__next__` spans."""
    numbers = [
        i
        for i, name in enumerate(trace.names)
        if name.startswith("enumerate(DataLoader)") and name.endswith(".__next__")
    ]
    annotations = trace.spans.of(Category.USER_ANNOTATION)
    return annotations.where(np.isin(annotations.name, np.asarray(numbers, dtype=np.int32)))


def _number(text: str) -> int | str:
    number = row_id(text)
    return text if number is None else number
