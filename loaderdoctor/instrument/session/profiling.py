"""What records a window on the training thread: torch.profiler, and the memory that it takes.

Of memory: torch's history of it, and the peak of one step on the CPU; each wraps the window that is
being timed.
"""

from __future__ import annotations

import json
import os
import pickle
import queue
import threading
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter_ns
from types import FrameType
from typing import Any, Final

import msgspec
import torch
from torch.profiler import ProfilerAction, ProfilerActivity, profile

from loaderdoctor.errors import LoaderdoctorError
from loaderdoctor.instrument.session.sources import SourceRefusedError
from loaderdoctor.instrument.session.stack_samples import MAX_FRAMES, StackSampler
from loaderdoctor.instrument.system import living
from loaderdoctor.instrument.wire.measured import SnapshotRecord
from loaderdoctor.instrument.wire.protocol import ProfilerSchedule, WindowDone, WindowRequest
from loaderdoctor.instrument.workers.user_code import USER, Place, kind_of, place_of

# More events than this make a trace that takes minutes to write and to open.
MAX_EVENTS = 1_000_000
# Warm-up of the profiler itself: its first steps pay for buffers and CUPTI set-up.
DEFAULT_WARMUP_STEPS = 2
WAIT_SPAN = "loaderdoctor: wait for batch"


class ProfilerBusyError(LoaderdoctorError):
    """The script's own profiler is active; torch allows one at a time."""


class WindowProfiler:
    """One capture. Start it, tell it of boundaries, finish it, on the training thread."""

    def __init__(
        self,
        trace_path: Path,
        asked: ProfilerSchedule,
        *,
        device: torch.device | None,
    ) -> None:
        self._trace_path = trace_path
        n_warmup = asked.n_warmup_steps
        self.n_warmup = max(1, DEFAULT_WARMUP_STEPS if n_warmup is None else n_warmup)
        self.clock_marks: list[tuple[str, int]] = []
        self._n = 0
        self._lines = LoopLines(threading.get_ident()) if asked.with_stack else None

        def schedule(step: int) -> ProfilerAction:
            # Recording has no fixed end: steps that hold validation don't count, so how many
            # boundaries the window needs is only known when it is over.
            return ProfilerAction.WARMUP if step < self.n_warmup else ProfilerAction.RECORD

        self._profile = profile(
            activities=_activities(device),
            schedule=schedule,
            on_trace_ready=self._export,
            with_stack=asked.with_stack,
            profile_memory=asked.profile_memory,
        )

    def start(self) -> None:
        """Begin the profiler's warm-up. Raises ProfilerBusyError."""
        refuse_second_profiler(self.n_warmup)
        self._trace_path.parent.mkdir(parents=True, exist_ok=True)
        self._profile.start()
        if self._lines is not None:
            self._lines.start()

    def boundary(self, *, begins: bool, last: bool = False) -> None:
        """A step boundary: the next `ProfilerStep#N` span begins, unless the step before holds it.

        At the `last` one the running span ends and none begins: what follows (waiting for the
        device, stopping) would be another step in the trace.
        """
        if last:
            span, self._profile.step_rec_fn = self._profile.step_rec_fn, None
            if span is not None:
                span.__exit__(None, None, None)
        elif begins:
            self._profile.step()
            self._n += 1
            # Taken after the call: the span is opened by its last statement.
            self.clock_marks.append((f"ProfilerStep#{self._n}", perf_counter_ns()))

    def finish(self) -> None:
        if self._lines is not None:
            stack_samples = self._lines.stop(self.clock_marks)
            if self.recording:  # else torch has nothing to add it to
                self._profile.add_metadata_json(KEY, stack_samples)
        self._profile.stop()
        release(self._profile)

    @property
    def recording(self) -> bool:
        return self._n >= self.n_warmup

    def _export(self, profile: Any) -> None:
        profile.export_chrome_trace(str(self._trace_path))


def _activities(device: torch.device | None) -> list[ProfilerActivity]:
    on_device = [] if device is None else [ProfilerActivity.CUDA]
    return [ProfilerActivity.CPU, *on_device]


def release(profile: Any) -> None:
    """Free what it recorded, once it is stopped and written.

    torch's profiler refers to itself: its events would be freed in a collection of the loop's own,
    and be told as that one's time (320 ms on busy cores, where the next took 0.5).
    """
    profile.profiler = None


