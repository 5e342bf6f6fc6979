"""Hotspots: a thread that samples where the fetching thread is, every 10 ms and later less often.

A sample counts for the deepest frame in the user's own code below torch's fetcher, and for the
leaf frame below it (the library function it was in). Where no frame is the user's, the deepest
frame of an installed package counts, so that a library's dataset still shows its line.

Biased as every sampler within the interpreter: it runs when the watched thread gives up the GIL,
or some time after asking for it (see switch_interval).
"""

from __future__ import annotations

import random
import sys
import sysconfig
import threading
import time
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

import torch

import loaderdoctor
from loaderdoctor.instrument.system.interpreter import ask_as_usual, ask_soon
from loaderdoctor.instrument.wire.record_file import Kind, RecordWriter
from loaderdoctor.instrument.workers.fetch_clock import (
    BOTH_OVER_OWN,
    MAX_SAMPLING_SHARE,
    FetchClock,
)
from loaderdoctor.units import NS_PER_S

INTERVAL_S: Final = 0.010
MAX_INTERVAL_S: Final = 0.300
# Who wakes where the interpreter was given up samples again within this time of it, and asks for it
# soon only so long: a worker's queue would else be served faster than without recording.
SOON_WITHIN_S: Final = 0.004
# Shares of lines are good to 5 points after 100 samples; each doubling of them from there on
# doubles the interval, so that a long run pays ever less.
STACK_SAMPLES_AT_FULL_RATE: Final = 100
# A short run shall see its hotspots: so many come first whatever they cost.
STACK_SAMPLES_AT_ANY_COST: Final = 16
IDLE_STACK_SAMPLES: Final = 5  # in a row without a fetch, then it sleeps until the next one
REPORT_EVERY_NS: Final = 500_000_000
MAX_FRAMES: Final = 200

_STDLIB: Final = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})
_TORCH: Final = str(Path(torch.__file__).parent)
_OURS: Final = str(Path(loaderdoctor.__file__).parent)
_RECIPES: Final = str(Path(_OURS) / "_recipes")  # shipped with us, but a user's code in kind
_WORKER_LOOP: Final = str(Path(_TORCH) / "utils/data/_utils/worker.py")
_FETCHING: Final = (
    str(Path(_TORCH) / "utils/data/_utils/fetch.py"),
    _WORKER_LOOP,
    str(Path(_TORCH) / "utils/data/dataloader.py"),
)

Place = tuple[str, int, str]  # file, line, function
Watched = tuple[int, FetchClock | None, int]  # thread, clock, serial of the iterator

USER, PACKAGE, INNER, OWN, FETCHER = range(5)


# Native ids of threads that Python started here: some live for a moment after it forgot them.
python_threads: set[int] = set()


