"""Records the loop to its end, in constant memory: what happens at each step boundary, and a beat.

Runs on the training thread. A step costs an entry in a list and what the hooks cost anyway;
every few seconds the lists are summed up, sent and emptied. Nothing of the loop is changed, nothing
is waited for, and once nobody listens any more the hooks are taken out.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from loaderdoctor.instrument.recording.process_counts import (
    CollectionTimes,
    WorkersReader,
    queue_fill,
)
from loaderdoctor.instrument.recording.stretch import (
    N_LAST,
    Blocks,
    StepMarks,
    stalls_of,
    step_bins,
    steps_of,
    sums_of,
)
from loaderdoctor.instrument.session import Driver, MeasuresWindows, ScriptOverError, Session
from loaderdoctor.instrument.session.open_window import OpenWindow
from loaderdoctor.instrument.wire.measured import Dry, QueueFill
from loaderdoctor.instrument.wire.protocol import Beat, WindowRequest
from loaderdoctor.units import NS_PER_S

if TYPE_CHECKING:
    from loaderdoctor.instrument.recording.loop_tuner import LoopTuner
    from loaderdoctor.instrument.recording.process_counts import CopyProbe, DryProbe


BEAT_NS: Final = 2_000_000_000
# Marks summed up at a time, for loops of very short steps.
MAX_MARKS: Final = 16_384
MIN_TYPICAL: Final = 8  # steps, for a median of them
# One step in so many has the device looked at: two events, and what is done around them, cost up to
# 170 us a sample on an H200. Primes, so that no number of workers divides them and each worker's
# batches are seen.
SAMPLE_EVERY: Final = (13, 29, 53, 101, 199, 397)
SAMPLE_NS: Final = 50_000_000  # the first of these that lasts so long
# Copies are seen in one step in so long, and in twice that after each COPIES_LOOKS: their mean is
# told of the whole run. Putting a hook on the loop's calls and taking it away cost 400 us on an
# H200 (benchmarks/run_overhead.py: 30 us a step in every thirteenth of 0.3 ms). From Python 3.13
# on, a class that was changed a thousand times has its methods cached no more: this makes a few
# changes a look, some 80 looks a week.
COPIES_NS: Final = 200_000_000
COPIES_LOOKS: Final = 4
# Where steps have become so many times as long or as short (a curriculum, longer sequences), copies
# are seen at once, and a quarter as far apart again: so often at most, 128 looks in all.
COPIES_CHANGED: Final = 1.3
COPIES_ANEW: Final = 16
# A block is what change points are told from: enough steps for a median, long enough to average
# over the scheduler, and soon enough for a change to be named within 200 steps or 30 s.
BLOCK_NS: Final = 250_000_000
MIN_BLOCK: Final = 10
MAX_BLOCK: Final = 512
# The first window, which findings rest on.
FIRST_S: Final = 1.0
FIRST_STEPS: Final = (64, 1000)
BEFORE_PROFILE: Final = 0.25  # of that, where a profiled window and another one follow
FIRST_LIMIT_S: Final = 20.0
PROFILED_STEPS: Final = 24
PLAIN_ID, PROFILED_ID, AGAIN_ID = 1, 2, 3


class Recorder:
    """Of one training process."""

    def __init__(
        self, session: Session, *, trace_path: str | None = None, tuner: LoopTuner | None = None
    ) -> None:
        """`trace_path`: some steps with the profiler first, whose trace goes there."""
        self._session = session
        self._trace_path = trace_path
        self._tuner = tuner
        self._marks = StepMarks()
        self._collections = CollectionTimes()
        self._workers = WorkersReader(session.workers.sums_folder)
        self._dry: DryProbe | None = None
        self._copies: CopyProbe | None = None
        # Numbers of marks at which the tuner has to hear of them, and the device is looked at.
        self._hear_at = self._sample_at = 1
        self._sent_ns = 0
        self._clocks = (0, 0)  # CPU time at the last beat: process, thread
        self._faults: tuple[int, int] | None = None
        self._typical_ns = 0.0
        self._blocks = Blocks(MIN_BLOCK)

    def course(self, windows: MeasuresWindows) -> Driver:
        """From the loop's first warm steps to its end."""
        session = self._session
        definition = session.definition
        assert definition is not None
        try:
            for request in self._first(windows.step_ns):
                yield from windows.measure(request)
        except ScriptOverError:
            # Too short for more than its first window: how many steps it had is told all the same.
            self._restart(perf_counter_ns())
            session.send(self._beat(self._sent_ns))
            raise
        session.workers.flush()
        session.workers.sums_only()
        if session.device is not None and definition.tick == "fetch":
            from loaderdoctor.instrument.recording.process_counts import CopyProbe, DryProbe

            self._dry, self._copies = DryProbe(session.device), CopyProbe(session.device)
        cycle = windows.batches_per_cycle(None)
        n = math.ceil(BLOCK_NS / max(1, windows.step_ns))
        n = min(MAX_BLOCK, max(MIN_BLOCK, n))
        self._blocks = Blocks(-(-n // cycle) * cycle)
        self._typical_ns = float(windows.step_ns)
        self._collections.install()
        try:
            now = perf_counter_ns()
            self._open(now)
            if self._tuner is not None:
                self._tuner.begin()
            while not session.channel.lost:
                now = yield
                session.send(self._beat(now))
        except ScriptOverError:
            session.send(self._beat(perf_counter_ns()))
            raise
        finally:
            if self._tuner is not None:
                self._tuner.end()
            self._collections.remove()
            if self._copies is not None:
                self._copies.end()
            session.close_window()

    def _first(self, step_ns: int) -> list[WindowRequest]:
        step_s = max(step_ns / NS_PER_S, 1e-6)
        fewest, most = FIRST_STEPS
        of = 1.0 if self._trace_path is None else BEFORE_PROFILE
        n = min(most, max(fewest, math.ceil(of * FIRST_S / step_s)))
        plain = WindowRequest(
            id=PLAIN_ID, mode="plain", n_steps=n, limit_s=FIRST_LIMIT_S, drop_batches=False
        )
        if self._trace_path is None:
            return [plain]
        profiled = WindowRequest(
            id=PROFILED_ID,
            mode="profiled",
            n_steps=PROFILED_STEPS,
            limit_s=FIRST_LIMIT_S,
            trace_path=self._trace_path,
            drop_batches=False,
        )
        again = WindowRequest(id=AGAIN_ID, mode="plain", n_steps=n, limit_s=FIRST_LIMIT_S)
        return [plain, profiled, again]

    # ------------------------------------------------------------ each step

    def _open(self, now: int) -> None:
        session = self._session
        window = session.window = OpenWindow()
        window.clock = window.marks = self._marks
        window.fetches, window.fetch_cpu = [], False
        window.count = self._counter(window)
        self._marks.add(now)
        self._restart(now)

    def _restart(self, now: int) -> None:
        """What the next beat tells begins now."""
        self._sent_ns, self._marks.due_ns = now, now + BEAT_NS
        self._clocks = (time.process_time_ns(), time.thread_time_ns())
        self._faults = _faults()

    def _counter(self, window: OpenWindow) -> Callable[[int], bool]:
        """Counts a step at its boundary; False: the driver is to sum up."""
        marks, tuner = self._marks, self._tuner
        add, dry, copies = marks.add, self._dry, self._copies
        sampled = False
        copies_due_ns = n_looks = n_anew = 0
        looked_at_ns = self._typical_ns

        def fetched(batch: Any) -> None:
            nonlocal sampled, copies_due_ns, n_looks, n_anew, looked_at_ns
            window.watch_batch = None
            if dry is not None and copies is not None:
                dry.after_fetch()
                now, step_ns = perf_counter_ns(), self._typical_ns
                longer, shorter = COPIES_CHANGED * looked_at_ns, looked_at_ns / COPIES_CHANGED
                if not shorter <= step_ns <= longer and n_anew < COPIES_ANEW:
                    looked_at_ns, n_anew = step_ns, n_anew + 1
                    copies_due_ns, n_looks = now, max(0, n_looks - 2 * COPIES_LOOKS)
                if now >= copies_due_ns:
                    copies_due_ns = now + (COPIES_NS << n_looks // COPIES_LOOKS)
                    n_looks += 1
                    copies.begin()
                    sampled = True
                    marks.left = 0  # to the next boundary, and no further

        def count(now: int) -> bool:
            nonlocal sampled
            add(now)
            n = len(marks.at)
            left = MAX_MARKS
            if sampled and copies is not None:
                sampled = False
                copies.end()
            if tuner is not None:
                if n >= self._hear_at or n - 2 in marks.flags:
                    self._hear_at = n + tuner.hear(marks.at, marks.flags, window.fetches or [])
                left = min(left, self._hear_at)
            if dry is not None:
                if window.watch_batch is fetched:  # the fetch before this one found no batch
                    window.watch_batch = None
                    dry.cancel()
                if n >= self._sample_at:
                    self._sample_at = n + sample_every(self._typical_ns)
                    dry.before_fetch()
                    window.watch_batch = fetched
                left = min(left, self._sample_at)
            marks.left = left - n - 1
            return now < marks.due_ns and n < MAX_MARKS

        return count

    # ------------------------------------------------------------ every few seconds

    def _beat(self, now: int) -> Beat:
        """What was marked since the last one, summed up and forgotten."""
        session, tuner = self._session, self._tuner
        of_window = session.window.fetches or []
        if tuner is not None:
            self._hear_at = 1 + tuner.hear(self._marks.at, self._marks.flags, of_window)
            tuner.emptied()
        fetches = of_window[:]
        del of_window[: len(fetches)]
        at, flags = self._marks.take()
        self._sample_at -= len(at) - 1
        steps = steps_of(at, flags, self._waits(fetches), session.n_steps)
        plain = steps.took_ns[steps.plain]
        if plain.size >= MIN_TYPICAL:
            self._typical_ns = float(np.median(plain))
        collections, noted = self._collections.take()
        in_steps, in_waits = step_bins(steps)
        cpu_ns, thread_ns = time.process_time_ns(), time.thread_time_ns()
        faults = _faults()
        before = self._faults
        beat = Beat(
            start_ns=self._sent_ns,
            end_ns=now,
            at_s=time.time(),
            n_steps=session.n_steps,
            n_epochs=session.wall.n_epochs,
            sums=sums_of(steps, self._typical_ns),
            blocks=self._blocks.add(steps),
            stalls=stalls_of(steps, self._typical_ns, noted),
            step_bins=in_steps,
            wait_bins=in_waits,
            last_step_ns=tuple(plain[-N_LAST:].tolist()),
            collections=collections,
            workers=self._workers.take(),
            queue=self._queue(),
            dry=self._on_device(),
            main_cpu_ns=cpu_ns - self._clocks[0],
            thread_cpu_ns=thread_ns - self._clocks[1],
            minor_faults=faults[0] - before[0] if faults and before else None,
            major_faults=faults[1] - before[1] if faults and before else None,
            wall=session.wall.record(session.n_steps),
            tuning=tuner.news() if tuner is not None else None,
        )
        self._clocks, self._faults = (cpu_ns, thread_ns), faults
        self._sent_ns, self._marks.due_ns = now, now + BEAT_NS
        return beat

    def _waits(self, fetches: list[tuple[int, int, int, int, int]]) -> list[tuple[int, int]] | None:
        """(begin, end) of the fetches that the step waited for; None where another thread does."""
        definition = self._session.definition
        assert definition is not None
        if definition.tick != "fetch":
            return None
        of_step = {loader.index for loader in definition.train}
        return [
            (start, end)
            for loader, start, end, thread, _ in fetches
            if loader in of_step and thread == definition.thread
        ]

    def _on_device(self) -> Dry | None:
        if self._dry is None or self._copies is None:
            return None
        (n_sampled, dry_ns), (n_copied, copy_ns) = self._dry.take(), self._copies.take()
        return Dry(n_sampled=n_sampled, dry_ns=dry_ns, n_copied=n_copied, copy_ns=copy_ns)

    def _queue(self) -> QueueFill | None:
        definition = self._session.definition
        assert definition is not None
        feed = definition.clock.feed() if definition.clock.feed is not None else None
        iterator = feed.iterator() if feed is not None else None
        return queue_fill(iterator) if iterator is not None else None


def sample_every(step_ns: float) -> int:
    """Of how many steps that long one is sampled."""
    return next((n for n in SAMPLE_EVERY if n * step_ns >= SAMPLE_NS), SAMPLE_EVERY[-1])


def _faults() -> tuple[int, int] | None:
    """Minor and major page faults of this process so far; None where the system tells none."""
    if sys.platform == "win32":
        return None
    import resource  # not on Windows

    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_minflt, usage.ru_majflt
