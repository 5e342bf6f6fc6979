"""The process that fuzzes: makes inputs, judges them, counts, keeps what fails.

It is run and watched by another (benchmarks/fuzz.py), which it shows the input at hand in shared
memory: what hangs it, or takes it down, is known from there.
"""

from __future__ import annotations

import gc
import hashlib
import mmap
import pickle
import random
import resource
import signal
import struct
import tempfile
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from loaderdoctor.report.model import Report
from tests.fuzz import subject, targets
from tests.fuzz.mutate import Mutator
from tests.fuzz.targets import Hints, Kind

# The console is drawn for one report in so many (it takes longer than all the rest), and for each
# new set of findings.
DRAW_EVERY = 50
COLLECT_EVERY = 100
# Beyond what it had when it began: the limit that `analyze` is given, and what counting does not
# see (loaderdoctor.commands.job_traces).
MEMORY_BYTES = subject.MEMORY_BYTES + (512 << 20)
# A place for the input at hand: its number, its kind's, its length, then its bytes.
SLOT_BYTES = 64 << 20
_HEAD = struct.Struct("=QQQ")
KINDS: tuple[Kind, ...] = tuple(targets.SHARES)


class SlowError(BaseException):
    """An input took longer than the limit; no `except Exception` on the way may swallow it."""


class Slot:
    """Shared with the process that watches."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, SLOT_BYTES)

    def put(self, number: int, kind: Kind, data: bytes) -> None:
        held = data[: SLOT_BYTES - _HEAD.size]
        _HEAD.pack_into(self._memory, 0, number, KINDS.index(kind), len(held))
        self._memory[_HEAD.size : _HEAD.size + len(held)] = held

    @property
    def number(self) -> int:
        """Of the input at hand, from 1."""
        return int(_HEAD.unpack_from(self._memory)[0])

    def get(self) -> tuple[Kind, bytes]:
        _, kind, length = _HEAD.unpack_from(self._memory)
        return KINDS[kind], self._memory[_HEAD.size : _HEAD.size + length]


@dataclass(slots=True)
class Tally:
    """What a worker did: inputs by kind and by outcome, failures by where they were."""

    inputs: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    peak_bytes: int = 0

    def add(self, other: Tally) -> None:
        self.inputs += other.inputs
        self.outcomes += other.outcomes
        self.failures += other.failures
        self.slowest_s = max(self.slowest_s, other.slowest_s)
        self.peak_bytes = max(self.peak_bytes, other.peak_bytes)


class Fuzzer:
    """Judges inputs, counts them, and keeps what fails."""

    def __init__(self, seed: int, *, limit_s: float, save: Path, shm: Path | None) -> None:
        self.limit_s = limit_s
        self.save = save
        self.work = Path(tempfile.mkdtemp(prefix="fuzz-", dir=shm))
        self.rng = random.Random(seed)
        self.mutator = Mutator(self.rng, ())
        self.maker = targets.maker(self.mutator, self.work)
        self.slot = Slot()
        self.tally = Tally()
        self.hints = Hints(draw=self._draws, known=self._known)
        self.seen: set[int] = set()  # fingerprints of traces that were reported
        self.shown: set[tuple[str, ...]] = set()
        self._weights = list(targets.SHARES.values())

    def begin(self) -> None:
        """In the worker itself: limits on time and memory."""
        signal.signal(signal.SIGALRM, self._too_slow)
        status = Path("/proc/self/statm").read_text().split()
        now = int(status[5]) * resource.getpagesize()  # data and stack
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (now + MEMORY_BYTES, hard))
        # A warning would reach the user's terminal, as a line of our source.
        warnings.simplefilter("error")
        gc.freeze()
        gc.disable()  # objects of one input are many and short-lived

    def one(self) -> None:
        """An input made at random."""
        kind = self.rng.choices(KINDS, self._weights)[0]
        self.judge(kind, self.maker.make(kind))

    def judge(self, kind: Kind, data: bytes) -> None:
        self.slot.put(self.slot.number + 1, kind, data)
        began = time.perf_counter()
        signal.setitimer(signal.ITIMER_REAL, self.limit_s)
        try:
            outcome = targets.judge(kind, data, self.work, self.hints)
        except (Exception, SlowError) as error:
            signal.setitimer(signal.ITIMER_REAL, 0)
            outcome = "failed"
            self._keep(kind, data, error)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if self.slot.number % COLLECT_EVERY == 0:
            gc.collect()
        self.tally.inputs[kind] += 1
        self.tally.outcomes[outcome] += 1
        self.tally.slowest_s = max(self.tally.slowest_s, time.perf_counter() - began)

    def result(self) -> bytes:
        """What this worker did, and what the next one need not do again."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        self.tally.peak_bytes = usage.ru_maxrss * 1024
        return pickle.dumps((self.tally, self.seen, self.shown))

    def take(self, result: bytes) -> Tally:
        """In the process that watches: what a worker did."""
        tally: Tally
        tally, self.seen, self.shown = pickle.loads(result)  # from our own process
        return tally

    def _draws(self, report: Report) -> bool:
        kinds = tuple(sorted({f.kind for f in report.findings}))
        new = kinds not in self.shown
        self.shown.add(kinds)
        return new or self.tally.outcomes["reported"] % DRAW_EVERY == 0

    def _known(self, key: int) -> bool:
        if key in self.seen:
            return True
        self.seen.add(key)
        return False

    def _too_slow(self, signum: int, frame: FrameType | None) -> None:
        raise SlowError(f"over {self.limit_s} s")

    def _keep(self, kind: Kind, data: bytes, error: BaseException) -> None:
        ours = [
            f
            for f in traceback.extract_tb(error.__traceback__)
            if "/loaderdoctor/" in f.filename or "/fuzz/" in f.filename
        ]
        where = f"{Path(ours[-1].filename).stem}:{ours[-1].lineno}" if ours else "?"
        key = f"{kind} {type(error).__name__} {where}"
        self.tally.failures[key] += 1
        if self.tally.failures[key] <= 3:
            name = keep(self.save, kind, data)
            text = ascii(str(error))[:300]
            print(f"{key}: {text} [{name}, {len(data)} bytes]", flush=True)
            if self.tally.failures[key] == 1:
                traceback.print_exception(error, limit=-6)


def keep(save: Path, kind: str, data: bytes) -> str:
    """Save an input; the name of its file."""
    name = f"{kind}-{hashlib.sha256(data).hexdigest()[:10]}"
    (save / name).write_bytes(data)
    return name
