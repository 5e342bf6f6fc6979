"""Times the loops of a script that knows nothing of it, and hands out ready batches if asked to.

With this folder first on PYTHONPATH, Python imports this file at the start of every process.
Where STOPWATCH names a folder, each `next` of a DataLoader writes a line to the process's file:

    <iterator> <number> <asked at, s> <got at, s> <optimizer steps so far> <state>

Number -1 is the call of `iter`; its last column says how many batches workers prefetch. State 0 is
the script as it is. STOPWATCH_READY=S: S seconds after the first steps (three, and those that begin
with prefetched batches), and after 8 more at least, the next few batches of each loader are kept
(state 1), its workers end, and for 2 S seconds the kept ones are handed out in turn (state 2): the
loop computes as it would with a loader that costs nothing. Then the script goes on as it is: its
first steps with new workers (state 3) and all others (state 4). STOPWATCH_CYCLES=N: N times, with
2 S seconds as it is between ready batches, and 10 more in the state of each cycle behind the
first. A machine that gets slower or faster is so for both alike. No part of loaderdoctor is
involved.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from pathlib import Path
from typing import Any, TextIO

FLUSH_S = 0.25
KEPT = 4  # batches handed out in turn
FIRST_STEP = 3  # the seconds begin with it
LEAST_STEPS, LEAST_READY = 8, 12  # as it is and with ready batches, however slow
PLAIN, KEEPING, READY, RETURNING, AGAIN = range(5)


class Log:
    """One process's lines; a forked child does not write to its parent's file."""

    def __init__(self, folder: str, ready_after_s: float | None, n_cycles: int = 1) -> None:
        self.folder = folder
        self.ready_after_s = ready_after_s
        self.n_cycles = n_cycles
        self.cycle = 0
        self.began: float | None = None
        self.phase = PLAIN
        self.since: tuple[float, int] | None = None  # of the phase: seconds, steps
        self.settled_at = 0  # steps: those before are the first of their phase
        self.n_prefetched = 0
        self.pid = 0
        self.file: TextIO | None = None
        self.n_steps = 0
        self.n_iterators = 0
        self.flushed = 0.0

    def add(self, iterator: int, number: int, asked: float, got: float, state: int) -> None:
        if self.pid != os.getpid() or self.file is None:
            self.pid = os.getpid()
            self.file = (Path(self.folder) / f"{self.pid}.txt").open("a")
        self.file.write(f"{iterator} {number} {asked:.7f} {got:.7f} {self.n_steps} {state}\n")
        if got - self.flushed > FLUSH_S:
            self.file.flush()
            self.flushed = got

    def flush(self) -> None:
        if self.pid == os.getpid() and self.file is not None:
            self.file.flush()

    def stepped(self, *_: object) -> None:
        self.n_steps += 1
        if self.n_steps == FIRST_STEP + self.n_prefetched:
            self.began = time.perf_counter()

    def phase_at(self, now: float) -> int:
        """PLAIN, then READY while ready batches are due, then AGAIN; the last two in turns."""
        if self.ready_after_s is None or self.began is None:
            return PLAIN
        if self.phase == PLAIN and now - self.began > self.ready_after_s:
            if self.n_steps >= FIRST_STEP + self.n_prefetched + LEAST_STEPS:
                self.phase = READY
        elif self.phase == READY and self._lasted(now, LEAST_READY):
            self.phase, self.since = AGAIN, None
            self.settled_at = self.n_steps + FIRST_STEP + self.n_prefetched
        elif self.phase == AGAIN and self.cycle + 1 < self.n_cycles:
            if self.since is None and self.n_steps >= self.settled_at:
                self.since = now, self.n_steps
            elif self._lasted(now, LEAST_STEPS):
                self.phase, self.since = READY, None
                self.cycle += 1
                self.settled_at = self.n_steps + FIRST_STEP
        return self.phase

    def _lasted(self, now: float, least_steps: int) -> bool:
        if self.since is None or self.ready_after_s is None:
            return False
        since_s, n_steps = self.since
        return self.n_steps >= n_steps + least_steps and now - since_s > 2 * self.ready_after_s


class Timed:
    """A DataLoader's iterator, timed; it hands out kept batches while they are due."""

    def __init__(self, log: Log, loader: Any, begin: Any) -> None:
        asked = time.perf_counter()
        self.log, self.loader, self.begin = log, loader, begin
        log.n_iterators += 1
        self.me = log.n_iterators
        self.number = 0
        self.kept: list[Any] = loader.__dict__.setdefault("_stopwatch_kept", [])
        try:
            self.length: int | None = len(loader)
        except TypeError:
            self.length = None  # a stream: kept batches go on
        ready = log.phase_at(asked) == READY and len(self.kept) >= KEPT
        self.inner = None if ready else begin(loader)
        if log.began is None:
            log.n_prefetched = max(log.n_prefetched, prefetched(loader))
        log.add(self.me, -1, asked, time.perf_counter(), prefetched(loader))

    def __iter__(self) -> Timed:
        return self

    def __len__(self) -> int:
        return self.length or 0

    def __next__(self) -> Any:
        asked = time.perf_counter()
        log = self.log
        phase = state = log.phase_at(asked)
        settling = log.n_steps < log.settled_at
        if phase == READY and (settling or len(self.kept) < KEPT):
            state = KEEPING
        elif phase == AGAIN and settling:
            state = RETURNING
        cycle = log.cycle
        try:
            return self._next(phase)
        finally:
            log.add(self.me, self.number, asked, time.perf_counter(), state + 10 * cycle)
            self.number += 1

    def _next(self, phase: int) -> Any:
        full = len(self.kept) >= KEPT
        ready = phase == READY and full
        if ready:
            if self.log.since is None and self.log.n_steps >= self.log.settled_at:
                self.log.since = time.perf_counter(), self.log.n_steps
            self.inner = None  # one of an earlier phase: its workers end
        if ready or phase == AGAIN:
            if self.length is not None and self.number >= self.length:
                raise StopIteration
            if ready:
                return self.kept[self.number % len(self.kept)]
        if self.inner is None:
            self.inner = self.begin(self.loader)  # in the middle of an epoch
        batch = next(self.inner)
        if phase == READY:
            self.kept.append(batch)
            if len(self.kept) >= KEPT:
                self.inner = None  # the workers end
        return batch


def prefetched(loader: Any) -> int:
    return int(loader.num_workers * (loader.prefetch_factor or 0))


def install(folder: str, ready_after_s: float | None, n_cycles: int) -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook
    from torch.utils.data import DataLoader

    log = Log(folder, ready_after_s, n_cycles)
    atexit.register(log.flush)
    register_optimizer_step_post_hook(log.stepped)
    begin = DataLoader.__iter__

    def timed(self: Any) -> Any:
        return Timed(log, self, begin)

    DataLoader.__iter__ = timed  # type: ignore[method-assign]


folder = os.environ.get("STOPWATCH")
if folder and "resource_tracker" not in " ".join(sys.orig_argv):
    if not hasattr(sys, "argv"):
        sys.argv = [""]  # set later; some packages read it while they are imported
    after = os.environ.get("STOPWATCH_READY")
    n_cycles = int(os.environ.get("STOPWATCH_CYCLES", "1"))
    install(folder, float(after) if after else None, n_cycles)