class LineSampler:
    """Watches one fetching thread at a time; its own thread starts with the first `begin`."""

    def __init__(self, writer: RecordWriter) -> None:
        self._writer = writer
        self._watched: Watched | None = None
        self._asleep = False
        self._wake = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None
        # By the serial of the iterator that the batch is for: loaders share processes.
        self._counts: dict[tuple[int, str, Place, Place], int] = {}
        self._counts_since_ns = time.perf_counter_ns()
        self._probed: list[tuple[int, FetchClock]] = []
        self._cpu_ns = 0
        self._lock = threading.Lock()

    def begin(self, thread: int, clock: FetchClock | None, serial: int) -> None:
        """`thread` (threading.get_ident) begins to make a batch; without a clock, to draw one.

        `serial` is that of the iterator which the batch is for.
        """
        self._watched = (thread, clock, serial)
        if self._asleep:
            self._wake.set()
        elif self._thread is None:
            self._start()

    def end(self) -> None:
        self._watched = None

    def report_transforms_of(self, clock: FetchClock, serial: int) -> None:
        """Has the transform times of this clock, of that iterator, written with the lines."""
        if clock.probe is not None:
            self._probed = [*self._probed[-15:], (serial, clock)]

    def stop(self) -> None:
        """Ends the thread (without waiting) and queues what it counted."""
        if self._stopping:
            return
        self._stopping = True
        self._watched = None
        ask_as_usual()
        self._wake.set()
        self.report()

    def report(self) -> None:
        """Queues the counts since the last report."""
        now = time.perf_counter_ns()
        with self._lock:
            counts, self._counts = self._counts, {}
            since, self._counts_since_ns = self._counts_since_ns, now
            transforms = [(s, clock.probe.take()) for s, clock in self._probed if clock.probe]
        stretch = {"since_ns": since, "until_ns": now}
        for serial in sorted({key[0] for key in counts}):
            hotspots = [
                [phase, *user, *leaf, n]
                for (of, phase, user, leaf), n in counts.items()
                if of == serial
            ]
            about = {**stretch, "serial": serial, "spots": hotspots, "cpu_ns": self._cpu_ns}
            self._writer.add_json(Kind.LINES, about)
        for serial, taken in transforms:
            if taken:
                about = {**stretch, "serial": serial, "transforms": taken}
                self._writer.add_json(Kind.TRANSFORMS, about)

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="loaderdoctor-lines", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        python_threads.add(threading.get_native_id())
        chance = random.Random()  # not the module's: the user's random numbers stay theirs
        interval_s = INTERVAL_S
        idle = n_stack_samples = 0
        try:
            while not self._stopping:
                pause_s = interval_s * (0.5 + chance.random())
                due_s = time.perf_counter() + pause_s
                time.sleep(pause_s)
                late_s = time.perf_counter() - due_s
                if self._watched is None:
                    idle += 1
                    if idle < IDLE_STACK_SAMPLES:
                        self._writer.flush_if_due(time.perf_counter_ns())
                        continue
                    self._sleep_until_begin()
                    idle = 0
                    continue
                idle = 0
                # Taken by force, after the switch interval, it is a place like any other.
                given_up = late_s < sys.getswitchinterval()
                if given_up and ask_soon(beside_queues=True):
                    time.sleep(SOON_WITHIN_S * chance.random())
                    ask_as_usual()
                watched = self._watched
                if watched is None:
                    continue
                self._sample(watched)
                n_stack_samples += 1
                now = time.perf_counter_ns()
                if now - self._counts_since_ns > REPORT_EVERY_NS:
                    self.report()
                self._writer.flush_if_due(now)
                cpu_before, self._cpu_ns = self._cpu_ns, time.thread_time_ns()
                if n_stack_samples <= STACK_SAMPLES_AT_ANY_COST:
                    continue
                cost_s = BOTH_OVER_OWN * (self._cpu_ns - cpu_before) / NS_PER_S
                rate_s = INTERVAL_S * max(1.0, n_stack_samples / STACK_SAMPLES_AT_FULL_RATE)
                wanted_s = min(MAX_INTERVAL_S, max(rate_s, cost_s / MAX_SAMPLING_SHARE))
                interval_s += (wanted_s - interval_s) / 8  # one dear sample must not blind it
        except Exception:
            if not sys.is_finalizing():
                raise
        finally:
            ask_as_usual()

    def _sleep_until_begin(self) -> None:
        self.report()
        self._writer.flush()
        self._wake.clear()
        self._asleep = True
        if self._watched is None and not self._stopping:
            self._wake.wait()
        self._asleep = False

    def _sample(self, watched: Watched) -> None:
        thread, clock, serial = watched
        frame = sys._current_frames().get(thread)
        if frame is None or self._watched is not watched:  # the batch was done meanwhile
            return
        phase = "sampler" if clock is None else "collate" if clock.collate_ns else "fetch"
        found = locate(frame)
        if found is not None:
            with self._lock:
                key = (serial, phase, *found)
                self._counts[key] = self._counts.get(key, 0) + 1


def locate(frame: FrameType) -> tuple[Place, Place] | None:
    """The user's line and the leaf, looking from `frame` outward to torch's fetcher.

    None where the stack is between batches: nothing of a dataset, sampler or collate function.
    """
    leaf: FrameType | None = None
    package: FrameType | None = None
    at: FrameType | None = frame
    for _ in range(MAX_FRAMES):
        if at is None:
            return None  # not below a fetcher: the thread is elsewhere by now
        kind = kind_of(at.f_code)
        if kind == FETCHER:
            break
        if kind != OWN:
            leaf = leaf or at
        if kind == USER:
            return place_of(at), place_of(leaf or at)
        if kind == PACKAGE and package is None:
            package = at
        at = at.f_back
    if leaf is None or at is None:
        return None
    if package is None and at.f_code.co_filename == _WORKER_LOOP:
        return None  # torch's own queue, between batches
    return place_of(package or leaf), place_of(leaf)


def place_of(frame: FrameType) -> Place:
    code = frame.f_code
    name = getattr(code, "co_qualname", code.co_name)  # co_qualname: Python >= 3.11
    return code.co_filename, frame.f_lineno or code.co_firstlineno, name


_kinds: dict[str, int] = {}


def kind_of(code: CodeType) -> int:
    file = code.co_filename
    kind = _kinds.get(file)
    if kind is None:
        kind = _kinds[file] = _classify(file)
    return kind


def _classify(file: str) -> int:
    if file in _FETCHING:
        return FETCHER
    if file.startswith(_RECIPES):
        return USER
    if file.startswith(_OURS):
        return OWN
    if file.startswith((_TORCH, "<frozen")):
        return INNER
    if "site-packages" in file or "dist-packages" in file:
        return PACKAGE
    if file.startswith(_STDLIB):
        return INNER
    return USER
