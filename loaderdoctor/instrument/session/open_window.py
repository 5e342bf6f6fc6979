"""The window of steps that is open: what the hooks ask and fill while it lasts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from loaderdoctor.instrument.system.cpu_use import RunQueue
from loaderdoctor.instrument.wire.protocol import Mode
from loaderdoctor.instrument.wire.records import BoundaryRecord
from loaderdoctor.instrument.wire.window_records import FetchRecord

if TYPE_CHECKING:
    from loaderdoctor.instrument.session.feed import Feed


class Clock(Protocol):
    """What the hooks tell while steps are timed; see `step_clock.StepClock`, which is one."""

    @property
    def outside(self) -> bool: ...

    def exhausted(self, teardown_ns: int) -> None: ...

    def replaced(self, now: int) -> None: ...

    def created(self, create_ns: int) -> None: ...

    def crossed(self) -> None: ...

    def teardown(self, ns: int) -> None: ...

    def apart(self, ns: int) -> None: ...

    def foreign(self) -> None: ...


class Marks(Protocol):
    """Step boundaries of a recorded stretch (`recording.stretch`)."""

    at: list[int]
    left: int  # boundaries that may be added before somebody has to look; 0 once anything happened
    due_ns: int  # from here on as well


@dataclass(slots=True)
class OpenWindow:
    """All that lives as long as a window. A new one in its place is how it is closed.

    The first steps of a run, in which the loop settles, are one too.
    """

    mode: Mode | None = None  # what is measured; None: nothing that was asked for
    clock: Clock | None = None  # while steps are timed, or marked for a trace
    # While steps are timed: (loader index, start, end, thread), ns of CLOCK_MONOTONIC, and the CPU
    # time of that thread meanwhile.
    fetches: list[tuple[int, int, int, int, int]] | None = None
    fetch_cpu: bool = True  # False: not asked for that CPU time, two system calls of 2 us
    # While steps are timed, for a diagnosis: how long a thread stood ready without a CPU in its
    # fetch that began at this instant.
    run_queue: RunQueue | None = None
    queued_ns: dict[tuple[int, int], int] = field(default_factory=dict)
    boundaries: list[BoundaryRecord] = field(default_factory=list)
    # Counts a step at its boundary (ns) in the driver's place; False: it has to be woken.
    count: Callable[[int], bool] | None = None
    # In a recorded run: boundaries that may be added without `count` (`quick_steps`), and how
    # batches are handed out meanwhile, once that is known.
    marks: Marks | None = None
    quick: Callable[[Feed, Any], Any] | None = None
    hears_work: bool = True  # False: no optimizer's step tells anything now
    profiled: bool = False  # a profiler of ours is active: name what we do
    at_epoch_end: list[Callable[[], None]] = field(default_factory=list)  # each called once
    # While transfers are watched or answered: what to call with each batch, and on each thread
    # other than the training one that fetches.
    watch_batch: Callable[[Any], None] | None = None
    begin_thread_step: Callable[[], None] | None = None

    def begin_timing(self, clock: Clock) -> None:
        """Steps count from here on."""
        self.clock, self.fetches = clock, []
        self.run_queue, self.queued_ns = RunQueue(), {}

    def end_timing(self) -> tuple[FetchRecord, ...]:
        """They do no longer; the fetches of those that did."""
        fetches, self.fetches = self.fetches or [], None
        self.clock = self.count = self.marks = self.quick = None
        queue, self.run_queue = self.run_queue, None
        if queue is not None:
            queue.close()
        return tuple(
            FetchRecord(
                loader=loader,
                start_ns=start,
                end_ns=end,
                thread=thread,
                cpu_ns=cpu_ns,
                queued_ns=self.queued_ns.get((thread, start)),
            )
            for loader, start, end, thread, cpu_ns in fetches
        )

    def span(self, name: str) -> AbstractContextManager[Any]:
        """A named span in the trace while a profiler of ours is active."""
        if not self.profiled:
            return nullcontext()
        import torch

        return torch.autograd.profiler.record_function(name)
