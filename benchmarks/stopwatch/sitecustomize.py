"""Times the loops of a script that knows nothing of it, and hands out ready batches if asked to.

With this folder first on PYTHONPATH, Python imports this file at the start of every process.
Where STOPWATCH names a folder, each `next` of a DataLoader writes a line to the process's file:

    <iterator> <number> <asked at, s> <got at, s> <optimizer steps so far> <state>

Number -1 is the call of `iter`; its last column says how many batches workers prefetch. State 0 is
the script as it is. STOPWATCH_READY=S: S seconds after the first steps (three, and those that begin
with prefetched batches), and after 12 more at least, the next few batches of each loader are kept
(state 1), its workers end, and from then on the kept ones are handed out in turn (state 2): the
loop computes as it would with a loader that costs nothing. No part of loaderdoctor is involved.
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
LEAST_STEPS = 12  # as it is, however slow
PLAIN, KEEPING, READY = 0, 1, 2


class Log:
    """One process's lines; a forked child does not write to its parent's file."""

    def __init__(self, folder: str, ready_after_s: float | None) -> None:
        self.folder = folder
        self.ready_after_s = ready_after_s
        self.began: float | None = None
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

    def replaces(self) -> bool:
        """Whether ready batches are due."""
        if self.ready_after_s is None or self.began is None:
            return False
        if self.n_steps < FIRST_STEP + self.n_prefetched + LEAST_STEPS:
            return False
        return time.perf_counter() - self.began > self.ready_after_s


class Timed:
    """A DataLoader's iterator, timed; it hands out kept batches once they are due."""

    def __init__(self, log: Log, loader: Any, begin: Any) -> None:
        asked = time.perf_counter()
        self.log = log
        log.n_iterators += 1
        self.me = log.n_iterators
        self.number = 0
        self.kept: list[Any] = loader.__dict__.setdefault("_stopwatch_kept", [])
        try:
            self.length: int | None = len(loader)
        except TypeError:
            self.length = None  # a stream: kept batches go on
        self.inner = begin(loader) if len(self.kept) < KEPT else None
        if log.began is None:
            log.n_prefetched = max(log.n_prefetched, prefetched(loader))
        log.add(self.me, -1, asked, time.perf_counter(), prefetched(loader))

    def __iter__(self) -> Timed:
        return self

    def __len__(self) -> int:
        return self.length or 0

    def __next__(self) -> Any:
        asked = time.perf_counter()
        replaces = self.log.replaces()
        state = READY if self.inner is None else KEEPING if replaces else PLAIN
        try:
            return self._next(replaces)
        finally:
            self.log.add(self.me, self.number, asked, time.perf_counter(), state)
            self.number += 1

    def _next(self, replaces: bool) -> Any:
        if self.inner is not None:
            batch = next(self.inner)
            if replaces:
                self.kept.append(batch)
                if len(self.kept) >= KEPT:
                    self.inner = None  # the workers end
            return batch
        if self.length is not None and self.number >= self.length:
            raise StopIteration
        return self.kept[self.number % len(self.kept)]


def prefetched(loader: Any) -> int:
    return int(loader.num_workers * (loader.prefetch_factor or 0))


def install(folder: str, ready_after_s: float | None) -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook
    from torch.utils.data import DataLoader

    log = Log(folder, ready_after_s)
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
    install(folder, float(after) if after else None)
