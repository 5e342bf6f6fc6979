"""Times steps between their boundaries, on the host and on the accelerator.

Which loader feeds the step is `roles`' to say, and where a boundary is `loop`'s; a trace has a step
clock of its own (`attribution.clock`).

A step runs from one entry into the loader's `__next__` to the next. At an epoch's end the entry
that finds nothing closes the last step; the first step of the next epoch also holds what the
boundary cost (teardown of the old iterator, creation of the new one), never the validation or
other work between them. All times are CLOCK_MONOTONIC nanoseconds (time.perf_counter_ns); device
times come from timing events recorded on the step's stream at the same boundaries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

from loaderdoctor.units import NS_PER_MS

if TYPE_CHECKING:
    import torch

EVENT_EVERY = 8  # steps between timing events where nothing else asks for one
# A loop that does something else than train at least as often as this has an event at each step:
# a step that holds a validation is told from those before it only by an event that begins it. With
# one in EVENT_EVERY, a loop that validates every fourth step had no step left that counted.
OFTEN = 64
N_EDGES = 8  # events made besides those: the window's two ends, epochs' ends
MAX_PREPARED = 1024


class _Step(NamedTuple):
    opened: int  # mark index
    closed: int
    extra_ns: int  # boundary work before `opened`, less what belongs to the next boundary
    boundary: bool
    crossed: bool
    gap_from: int | None  # mark that closed the step before, where an epoch boundary lies between
    gap_other_ns: int  # host time in that gap that is not the boundary's
    foreign_gap: bool  # other loaders were fetched in that gap


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Steps of one window, in order."""

    host_ns: tuple[int, ...]
    device_ns: tuple[int, ...] | None
    boundary_steps: tuple[int, ...]  # an epoch of the loop's ended before them
    crossed_steps: tuple[int, ...]  # an epoch of a trial's loader did
    start_ns: int
    end_ns: int


