"""Measures one requested window after another within the running loop.

Each window: switch where the batches come from, throw away what queued up meanwhile, let the loop
get steady again, time steps. Runs on the training thread; `yield` means one more step of the loop.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from time import perf_counter_ns, sleep
from typing import Literal

import msgspec

from loaderdoctor.errors import LoaderdoctorError
from loaderdoctor.instrument.session import ScriptOverError, Session
from loaderdoctor.instrument.session.loader_state import LoaderState
from loaderdoctor.instrument.session.messages import Messages
from loaderdoctor.instrument.session.profiling import (
    EventProbe,
    Timed,
    WindowProfiler,
    most_steps,
    queue_waits_named,
    with_history,
    with_tensor_peak,
)
from loaderdoctor.instrument.session.roles import Definition
from loaderdoctor.instrument.session.sources import NO_LIMIT_S, SourceRefusedError, Sources
from loaderdoctor.instrument.session.stack_samples import with_stack_samples
from loaderdoctor.instrument.session.step_clock import DeviceMarks, StepClock
from loaderdoctor.instrument.session.switches import Switches
from loaderdoctor.instrument.session.timed_steps import (
    TimedSteps,
    WindowFailedError,
    drained,
    samples_per_batch,
)
from loaderdoctor.instrument.system import memory
from loaderdoctor.instrument.wire.protocol import WindowDone, WindowRequest
from loaderdoctor.instrument.wire.records import TransferRecord
from loaderdoctor.units import NS_PER_S

Steps = Generator[None, int, None]
MIN_WARMUP = 3  # steps after a switch before the loop's own state is steady
BACKGROUND_WARMUP = 4  # more where a background thread holds batches of the window before
# After a pause shorter than this many steps the loop itself uses up what was made in it; after a
# longer one workers' queues may be full.
PAUSE_STEPS = 2.0
SHORT_PAUSE = 0.01  # of the window: what was made in it changes the window's mean by no more
MOST_TOGETHER = 4
# How long workers may take to fill their queues before a window with ready batches; what they then
# still make is the window's to bear.
MAX_FILL_NS = int(3 * NS_PER_S)
FILL_POLL_S = 0.02
# The loop itself may hold batches that it got before those made ahead: one on a side stream.
LEAD_STEPS = 2


class Windows:
    """State that outlives single windows: what is substituted, replay buffers, the step's kind."""

    def __init__(
        self,
        session: Session,
        messages: Messages,
        definition: Definition,
        *,
        marks: DeviceMarks | None,
        transfers: tuple[TransferRecord, ...],
        accumulation: int,
        step_ns: int,
    ) -> None:
        self._session = session
        self._messages = messages
        self._definition = definition
        self._marks = marks
        self._accumulation = accumulation
        # What a step took in the last window, or as the loop got warm; and in the last plain one.
        self.step_ns = self._own_step_ns = step_ns
        self._sources = Sources(session, definition, transfers)
        self._switches = Switches(session, self._sources.replay_position)
        self._events_per_step: int | None = None
        self._steps = TimedSteps(session, messages, self._sources, self._switches, marks)

    def batches_per_cycle(self, request: WindowRequest | None) -> int:
        """Batches after which the waits repeat: worker count times accumulation."""
        workers = max(x.workers for x in self._definition.train)
        if request is not None and request.settings is not None:
            asked = request.settings.num_workers
            workers = workers if asked is None else asked
        return max(1, workers) * self._accumulation

    def measure(self, request: WindowRequest) -> Steps:
        """Measure one window and send its WindowDone, whatever happens."""
        over = False
        try:
            done = yield from self._measure(request)
        except ScriptOverError:
            over = True
            done = _not_done(request, "skipped", "the script ended before this window")
        except SourceRefusedError as error:
            done = _not_done(request, "skipped", str(error))
        except LoaderdoctorError as error:
            done = _not_done(request, "failed", str(error))
        except Exception as error:  # a trial runs foreign code: a result, not an end
            done = _not_done(request, "failed", f"{type(error).__name__}: {error}")
        finally:
            self._session.close_window()
            if self._switches.leave():
                self._sources.switched = True
            self._sources.restore_ready()
        self._session.send(done)
        if over or self._steps.script_over:
            raise ScriptOverError

    # ------------------------------------------------------------ the course of a window

    def _measure(self, request: WindowRequest) -> Timed:
        session, sources = self._session, self._sources
        session.progress(f"window {request.id}: {request.mode.replace('_', '-')}")
        session.window.mode = request.mode
        deadline = _deadline(request)
        # Whatever the loop waited for since its last step, the end of the window before included: a
        # trace takes seconds to write. Workers made batches meanwhile.
        paused_ns = perf_counter_ns() - session.stopped_ns
        paused = paused_ns > PAUSE_STEPS * self.step_ns
        startup_ns, n_queued = yield from self._switch_batches(request, paused=paused)
        is_short = paused_ns <= SHORT_PAUSE * request.n_steps * self.step_ns
        if not (paused or is_short or sources.substituting):
            n_queued = self._n_late(paused_ns)
        if request.drain and not request.own_batches:
            return self._drained(request, deadline)
        yield from self._switch_compute(request, deadline)
        self._switches.enter_copies(request)
        yield from self._warm_up(self._n_warmup(request, n_queued, paused=paused), deadline)
        if session.at_fresh_feed and not session.group:
            # Workers of this epoch have been started already, and stood ready while the loop did.
            yield from self._warm_up(1, deadline)
        if session.group:
            finish = self._marks.finish_device if self._marks is not None else None
            yield from self._messages.hold(request.id, self._between_steps, finish)
            deadline = _deadline(request)
        if self._switches.answering is not None:
            self._switches.answering.copy_ahead(sources.held_ahead())
        n_ahead = sources.begin_ahead(self._n_lead)
        if n_ahead is not None:
            deadline = _deadline(request)  # making them took its time
            yield from self._warm_up(self._n_lead, deadline)
            request = msgspec.structs.replace(request, n_steps=min(request.n_steps, n_ahead))
        timed = self._profiled if request.trace_path is not None else self._timed
        steps = timed(request, deadline)
        steps = with_history(session.device, request, steps, in_group=session.group)
        if request.stack_samples:
            steps = self._sampled(steps)
        done = yield from with_tensor_peak(session.device, request, steps)
        why = sources.crash() or self._switches.failure()
        if why is not None:
            raise WindowFailedError(why)
        boundary_ns = sources.boundary_ns(request) if not self._steps.script_over else None
        return msgspec.structs.replace(
            done, startup_ns=startup_ns, boundary_ns=boundary_ns, ready=sources.ready_record()
        )

    def _sampled(self, steps: Timed) -> Timed:
        def outside() -> bool:  # asked by another thread
            clock = self._session.window.clock
            return clock is not None and clock.outside

        done, stacks = yield from with_stack_samples(steps, self._definition.thread, outside)
        return msgspec.structs.replace(done, stacks=stacks)

    def _switch_batches(
        self, request: WindowRequest, *, paused: bool
    ) -> Generator[None, int, tuple[int | None, int]]:
        """The batches that the window asks for: start-up time of a trial (ns), batches to use up.

        The latter where nothing may be thrown away, in a run that must stay as it is: the loop
        itself uses up what the workers made while it was paused.
        """
        sources = self._sources
        targets = sources.targets(request)
        if request.mode in ("no_input", "no_copy"):
            targets = yield from sources.record(targets)
            yield from sources.to_real([x for x in sources.train if x not in targets])
            n_ahead = self._whole_cycles(request) + self._n_lead
            sources.use_ready(request, targets, n_ahead)
            yield from self._let_queues_fill(targets)
            return None, 0
        if request.mode == "trial" and not request.own_batches:
            return sources.open_trial(request, targets), 0
        steady = yield from sources.to_real(sources.train, paused=paused)
        return None, 0 if steady else max(2 * x.queue_length for x in sources.train)

    def _n_late(self, paused_ns: int) -> int:
        """Steps in which the loop uses up what workers made in a pause that is no long one.

        Batches of several workers come together, so a starved loop has some of them left besides.
        """
        n_workers = max(x.workers for x in self._sources.train)
        made = -(-paused_ns // max(1, self.step_ns))
        return made + min(n_workers, MOST_TOGETHER) if n_workers else 0

    def _let_queues_fill(self, targets: list[LoaderState]) -> Steps:
        """Wait while the workers fill their queues: of the CPUs they need the window has less.

        A pool that falls short made a batch a step, so the time of as many steps suffices, and one.
        The loop stands still, or it would use up its epochs; of several ranks none may.
        """
        if not self._sources.switched or any(x.ahead is not None for x in targets):
            return  # they are filled; or the loader goes on to make the window's batches
        n_batches = max((x.queue_length for x in targets if x.workers), default=0)
        until = perf_counter_ns() + min((n_batches + 1) * self._own_step_ns, MAX_FILL_NS)
        while n_batches and (left_ns := until - perf_counter_ns()) > 0:
            if self._session.group:
                yield from self._warm_up(1, until)
            else:
                sleep(min(FILL_POLL_S, left_ns / NS_PER_S))
                self._messages.poll(perf_counter_ns())

    def _switch_compute(self, request: WindowRequest, deadline: int) -> Steps:
        """Switch the models and optimizers of the loop, and let compilers do their work."""
        n_steps = yield from self._switches.enter_compute(request.settings)
        if n_steps is None:
            return
        self._sources.switched = True  # the loop must get steady again
        yield from self._warm_up(n_steps, deadline)
        # Steps as they are ran meanwhile, and compilers.
        memory.reset_gpu_peaks(self._session.device)
        if n_steps and (why := self._switches.failure()) is not None:
            raise WindowFailedError(why)

    def _n_warmup(self, request: WindowRequest, n_queued: int, *, paused: bool) -> int:
        """Steps before the window, by what was switched for it; that is then forgotten."""
        sources = self._sources
        n_warmup = request.profiler.n_warmup_steps
        if n_warmup is not None and request.mode != "profiled":
            n = n_warmup
        elif sources.switched or paused:
            n = n_queued + max(MIN_WARMUP, self.batches_per_cycle(request) // self._accumulation)
            n += BACKGROUND_WARMUP if self._definition.tick != "fetch" else 0
        else:
            n = max(n_queued, MIN_WARMUP if self._marks is not None else 1)
        if request.mode == "no_copy":
            # Each recorded batch has to be copied once before its copies can be answered.
            n += sources.n_replay_batches
        if sources.at_epoch_start:
            n = 0
        sources.switched = sources.at_epoch_start = False
        return n

    @property
    def _n_lead(self) -> int:
        """Steps from the first batch made ahead until the loop works on nothing else."""
        return BACKGROUND_WARMUP if self._definition.tick != "fetch" else LEAD_STEPS

    def _warm_up(self, n: int, deadline: int) -> Steps:
        for _ in range(n):
            now = yield
            self._messages.poll(now)
            self._between_steps()
            if now > deadline:
                return

    def _between_steps(self) -> None:
        self._sources.check()
        self._switches.begin_step()

    # ------------------------------------------------------------ kinds of windows

    def _drained(self, request: WindowRequest, deadline: int) -> WindowDone:
        """The loader alone, while the loop stands still."""
        clock = self._definition.clock
        source = clock.substitute.source
        if source is None:
            raise SourceRefusedError("no loader was opened")
        return drained(
            source,
            request,
            cycle=self.batches_per_cycle(request) // self._accumulation,
            samples_per_batch=samples_per_batch(clock, request),
            deadline=deadline,
        )

    def _profiled(self, request: WindowRequest, deadline: int) -> Timed:
        session = self._session
        if self._events_per_step is None:
            probe = EventProbe(session.device)
            probe.start()
            try:
                yield
            finally:
                self._events_per_step = probe.finish()
        profiler = WindowProfiler(
            Path(request.trace_path or ""), request.profiler, device=session.device
        )
        most = most_steps(self._events_per_step)
        if request.n_steps > most:
            session.note(
                "trace-shortened",
                f"window {request.id}: {most} of {request.n_steps} steps traced, since one step "
                f"makes {self._events_per_step} profiler events.",
            )
            request = msgspec.structs.replace(request, n_steps=most)
        profiler.start()
        session.window.profiled = True
        try:
            if self._definition.tick == "fetch":
                done = yield from self._traced(request, deadline, profiler)
            else:
                with queue_waits_named(self._definition.thread):
                    done = yield from self._traced(request, deadline, profiler)
        finally:
            session.window.profiled = False
            profiler.finish()
        return msgspec.structs.replace(
            done, trace_path=request.trace_path, clock_marks=tuple(profiler.clock_marks)
        )

    def _traced(self, request: WindowRequest, deadline: int, profiler: WindowProfiler) -> Timed:
        clock = self._session.window.clock = StepClock(None)
        clock.start(perf_counter_ns(), fresh=False)
        for _ in range(profiler.n_warmup):
            now = yield
            self._switches.begin_step()
            profiler.boundary(begins=clock.mark(now))
        return (yield from self._timed(request, deadline, profiler))

    def _timed(
        self, request: WindowRequest, deadline: int, profiler: WindowProfiler | None = None
    ) -> Timed:
        n_steps = self._whole_cycles(request)
        done = yield from self._steps.run(request, n_steps, deadline, profiler)
        self.step_ns = sum(done.host_step_ns) // done.n_steps
        if request.mode == "plain":
            self._own_step_ns = self.step_ns
        return done

    def _whole_cycles(self, request: WindowRequest) -> int:
        """`n_steps` up to whole cycles, where the limit leaves room for that."""
        cycle = self.batches_per_cycle(request)
        whole = -(-max(1, request.n_steps) // cycle) * cycle
        if request.limit_s is not None and whole * self.step_ns > request.limit_s * NS_PER_S:
            return max(1, request.n_steps)
        return whole


def _deadline(request: WindowRequest) -> int:
    """When a window that begins now is over at the latest (ns)."""
    return perf_counter_ns() + int((request.limit_s or NO_LIMIT_S) * NS_PER_S)


def _not_done(
    request: WindowRequest, status: Literal["skipped", "failed"], reason: str
) -> WindowDone:
    return WindowDone(id=request.id, mode=request.mode, status=status, reason=reason)
