"""What is counted beside the steps: collections, queues, workers' sums, a dry device.

Each worker keeps its sums in a file. What batches cost is known by the settings that made them: a
trial's workers may crowd each other, the best's need not.

What keeps the accelerator from its work, in sampled steps, two timing events tell around a fetch,
or around each of the loop's host-to-device calls, on the step's stream. Of a fetch the first is
reached when the device has done all that was queued, the second at once after it was queued: what
lies between them on the device's own clock is the time it stood dry. While it is between those of a
copy it does nothing else of that stream's; a copy on a stream of its own delays nothing here, and
is not counted, nor is what other streams compute meanwhile. Events are read when they are done,
never waited for.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import get_ident
from typing import Any, Final

import torch
from torch import Tensor

from loaderdoctor.errors import RunError
from loaderdoctor.instrument.batches.h2d import H2DCall, H2DHook
from loaderdoctor.instrument.session.compute_watch import compiles
from loaderdoctor.instrument.session.open_window import Collected
from loaderdoctor.instrument.wire.measured import Collections, QueueFill, WorkersBeat
from loaderdoctor.instrument.wire.record_file import WorkerSums, read_sums
from loaderdoctor.settings import Settings
from loaderdoctor.tuning.candidates import BatchCost
from loaderdoctor.units import NS_PER_MS

# Shorter ones are told from their sum alone: a loop makes thousands of young collections.
NOTED_NS: Final = 1_000_000
MAX_NOTED: Final = 256
# Batches that a mean needs; so many are timed with their CPU in this process (two system calls).
MIN_BATCHES = 8
ENOUGH_BATCHES = 64


class CollectionTimes(Collected):
    """Since it was installed; a collection costs a microsecond more meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self._n = self._total_ns = self._longest_ns = 0
        self._noted: list[tuple[int, int]] = []

    def take(self) -> tuple[Collections, list[tuple[int, int]]]:
        """Sums since the last time, and (begin, end) of the long ones."""
        sums = Collections(n=self._n, total_ns=self._total_ns, longest_ns=self._longest_ns)
        noted, self._noted = self._noted, []
        self._n = self._total_ns = self._longest_ns = 0
        return sums, noted

    def add(self, generation: int, began_ns: int, took_ns: int) -> None:
        self._n += 1
        self._total_ns += took_ns
        self._longest_ns = max(self._longest_ns, took_ns)
        if took_ns >= NOTED_NS and len(self._noted) < MAX_NOTED:
            self._noted.append((began_ns, began_ns + took_ns))


def queue_fill(iterator: Any) -> QueueFill | None:
    """A look at a multi-process iterator's queues, at a step boundary; None: not one.

    Leans on torch's own attributes: where they are missing, nothing is told.
    """
    try:
        asked = int(iterator._tasks_outstanding)
        # Those that came before their turn wait in `_task_info`, which has two entries then.
        ready = sum(1 for info in iterator._task_info.values() if len(info) == 2)
        queue = iterator._data_queue
        ready += int(queue.qsize())
        if queue is not iterator._worker_result_queue:  # pinned; others wait for that
            ready += int(iterator._worker_result_queue.qsize())
    except (AttributeError, NotImplementedError, TypeError, OSError):
        return None
    return QueueFill(n_ready=min(ready, asked), n_asked=asked)


class WorkersReader:
    """What all of one process's workers did since the last look."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[Path, WorkerSums] = {}

    def take(self) -> WorkersBeat | None:
        """Since the last call; None where no worker ever kept sums."""
        found = dict(read_sums(self._folder))
        if not found and not self._known:
            return None
        n_died = n_batches = make = cpu = idle = 0
        alive = []
        for path, now in found.items():
            more = now.since(self._known.get(path))
            n_batches += more.n_batches
            make += more.make_ns
            cpu += more.cpu_ns
            idle += more.idle_ns
            if not now.ended and _lives(now.pid):
                alive.append(now.pid)
                continue
            n_died += not now.ended
            with suppress(OSError):
                path.unlink()
        self._known = {path: now for path, now in found.items() if now.pid in alive}
        return WorkersBeat(
            n_alive=len(alive),
            n_died=n_died,
            n_batches=n_batches,
            make_ns=make,
            cpu_ns=cpu,
            idle_ns=idle,
            pids=tuple(alive),
        )


class BatchCosts:
    """What one loader's batches cost lately: in workers by their sums, else in this process."""

    def __init__(self, sums_folder: Path, others: Callable[[], int] = lambda: 0) -> None:
        """`others`: batches that other loaders' workers gave so far; their sums look the same."""
        self._folder = sums_folder
        self._others = others
        self._seen: dict[Path, WorkerSums] = {}
        self._others_seen = 0
        self._serving: Settings | None = None
        self._known: dict[Settings, BatchCost] = {}
        self._n = self._make_ns = self._cpu_ns = 0  # in this process

    @property
    def wants_cpu(self) -> bool:
        """Whether CPU time of fetches in this process is to be measured still."""
        return self._n < ENOUGH_BATCHES

    def serves(self, settings: Settings | None) -> None:
        """These make all batches now; None: several pools do."""
        if settings is self._serving or settings == self._serving:
            return
        self._serving = settings
        if settings is not None:
            self._begin(dict(read_sums(self._folder)), self._others())

    def fetched(self, took_ns: int, cpu_ns: int) -> None:
        """A batch that was made in this process, its CPU time measured."""
        self._n += 1
        self._make_ns += took_ns
        self._cpu_ns += cpu_ns
        if self._n >= MIN_BATCHES and self._serving is not None:
            self._known[self._serving] = _cost(self._n, self._make_ns, self._cpu_ns)

    def of(self, settings: Settings) -> BatchCost | None:
        """Of their batches since the last call, where they are enough; else what was known."""
        if settings == self._serving:
            self._look(settings)
        return self._known.get(settings)

    def _look(self, serving: Settings) -> None:
        found, others = dict(read_sums(self._folder)), self._others()
        if others != self._others_seen:
            self._begin(found, others)  # theirs are among these
            return
        n = make_ns = cpu_ns = 0
        for path, now in found.items():
            more = now.since(self._seen.get(path))
            n += more.n_batches
            make_ns += more.make_ns
            cpu_ns += more.cpu_ns
        if n >= MIN_BATCHES:
            self._seen, self._known[serving] = found, _cost(n, make_ns, cpu_ns)

    def _begin(self, found: dict[Path, WorkerSums], others: int) -> None:
        self._seen, self._others_seen = found, others


