"""The window of steps that is open: what hooks ask and fill, and what holds the script up in it.

Besides its work that is garbage collections and torch.compile. Of collections: how often, how long,
and who asked for them. Of compiling, by torch's own counters: code made anew, how long, and why;
where the script never compiled, torch's compiler is not loaded.
"""

from __future__ import annotations

import gc
import linecache
import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter_ns
from types import CodeType
from typing import TYPE_CHECKING, Any, Protocol

from loaderdoctor.instrument.system import library_of
from loaderdoctor.instrument.system.cpu_use import RunQueue
from loaderdoctor.instrument.wire.measured import CollectionRecord, CompileRecord, FetchRecord
from loaderdoctor.instrument.wire.protocol import Mode
from loaderdoctor.instrument.wire.records import BoundaryRecord
from loaderdoctor.units import NS_PER_S

if TYPE_CHECKING:
    from loaderdoctor.instrument.session.feed import Feed


class Clock(Protocol):
    """What the hooks tell while steps are timed; see `step_clock.StepClock`, which is one."""

    @property
    def outside(self) -> bool: ...

    def exhausted(self, teardown_ns: int) -> None: ...

    def failed(self) -> None: ...

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
    # In a recorded run: boundaries that may be added without `count` (`quick_next`), and how
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


N_GENERATIONS = 3
_FULL = N_GENERATIONS - 1
_ASKS = re.compile(r"(?:\bgc\.|(?<![\w.]))collect\(")  # not polars' frame.collect()
_MAX_PAUSES = 256  # full collections told one by one: of more than this the sums say enough
# Phases as torch names them (2.5 to 2.14; before, the first had another name). The first is one
# entry for each piece of code, its backend included; the second, where backward passes are compiled
# at their first call, comes on top.
_COMPILING = ("_compile.compile_inner", "entire_frame_compile")
_LAZY = ("backward._backward_impl",)
_CACHE_ENTRY = re.compile(r"^\d+(?:_\d+)?/\d+: ")  # "0/3: ": which piece of code was not right
MAX_REASON = 200


class Collected:
    """Told of each collection of this process, on whichever thread: all hold its lock.

    By a callback of the collector itself, twice for each; nothing is called in between.
    """

    def __init__(self) -> None:
        self._began_ns = 0

    def install(self) -> None:
        gc.callbacks.append(self._called)

    def remove(self) -> None:
        if self._called in gc.callbacks:
            gc.callbacks.remove(self._called)

    def add(self, generation: int, began_ns: int, took_ns: int) -> None:
        raise NotImplementedError

    def _called(self, phase: str, info: dict[str, Any]) -> None:
        began_ns, self._began_ns = self._began_ns, 0
        if phase == "start":
            self._began_ns = perf_counter_ns()
        elif began_ns:  # else it was under way when we began
            self.add(info["generation"], began_ns, perf_counter_ns() - began_ns)


class CollectionCount(Collected):
    """Of one window, from here to `stop`."""

    def __init__(self) -> None:
        super().__init__()
        self._n = [0] * N_GENERATIONS
        self._ns = [0] * N_GENERATIONS
        self._pauses: list[int] = []
        self._places: dict[tuple[CodeType, int], int] = {}
        self.install()

    def stop(self) -> CollectionRecord | None:
        """Remove the callback; what was collected since, or None where nothing was."""
        self.remove()
        if not any(self._n):
            return None
        asked_ns, site, code, library = self._asked()
        return CollectionRecord(
            n=tuple(self._n),
            ns=tuple(self._ns),
            full_ns=tuple(self._pauses),
            asked_ns=asked_ns,
            site=site,
            code=code,
            library=library,
        )

    def add(self, generation: int, began_ns: int, took_ns: int) -> None:
        generation = min(generation, _FULL)
        self._n[generation] += 1
        self._ns[generation] += took_ns
        if generation < _FULL:
            return
        if len(self._pauses) < _MAX_PAUSES:
            self._pauses.append(took_ns)
        frame = sys._getframe(1).f_back  # what ran then; None: a thread without Python code
        if frame is not None:
            place = (frame.f_code, frame.f_lineno)
            self._places[place] = self._places.get(place, 0) + took_ns

    def _asked(self) -> tuple[int, str | None, str | None, str | None]:
        """Of full collections that a line of code asked for: how long, and the dearest line."""
        asked = {x: ns for x, ns in self._places.items() if _ASKS.search(_line(x))}
        if not asked:
            return 0, None, None, None
        place = max(asked, key=lambda x: asked[x])
        file = place[0].co_filename
        site = f"{Path(file).name}:{place[1]}"
        return sum(asked.values()), site, _line(place), library_of(file)


def _line(place: tuple[CodeType, int]) -> str:
    return linecache.getline(place[0].co_filename, place[1]).strip()


class CompileCount:
    """torch.compile's counters, from here on."""

    def __init__(self) -> None:
        self._phases = {name: len(times) for name, times in _phases().items()}
        self._failures = {code: len(reasons) for code, reasons in _failures().items()}

    def since(self) -> CompileRecord | None:
        """What was compiled since; None where nothing was, or torch's counters are not known."""
        phases = _phases()
        compiled = [t for name in _COMPILING for t in self._new(phases, name)]
        if not compiled:
            return None
        seconds = sum(compiled) + sum(t for name in _LAZY for t in self._new(phases, name))
        why, where = self._why()
        return CompileRecord(
            n=len(compiled), ns=int(seconds * NS_PER_S), reason=why, function=where
        )

    def _new(self, phases: dict[str, list[float]], name: str) -> list[float]:
        return phases.get(name, [])[self._phases.get(name, 0) :]

    def _why(self) -> tuple[str | None, str | None]:
        """Of the code that failed its guards most often since: the latest reason, and its place."""
        grown = {
            code: reasons
            for code, reasons in _failures().items()
            if len(reasons) > self._failures.get(code, 0)
        }
        if not grown:
            return None, None
        code = max(grown, key=lambda x: len(grown[x]) - self._failures.get(x, 0))
        reason = _CACHE_ENTRY.sub("", str(grown[code][-1]).splitlines()[0])
        return reason[:MAX_REASON], _place(code)


def _place(code: object) -> str | None:
    """`forward (model.py:12)`; None for torch's own code, which wraps a module that is compiled."""
    if not isinstance(code, CodeType) or "/torch/" in code.co_filename:
        return None
    file = code.co_filename.rpartition("/")[2]
    return f"{code.co_name} ({file}:{code.co_firstlineno})"


def _phases() -> dict[str, list[float]]:
    found = getattr(sys.modules.get("torch._dynamo.utils"), "compilation_time_metrics", None)
    return found if isinstance(found, dict) else {}


def _failures() -> dict[Any, list[Any]]:
    found = getattr(sys.modules.get("torch._dynamo.utils"), "guard_failures", None)
    return found if isinstance(found, dict) else {}