def refuse_second_profiler(n_steps: int) -> None:
    """Raise ProfilerBusyError where the script's own profiler is, or may become, active."""
    if torch.autograd.profiler._is_profiler_enabled:
        raise ProfilerBusyError(
            "the script's own profiler is active; torch allows one at a time. "
            "Take it out of the script for this run."
        )
    for one in living(profile):
        # Entered but waiting by its schedule: it would start within our window and fail.
        running = one.step_rec_fn is not None
        upcoming = (one.schedule(one.step_num + k) for k in range(1, n_steps + 200))
        if running and any(action != ProfilerAction.NONE for action in upcoming):
            raise ProfilerBusyError(
                "the script has its own torch.profiler schedule under way; torch allows "
                "one profiler at a time. Take it out of the script for this run."
            )


class EventProbe:
    """Counts the profiler events of one step, to bound the length of a capture."""

    def __init__(self, device: torch.device | None) -> None:
        self._profile = profile(activities=_activities(device))

    def start(self) -> None:
        """Begin at a step boundary. Raises ProfilerBusyError."""
        refuse_second_profiler(1)
        self._profile.start()

    def finish(self) -> int:
        self._profile.stop()
        n = len(_events(self._profile))
        release(self._profile)
        return n


def _events(stopped: Any) -> list[Any]:
    """What a profiler recorded; empty where it was stopped before it did."""
    results = stopped.profiler.kineto_results if stopped.profiler is not None else None
    return results.events() if results is not None else []


def most_steps(n_events_per_step: int) -> int:
    """How many steps stay below MAX_EVENTS."""
    return max(1, MAX_EVENTS // max(1, n_events_per_step))


@contextmanager
def queue_waits_named(training_thread: int) -> Iterator[None]:
    """Name the training thread's waits for a background thread's batches in the trace.

    Wrappers that fetch on their own thread (prefetch_generator and its like) hand batches
    over in a `queue.Queue`; its `get` gets a span while this is active.
    """
    original = queue.Queue.get

    def get(self: Any, block: bool = True, timeout: float | None = None) -> Any:
        if threading.get_ident() != training_thread:
            return original(self, block, timeout)
        with torch.autograd.profiler.record_function(WAIT_SPAN):
            return original(self, block, timeout)

    queue.Queue.get = get  # type: ignore[method-assign]
    try:
        yield
    finally:
        if queue.Queue.get is get:
            queue.Queue.get = original  # type: ignore[method-assign]


# Which line of the user's code the training thread is at, now and then, in a profiled window.
#
# torch's Python stacks name each function by its first line, and one that was running when the
# profiler began by the line it was at: of a loop that is its `for`, whatever line takes the time.
# So with stacks a thread of ours samples where the training thread is, and the samples go into the
# trace next to its events, each by the time since the step's mark.

KEY: Final = "loaderdoctorLooks"  # in the trace, next to `traceEvents`


class LoopLines:
    """Samples one thread from `start` to `stop`."""

    def __init__(self, thread: int) -> None:
        self._stack_samples: list[tuple[int, Place]] = []
        self._sampler = StackSampler(thread, self._take)
        self.start = self._sampler.start

    def stop(self, marks: list[tuple[str, int]]) -> str:
        """End, and the samples as JSON. `marks` are the steps' spans and when each began.

        Samples before the first mark are left out: the trace has no place for them.
        """
        self._sampler.stop()
        stack_samples, self._stack_samples = self._stack_samples, []
        places = list(dict.fromkeys(place for _, place in stack_samples))
        numbers = {place: i for i, place in enumerate(places)}
        kept: list[tuple[int, int, int]] = []
        at = -1
        for ns, place in stack_samples:
            while at + 1 < len(marks) and marks[at + 1][1] <= ns:
                at += 1
            if at >= 0:
                kept.append((at, ns - marks[at][1], numbers[place]))
        return json.dumps(
            {"marks": [name for name, _ in marks], "places": places, "looks": kept},
            separators=(",", ":"),
        )

    def _take(self, frame: FrameType) -> None:
        place = _deepest(frame)
        if place is not None:
            self._stack_samples.append((time.perf_counter_ns(), place))


def _deepest(frame: FrameType | None) -> Place | None:
    """The innermost frame of the user's own code."""
    for _ in range(MAX_FRAMES):
        if frame is None:
            return None
        if kind_of(frame.f_code) == USER:
            return place_of(frame)
        frame = frame.f_back
    return None


Timed = Generator[None, int, WindowDone]

_ALLOCATION = "[memory]"  # as kineto names the allocator's reports


def with_history(
    device: torch.device | None, request: WindowRequest, timed: Timed, *, in_group: bool
) -> Timed:
    """The window `timed`, with the allocator's history recorded over it and saved, where asked.

    The snapshot is torch's own (`torch.cuda.memory._snapshot`, pickled as `_dump_snapshot` does),
    which https://pytorch.org/memory_viz opens. The allocator keeps the latest `max_entries` events;
    each has the Python stack it was made from.

    Raises SourceRefusedError where it can't be recorded, OSError where it can't be saved.
    """
    if not request.memory_entries:
        return (yield from timed)
    _begin(device, request.memory_entries)
    try:
        done = yield from timed
        if request.snapshot_path is None:
            return done
        path = _own_path(Path(request.snapshot_path), in_group=in_group)
        saved = SnapshotRecord(path=str(path), n_entries=_save(path))
        return msgspec.structs.replace(done, snapshot=saved)
    finally:
        torch.cuda.memory._record_memory_history(None)  # and dropped is what was recorded


def _begin(device: torch.device | None, max_entries: int) -> None:
    """Start recording. Raises SourceRefusedError where there is none, or the script's own runs."""
    if device is None or device.type != "cuda":
        raise SourceRefusedError("torch records the memory history of CUDA and ROCm devices only")
    if torch._C._cuda_isHistoryEnabled():
        raise SourceRefusedError(
            "the script records torch's memory history itself, and recording it again would drop "
            "what it has"
        )
    # Python stacks only: those of C++ take many times as long to record and to save.
    torch.cuda.memory._record_memory_history(
        "all", context="all", stacks="python", max_entries=max_entries
    )


def _save(path: Path) -> int:
    """Write the snapshot; how many events of the history it holds. Raises OSError."""
    snapshot = torch.cuda.memory._snapshot()
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".part")
    try:
        with unfinished.open("wb") as file:
            pickle.dump(snapshot, file)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return sum(len(events) for events in snapshot["device_traces"])