class DeviceMarks:
    """Timing events on the training device's current stream, pooled across windows.

    What a mark costs within a timed step is recording alone: events are made before, where the
    driver makes them (at their first recording), and the stream is looked up by its handle.
    """

    def __init__(self, device: torch.device) -> None:
        import torch

        index = device.index
        self._device = device
        self._new_event = torch.cuda.Event
        self._current_stream = torch.cuda.current_stream
        self._raw_stream: Callable[[int], int] | None = None
        if index is not None:  # torch's own compiled code asks this way, each launch
            self._raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        self._index = index or 0
        self._streams: dict[int, torch.cuda.Stream] = {}  # by handle
        self._events: list[torch.cuda.Event] = []
        self._used = 0
        self.every = EVENT_EVERY  # steps between events, of this window and of those to come

    def reset(self, n_steps: int = 0) -> None:
        """Begin a new window: events are reused; those that `n_steps` will need are made."""
        self._used = 0
        wanted = min(n_steps // self.every, MAX_PREPARED) + N_EDGES if n_steps else 0
        if wanted > len(self._events):
            stream = self._stream()
            while len(self._events) < wanted:
                self._new(stream)

    def mark(self) -> None:
        """Record the next event where the training thread now is; no synchronisation."""
        stream = self._stream()
        if self._used == len(self._events):
            self._new(stream)
        else:
            self._events[self._used].record(stream)
        self._used += 1

    def _new(self, stream: torch.cuda.Stream) -> None:
        event = self._new_event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(stream)
        self._events.append(event)

    def _stream(self) -> torch.cuda.Stream:
        """The training thread's current stream; torch makes a new object at each look."""
        if self._raw_stream is None:
            return self._current_stream(self._device)
        handle = self._raw_stream(self._index)
        stream = self._streams.get(handle)
        if stream is None:
            stream = self._streams[handle] = self._current_stream(self._device)
        return stream

    def finish_device(self) -> None:
        """Wait for all that was queued on the device."""
        import torch

        torch.cuda.synchronize(self._device)

    def elapsed_ns(self) -> list[int]:
        """Time of each mark since the first; waits once for the last one."""
        if not self._used:
            return []
        self.finish_device()  # not one event alone: the step's stream may have changed on the way
        # From mark to mark: torch tells milliseconds in single precision.
        events = self._events[: self._used]
        steps = (a.elapsed_time(b) for a, b in pairwise(events))
        return [0, *(round(ms * NS_PER_MS) for ms in accumulate(steps))]


class StepClock:
    """Marks of one window. `mark` costs about a microsecond on the host.

    A timing event costs ten times that, so most steps have none: one in EVENT_EVERY, and each that
    borders on something else than the next step (window, epoch); every step of a loop that often
    does something else than train. Device times in between are spread evenly over the steps; sums
    over whole windows and at boundaries are exact.
    """

    def __init__(self, device: DeviceMarks | None, *, n_steps: int = 0) -> None:
        """`n_steps`: about how many will be timed, for what is made ahead."""
        self._device = device
        if device is not None:
            device.reset(n_steps)
        self._marks: list[int] = []
        self._event_marks: list[int] = []  # indexes of the marks that have a device event
        # Of a step with nothing about it only the mark that opened it; the next one closed it.
        self._steps: list[_Step | int] = []
        self._open: int | None = None
        self._uneventful = False  # nothing but marks since the open step began
        self._accept_foreign = False
        self._foreign = False
        self._foreign_at = 0  # mark that closed the last such step, or the window's first
        self._boundary = False
        self._crossed = False
        self._extra = 0
        self._teardown_inside = 0
        self._gap_from: int | None = None
        self._gap_other = 0
        self._gap_foreign = False
        self._ended_by_entry = False
        self.n_marks_since_step = 0

    @property
    def n_steps(self) -> int:
        return len(self._steps)

    @property
    def outside(self) -> bool:
        """Whether what happens now counts for no step: between epochs, or beside other loaders."""
        return self._open is None or (self._foreign and not self._accept_foreign)

    def start(self, now: int, *, fresh: bool) -> None:
        """The first boundary of the window; `fresh`: it begins an epoch."""
        self._open = self._add(now)
        self._boundary = fresh
        self._uneventful = not fresh

    def mark(self, now: int, *, edge: bool = True) -> bool:
        """A step boundary: the open step ends here, the next begins.

        `edge`: it may border on an epoch's end, or ends the window.

        False where the step before was ended by the entry that found the epoch exhausted: then
        this entry begins no new span in a trace, the boundary belongs to the step that follows.
        """
        if self._uneventful and not edge and self._open is not None:
            index = len(self._marks)
            self._marks.append(now)
            if self._device is not None and index - self._event_marks[-1] >= self._device.every:
                self._device.mark()
                self._event_marks.append(index)
            self._steps.append(self._open)
            self._open = index
            self.n_marks_since_step = 0
            return True
        return self._mark(now, edge=edge)

    def _mark(self, now: int, *, edge: bool) -> bool:
        begins = not self._ended_by_entry
        self._ended_by_entry = False
        index = self._add(now, edge=edge or self._open is None or self._foreign)
        if self._open is not None:
            self._close_step(index, minus_ns=0)
            self._extra = 0
            self._boundary = self._crossed = False
            self._gap_from = None
        elif self._gap_from is not None:
            self._gap_other = max(0, now - self._marks[self._gap_from] - self._extra)
        self._open = index
        self._foreign = False
        self._teardown_inside = 0
        # What a boundary cost before this mark is the step's that begins here.
        self._uneventful = not self._boundary and self._gap_from is None and not self._extra
        return begins

    def exhausted(self, teardown_ns: int) -> None:
        """The entry just marked found the epoch at its end; finding that took `teardown_ns`."""
        self._begin_gap()
        self._uneventful = False
        self._ended_by_entry = True
        self._extra += teardown_ns

    def failed(self) -> None:
        """The entry just marked got an error for a batch: the step begins with the next one."""
        if self._open is None:
            return
        self._uneventful = False
        self._ended_by_entry = True
        self._drop_undated(self._open, self._open)
        self._open = None

    def replaced(self, now: int) -> None:
        """The loop asks for a new iterator although the old one had not run out."""
        if self._open is None:
            return
        self._uneventful = False
        index = self._add(now)
        carried = self._teardown_inside
        self._close_step(index, minus_ns=carried)
        self._begin_gap()
        self._extra += carried

    def created(self, create_ns: int) -> None:
        """A new iterator for this step's loader took `create_ns` to make."""
        self._uneventful = False
        self._boundary = True
        if self._open is None:
            self._extra += create_ns

    def crossed(self) -> None:
        """The open step's batch came from the next epoch of a trial's loader."""
        self._uneventful = False
        self._crossed = True

    def teardown(self, ns: int) -> None:
        """Workers of an old iterator were shut down."""
        self._uneventful = False
        if self._open is None:
            self._extra += ns
        else:
            self._teardown_inside += ns

    def apart(self, ns: int) -> None:
        """Something took so long that is nothing of what this window measures."""
        self._uneventful = False
        if self._open is not None:
            self._extra -= ns

    def foreign(self) -> None:
        """A loader outside the step was fetched: validation, not training."""
        self._uneventful = False
        if self._open is None:
            self._gap_foreign = True
        else:
            self._foreign = True

    def accept_foreign(self) -> None:
        """Count steps with other loaders' fetches too: every step has them."""
        self._accept_foreign = True

    def finish(self) -> StepTimes:
        """Times of all whole steps; with an accelerator waits for it once."""
        elapsed = self._elapsed_ns()
        steps = [_plain(s) if isinstance(s, int) else s for s in self._steps]
        host = tuple(
            max(0, self._marks[s.closed] - self._marks[s.opened] + s.extra_ns) for s in steps
        )
        device = None
        if elapsed is not None:
            device = tuple(self._device_step(s, elapsed) for s in steps)
        return StepTimes(
            host_ns=host,
            device_ns=device,
            boundary_steps=tuple(i for i, s in enumerate(steps) if s.boundary),
            crossed_steps=tuple(i for i, s in enumerate(steps) if s.crossed),
            start_ns=self._marks[0],
            end_ns=self._marks[-1],
        )

    def _device_step(self, step: _Step, elapsed: list[int]) -> int:
        inside = elapsed[step.closed] - elapsed[step.opened]
        if step.gap_from is None or step.foreign_gap or step.extra_ns <= 0:
            return max(0, inside + step.extra_ns)
        # The device may still have been busy with queued work while the host crossed the
        # boundary: only what it spent waiting counts, less the host's other work there.
        gap = elapsed[step.opened] - elapsed[step.gap_from] - step.gap_other_ns
        return inside + min(max(0, gap), step.extra_ns)

    def _add(self, now: int, *, edge: bool = True) -> int:
        index = len(self._marks)
        self._marks.append(now)
        device = self._device
        if device is not None and (edge or index - self._event_marks[-1] >= device.every):
            device.mark()
            self._event_marks.append(index)
        return index

    def _elapsed_ns(self) -> list[int] | None:
        """Device time of each mark since the first; None without a device."""
        if self._device is None:
            return None
        last = len(self._marks) - 1
        if self._event_marks[-1] != last:  # the window was cut short just now
            self._device.mark()
            self._event_marks.append(last)
        known = self._device.elapsed_ns()
        elapsed = known[:1]
        for (a, b), (at, to) in zip(pairwise(self._event_marks), pairwise(known), strict=True):
            elapsed += [at + (to - at) * k // (b - a) for k in range(1, b - a + 1)]
        return elapsed

    def _close_step(self, index: int, *, minus_ns: int) -> None:
        self.n_marks_since_step += 1
        if self._open is None:
            return
        if self._foreign and not self._accept_foreign:
            self._drop_undated(self._open, index)
            return
        self.n_marks_since_step = 0
        self._steps.append(
            _Step(
                self._open,
                index,
                self._extra - minus_ns,
                self._boundary,
                self._crossed,
                self._gap_from,
                self._gap_other,
                self._gap_foreign,
            )
        )

    def _drop_undated(self, opened: int, closed: int) -> None:
        """What begins with the mark `opened` is no step, as was known by the mark `closed`."""
        if self._device is None:
            return
        # Without an event at its beginning this step's time would be spread over the ones before
        # it, so those since the last event don't count either.
        since = max((m for m in self._event_marks if m <= opened), default=0)
        while self._steps and _opened(self._steps[-1]) >= since:
            self._steps.pop()
        if closed - self._foreign_at <= OFTEN:
            self._device.every = 1
        self._foreign_at = closed

    def _begin_gap(self) -> None:
        self._open = None
        self._gap_from = len(self._marks) - 1
        self._extra = 0
        self._gap_other = 0
        self._gap_foreign = self._crossed = False
        self._boundary = True


def _opened(step: _Step | int) -> int:
    return step if isinstance(step, int) else step.opened


def _plain(opened: int) -> _Step:
    """A step from one mark to the next, and nothing else."""
    return _Step(opened, opened + 1, 0, False, False, None, 0, False)