def _cost(n: int, make_ns: int, cpu_ns: int) -> BatchCost:
    return BatchCost(make_ms=make_ns / n / NS_PER_MS, cpu_ms=cpu_ns / n / NS_PER_MS)


def _lives(pid: int) -> bool:
    """Whether this child runs; one that has ended and was not waited for does not."""
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return True  # no /proc: what the signal said
    return state not in ("Z", "X")


MAX_OPEN: Final = 64
MAX_CALLS: Final = 32  # of a step; one with more is not counted
_CUDA: Any = torch.cuda  # its events are untyped
Pair = tuple[Any, Any]


class _EventPairs:
    """Pairs of timing events, those of a sampled step together."""

    def __init__(self, event: Callable[[], Any] | None = None) -> None:
        self._event = event or partial(_CUDA.Event, enable_timing=True)
        self.spare: list[Pair] = []
        self._open: deque[list[Pair]] = deque()

    @property
    def full(self) -> bool:
        """Whether so many steps are not done that no other is sampled."""
        return len(self._open) >= MAX_OPEN

    def new(self) -> Pair:
        return self.spare.pop() if self.spare else (self._event(), self._event())

    def sampled(self, pairs: list[Pair]) -> None:
        """All of one step, in order."""
        self._open.append(pairs)

    def take(self) -> tuple[int, int]:
        """(steps, ns between their pairs) of those that are done since the last call."""
        n = total_ns = 0
        while self._open and all(last.query() for _, last in self._open[0]):
            pairs = self._open.popleft()
            total_ns += sum(round(a.elapsed_time(b) * NS_PER_MS) for a, b in pairs)
            n += 1
            self.spare += pairs
        return n, total_ns


class DryProbe:
    """How long one device has nothing to do while the loop waits for a batch."""

    def __init__(self, device: torch.device, *, event: Any = None, stream_of: Any = None) -> None:
        """`event` makes a timing event, `stream_of` a device's present stream; torch's own."""
        self._device = device
        self._stream = stream_of or _CUDA.current_stream
        self._pairs = _EventPairs(event)
        self.take = self._pairs.take  # how long it stood dry
        self._now: Pair | None = None

    def before_fetch(self) -> None:
        """The loop is about to fetch, on its own stream."""
        if self._pairs.full:
            return
        self._now = self._pairs.new()
        self._now[0].record(self._stream(self._device))

    def after_fetch(self) -> None:
        pair, self._now = self._now, None
        if pair is not None:
            pair[1].record(self._stream(self._device))
            self._pairs.sampled([pair])

    def cancel(self) -> None:
        """It had none: the epoch was over."""
        pair, self._now = self._now, None
        if pair is not None:
            self._pairs.spare.append(pair)


class CopyProbe(H2DHook):
    """How long copies hold up one device's own work. Installed while a sampled step lasts."""

    def __init__(self, device: torch.device, *, event: Any = None, stream_of: Any = None) -> None:
        """`event` makes a timing event, `stream_of` a device's present stream; torch's own."""
        super().__init__(device.type)
        self._device = device
        self._stream_of = stream_of or _CUDA.current_stream
        self._training = get_ident()
        self._stream: Any = None
        self._pairs = _EventPairs(event)
        self.take = self._pairs.take
        self._now: list[Pair] | None = None

    def begin(self) -> None:
        """The loop has its batch. Compiled code is left alone: it looks at torch's functions."""
        if self._pairs.full or compiles():
            return
        try:
            self.install()
        except RunError:  # another hook of ours sees the copies now
            return
        self._stream, self._now = self._stream_of(self._device), []

    def end(self) -> None:
        """The step is over, or the recording."""
        self.remove()
        pairs, self._now = self._now, None
        if pairs is not None and len(pairs) <= MAX_CALLS:
            self._pairs.sampled(pairs)

    def on_call(self, call: H2DCall) -> Tensor:
        """Make the call as the loop wrote it."""
        pairs = self._now
        if pairs is None or len(pairs) > MAX_CALLS or get_ident() != self._training:
            return call.make()
        if call.device.index not in (None, self._device.index):
            return call.make()
        stream = self._stream_of(self._device)
        if stream != self._stream:
            return call.make()
        pair = self._pairs.new()
        pair[0].record(stream)
        made = call.make()
        pair[1].record(stream)
        pairs.append(pair)
        return made