def _own_path(path: Path, *, in_group: bool) -> Path:
    """Ranks of one job get the same path, and may share the folder."""
    if not in_group:
        return path
    return path.with_name(f"{path.stem}-rank{os.environ.get('RANK', '0')}{path.suffix}")


def with_tensor_peak(device: torch.device | None, request: WindowRequest, timed: Timed) -> Timed:
    """The window `timed`, and where it is asked for the memory of one more step.

    On the CPU no allocator keeps a peak. torch's profiler reports every allocation there; the
    process's memory would say little, since the C library keeps what was freed and everything else
    of the process lies in it too.
    """
    done = yield from timed
    if not request.tensor_memory or device is not None or done.reason is not None:
        return done
    peak = yield from _watched_step()
    return msgspec.structs.replace(done, tensor_peak_bytes=peak)


def _watched_step() -> Generator[None, int, int | None]:
    """Bytes; None where the script's own profiler is at work, or ours recorded nothing."""
    try:
        refuse_second_profiler(1)
    except ProfilerBusyError:
        return None
    watch = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    watch.start()
    try:
        yield
    finally:
        watch.stop()
    events = _events(watch)
    release(watch)
    changes = [(one.start_ns(), one.nbytes()) for one in events if one.name() == _ALLOCATION]
    changes.sort(key=lambda change: change[0])  # stable: as reported where the clock stood still
    return largest_rise(n_bytes for _, n_bytes in changes) if events else None


def largest_rise(changes: Iterable[int]) -> int:
    """The most that the sum of these changes rises above an earlier value of it.

    Not above its start: what the step before left, as gradients that are dropped first, doesn't
    count.
    """
    level = lowest = rise = 0
    for change in changes:
        level += change
        lowest = min(lowest, level)
        rise = max(rise, level - lowest)
    return rise
