"""Times the steps of one window: starts what counts, lets the loop run, tells what was counted.

Also the one kind of window without steps: the loader alone, while the loop stands still; and
`quick_next`, a step of a recorded run at its cheapest.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Generator
from threading import get_ident
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from loaderdoctor.errors import LoaderdoctorError
from loaderdoctor.instrument.session import ScriptOverError, Session
from loaderdoctor.instrument.session.loader_state import LoaderState
from loaderdoctor.instrument.session.messages import Messages
from loaderdoctor.instrument.session.open_window import CollectionCount, CompileCount
from loaderdoctor.instrument.session.profiling import Timed, WindowProfiler
from loaderdoctor.instrument.session.sources import Sources
from loaderdoctor.instrument.session.step_clock import DeviceMarks, StepClock, StepTimes
from loaderdoctor.instrument.session.switches import Switches
from loaderdoctor.instrument.system import memory
from loaderdoctor.instrument.system.cpu_use import CpuMeter
from loaderdoctor.instrument.system.look_around import GpuLimits
from loaderdoctor.instrument.system.processes import host_bytes, unique_bytes
from loaderdoctor.instrument.wire.measured import (
    CopyRecord,
    CpuRecord,
    FetchRecord,
    PoolMemoryRecord,
)
from loaderdoctor.instrument.wire.protocol import SCRIPT_ENDED, WindowDone, WindowRequest

if TYPE_CHECKING:
    from loaderdoctor.instrument.batches.source import Source
    from loaderdoctor.instrument.session.feed import Feed


class WindowFailedError(LoaderdoctorError):
    """The window can't be measured; the message is the reason."""


class TimedSteps:
    """Times windows whose batches and copies are what they are to be."""

    def __init__(
        self,
        session: Session,
        messages: Messages,
        sources: Sources,
        switches: Switches,
        marks: DeviceMarks | None,
    ) -> None:
        self.script_over = False  # it ended within a window
        self._limits: GpuLimits | None = None
        self._own_pids: frozenset[int] = frozenset()  # of workers, at the last window but trials
        self._session = session
        self._messages = messages
        self._sources = sources
        self._switches = switches
        self._marks = marks

    def run(
        self,
        request: WindowRequest,
        n_steps: int,
        deadline: int,
        profiler: WindowProfiler | None = None,
    ) -> Timed:
        """Time `n_steps` of the loop, or fewer where it or its batches end, or the time is over.

        Raises WindowFailedError where none ended, or copies were not answered.
        """
        window = self._session.window
        copies = self._switches.answering
        if copies is not None:
            copies.start_counting()
        # The script of a recorded run may ask for its own peaks, of all it did.
        if request.mode != "trial" and self._session.recording is None:
            memory.reset_gpu_peaks(self._session.device)
        compiles = CompileCount()
        limits = self._gpu_limits()
        held_before = limits.counters() if limits is not None else None
        meter = CpuMeter(self._session.channel.n_above)
        clock = StepClock(self._marks, n_steps=n_steps)
        window.begin_timing(clock)
        if self._session.wall.in_steps:
            clock.accept_foreign()
        clock.start(perf_counter_ns(), fresh=self._session.at_fresh_feed)
        if profiler is None and not (self._switches.watch_each_step or self._sources.substituting):
            window.count = self._counter(clock, n_steps)
        garbage = CollectionCount()
        try:
            reason = yield from self._run_steps(request, clock, n_steps, deadline, profiler)
        finally:
            collections = garbage.stop()
        fetches = window.end_timing()
        cpu = meter.since()
        held = limits.since(held_before) if limits is not None else None
        compiled = compiles.since()
        if clock.n_steps == 0:
            raise WindowFailedError(reason or "no step ended in this window")
        if copies is not None and copies.reason is not None:
            raise WindowFailedError(copies.reason)
        answered = copies.counts() if copies is not None else None
        done = self._figures(request, reason, clock.finish(), fetches, cpu, answered)
        return msgspec.structs.replace(
            done, compiles=compiled, collections=collections, gpu_limits=held
        )

    def _gpu_limits(self) -> GpuLimits | None:
        """NVML's counters of the GPU trained on, opened at the first window; None without one."""
        device = self._session.device
        if device is None or device.type != "cuda" or torch.version.hip is not None:
            return None
        if self._limits is None:
            uuid = getattr(torch.cuda.get_device_properties(device), "uuid", "")
            self._limits = GpuLimits(str(uuid))
        return self._limits

    def _counter(self, clock: StepClock, n_steps: int) -> Callable[[int], bool] | None:
        """Counts a step (its boundary in ns) at which nothing else happens; False: wake the driver.

        The driver is a generator below three others; waking it in each step of a plain window costs
        more than the rest of the hooks. None for a rank of a group, which may have to wait for its
        peers after any step.
        """
        session, messages = self._session, self._messages
        if session.group:
            return None

        def count(now: int) -> bool:
            # At the window's last step, and every 50 ms, for the connection and the time limit.
            if now >= messages.next_poll_ns or clock.n_steps + 1 >= n_steps:
                return False
            clock.mark(now, edge=session.at_edge)
            return True

        return count

    def _run_steps(
        self,
        request: WindowRequest,
        clock: StepClock,
        n_steps: int,
        deadline: int,
        profiler: WindowProfiler | None,
    ) -> Generator[None, int, str | None]:
        """Let the loop run until the clock has `n_steps`; why it has less, else None."""
        reason: str | None = None
        try:
            while clock.n_steps < n_steps and reason is None:
                now = yield
                edge = self._session.at_edge or clock.n_steps + 1 >= n_steps
                begins = clock.mark(now, edge=edge)
                reason = self._sources.failure()
                if reason is None and now > deadline:
                    reason = f"the window's {request.limit_s} s were over"
                if profiler is not None:
                    over = reason is not None or clock.n_steps >= n_steps
                    profiler.boundary(begins=begins, last=over)
                self._messages.poll(now)
                self._switches.begin_step()
        except ScriptOverError:
            self.script_over = True
            return SCRIPT_ENDED
        return reason

    def _figures(
        self,
        request: WindowRequest,
        reason: str | None,
        times: StepTimes,
        fetches: tuple[FetchRecord, ...],
        cpu: CpuRecord,
        copies: CopyRecord | None,
    ) -> WindowDone:
        """What the window tells, with what can be read only now: memory, and pages of batches."""
        session, loader, n_steps = self._session, self._sources.clock, len(times.host_ns)
        peaks = memory.gpu_peaks(session.device)
        return WindowDone(
            id=request.id,
            mode=request.mode,
            status="ok" if reason is None else "short",
            reason=reason,
            n_steps=n_steps,
            n_samples=round(n_steps * samples_per_batch(loader, request)),
            start_ns=times.start_ns,
            end_ns=times.end_ns,
            host_step_ns=times.host_ns,
            device_step_ns=times.device_ns,
            boundary_steps=times.boundary_steps,
            crossed_steps=times.crossed_steps,
            fetches=fetches,
            boundaries=tuple(session.window.boundaries),
            worker_cpu_ns=cpu.workers_ns,
            main_cpu_ns=cpu.main_ns,
            cpu=cpu,
            pages=loader.pages.record(),
            host_bytes=self._host_bytes() if request.host_memory else None,
            pool_memory=self._pool_memory(request) if request.host_memory else None,
            gpu_peak_allocated_bytes=peaks.allocated_bytes if peaks is not None else None,
            gpu_peak_reserved_bytes=peaks.reserved_bytes if peaks is not None else None,
            copies=copies,
            wall=session.wall.record(session.n_steps),
            epoch_length=loader.passes.length,
        )

    def _pool_memory(self, request: WindowRequest) -> PoolMemoryRecord | None:
        """Of the loop's own workers; in a trial of those that were started for it."""
        pids = _worker_pids()
        if request.mode == "trial":
            pids -= self._own_pids
        else:
            self._own_pids = pids
        sizes = [(pid, n) for pid in sorted(pids) if (n := unique_bytes(pid)) is not None]
        return PoolMemoryRecord(by_pid=tuple(sizes)) if sizes else None

    def _host_bytes(self) -> int | None:
        try:
            return host_bytes(os.getpid())
        except Exception as error:  # /proc of a worker that just ended
            self._session.note("memory-not-recorded", f"{type(error).__name__}: {error}")
            return None


def _worker_pids() -> frozenset[int]:
    """Of the worker processes that this one has started: daemons, as all of DataLoader's are.

    The set is only looked at: `multiprocessing.active_children` would also collect those that have
    ended, which is the script's business.
    """
    children = list(getattr(multiprocessing.process, "_children", ()))
    return frozenset(x.pid for x in children if x.daemon and x.pid is not None)


def samples_per_batch(loader: LoaderState, request: WindowRequest) -> float:
    """Samples in a batch: the size asked for or the loader's, else its first dimension."""
    if request.settings is not None and request.settings.batch_size is not None:
        return float(request.settings.batch_size)
    if loader.record.batch_size is not None:
        return float(loader.record.batch_size)
    sizes = [b[0].shape[0] for b in loader.seen.described if b and b[0].shape]
    return sum(sizes) / len(sizes) if sizes else 0.0


def drained(
    source: Source, request: WindowRequest, *, cycle: int, samples_per_batch: float, deadline: int
) -> WindowDone:
    """Times fetches of `source` back to back, of which the loop gets none: the loader's ceiling.

    Until `n_steps` of them or the deadline; `host_step_ns` has them. One cycle of the workers goes
    first: their first batches come together. Raises StopIteration where the data is at an end
    before anything was timed.
    """
    source.drop(cycle)
    start = before = perf_counter_ns()
    times: list[int] = []
    while len(times) < request.n_steps and before < deadline:
        source.next_batch()
        now = perf_counter_ns()
        times.append(now - before)
        before = now
    whole = len(times) == request.n_steps
    return WindowDone(
        id=request.id,
        mode=request.mode,
        status="ok" if whole else "short",
        reason=None if whole else f"the window's {request.limit_s} s were over",
        n_steps=len(times),
        n_samples=round(len(times) * samples_per_batch),
        start_ns=start,
        end_ns=before,
        host_step_ns=tuple(times),
        startup_ns=source.startup_ns,
    )


def quick_next(
    session: Session,
    fetch: Callable[[Feed, Any], Any],
    ran_out: Callable[[Feed, int], None],
    failed: Callable[[Feed], None],
) -> Callable[[Feed, Any], Any]:
    """What hands the next batch of a pass of the step's loader, for the window open now.

    `Loop.fetch` in one function, for a run recorded to its end while a step holds nothing but a
    step: between two batches the loop's own work drives our code out of the CPU's caches, and each
    further function entered costs there what ten cost in a loop that does nothing else. Call it
    only for a pass of whose batches none was or is to be substituted. `fetch` takes over where more
    than a step is to be seen to, `ran_out` tells of an epoch's end, `failed` of an error, as in
    `Loop`.
    """
    definition, window = session.definition, session.window
    assert definition is not None
    clock, thread, with_grad = definition.clock, definition.thread, definition.with_grad
    marks, fetches = window.marks, window.fetches
    assert marks is not None
    assert fetches is not None
    passes, wall, index = clock.passes, session.wall, clock.index
    torchs, grad_enabled = session.originals.fetch, torch.is_grad_enabled
    now_ns = perf_counter_ns

    def quick(feed: Feed, own: Any) -> Any:
        start = now_ns()
        if (
            marks.left <= 0
            or start >= marks.due_ns
            or wall.eventful
            or get_ident() != thread
            or not session.live
            or (with_grad and not grad_enabled())
        ):
            if not session.live:
                feed.quick = None
            return fetch(feed, own)
        marks.left -= 1
        marks.at.append(start)
        session.n_steps += 1
        wall.began_ns = start
        handed = feed.handed
        try:
            batch = torchs(own) if handed is None else handed.next_batch(own)
        except StopIteration:
            ran_out(feed, start)
            raise
        except Exception:
            failed(feed)
            raise
        feed.n_drawn += 1
        feed.n_seen = passes.n_seen = feed.n_seen + 1
        clock.n_fetches += 1
        fetches.append((index, start, now_ns(), thread, 0))
        return batch

    return quick
