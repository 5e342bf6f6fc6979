"""Measures one requested window after another within the running loop.

Each window: switch where the batches come from, throw away what queued up meanwhile, let the loop
get steady again, time steps. Runs on the training thread; `yield` means one more step of the loop.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import msgspec

from loaderdoctor.errors import LoaderdoctorError
from loaderdoctor.instrument.session import ranks
from loaderdoctor.instrument.session.memory_history import recorded
from loaderdoctor.instrument.session.profiling import (
    EventProbe,
    WindowProfiler,
    most_steps,
    queue_waits_named,
)
from loaderdoctor.instrument.session.recorder import Recorder
from loaderdoctor.instrument.session.roles import Definition
from loaderdoctor.instrument.session.session import ScriptOverError, Session
from loaderdoctor.instrument.session.sources import SourceRefusedError, Sources
from loaderdoctor.instrument.session.step_clock import DeviceMarks, StepClock
from loaderdoctor.instrument.session.stepping import counter
from loaderdoctor.instrument.session.tensor_peak import with_tensor_peak
from loaderdoctor.instrument.session.window_figures import (
    gpu_peaks,
    host_bytes,
    reset_gpu_peaks,
    samples_per_batch,
)
from loaderdoctor.instrument.system.cpu_use import CpuMeter
from loaderdoctor.instrument.wire.protocol import SCRIPT_ENDED, WindowDone, WindowRequest
from loaderdoctor.instrument.wire.records import TransferRecord
from loaderdoctor.units import NS_PER_S

if TYPE_CHECKING:
    from loaderdoctor.instrument.batches.free_copies import FreeCopies
    from loaderdoctor.instrument.session.transfer import ForceTransfer
    from loaderdoctor.instrument.trial.compute import Compute

Steps = Generator[None, int, None]
MIN_WARMUP = 3  # steps after a switch before the loop's own state is steady
BACKGROUND_WARMUP = 4  # more where a background thread holds batches of the window before
# A pause shorter than this many steps leaves the queues as they were.
PAUSE_STEPS = 2.0
NO_LIMIT_S = 600.0


class WindowFailedError(LoaderdoctorError):
    """The window can't be measured; the message is the reason."""


class Windows:
    """State that outlives single windows: what is substituted, replay buffers, the step's kind."""

    def __init__(
        self,
        session: Session,
        definition: Definition,
        *,
        marks: DeviceMarks | None,
        transfers: tuple[TransferRecord, ...],
        accumulation: int,
        step_ns: int,
    ) -> None:
        self.paused_ns = 0
        self._session = session
        self._definition = definition
        self._marks = marks
        self._accumulation = accumulation
        self._step_ns = step_ns
        self._sources = Sources(session, definition, transfers)
        self._events_per_step: int | None = None
        self._free_copies: FreeCopies | None = None
        # What answers or changes the loop's own copies in the window under way.
        self._transfers: FreeCopies | ForceTransfer | None = None
        self._compute: Compute | None = None  # what switches models and optimizers

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
            over = self._over
        except ScriptOverError:
            over = True
            done = self._not_done(request, "skipped", "the script ended before this window")
        except SourceRefusedError as error:
            done = self._not_done(request, "skipped", str(error))
        except LoaderdoctorError as error:
            done = self._not_done(request, "failed", str(error))
        except Exception as error:  # a trial runs foreign code: a result, not an end
            done = self._not_done(request, "failed", f"{type(error).__name__}: {error}")
        finally:
            self._session.clock = self._session.recorder = self._session.count = None
            self._session.spans = False
            self._session.at_epoch_end.clear()
            self._unpatch()
        self._session.send(done)
        if over:
            raise ScriptOverError

    _over = False

    @staticmethod
    def _not_done(request: WindowRequest, status: Any, reason: str) -> WindowDone:
        return WindowDone(id=request.id, mode=request.mode, status=status, reason=reason)

    # ------------------------------------------------------------ before

    def _measure(self, request: WindowRequest) -> Generator[None, int, WindowDone]:
        session, sources = self._session, self._sources
        session.progress(f"window {request.id}: {request.mode.replace('_', '-')}")
        deadline = perf_counter_ns() + int((request.limit_s or NO_LIMIT_S) * NS_PER_S)
        paused_ns, self.paused_ns = self.paused_ns, 0
        paused = paused_ns > PAUSE_STEPS * self._step_ns
        targets = sources.targets(request)
        startup_ns: int | None = None
        warmup = 0
        if request.mode in ("no_input", "no_copy"):
            yield from sources.record(targets)
            yield from sources.to_real([x for x in sources.train if x not in targets])
            sources.use_replay_buffers(targets)
        elif request.mode == "trial" and not request.own_batches:
            startup_ns = sources.open_trial(request, targets)
            if request.drain:
                return self._drained(request, deadline)
        else:
            steady = yield from sources.to_real(sources.train, paused=paused)
            if paused and not steady:
                # Nothing may be thrown away in a run that must stay as it is: the loop itself
                # uses up what the workers made meanwhile.
                warmup = max(2 * x.queue_length for x in sources.train)
        yield from self._switch_compute(request, deadline)
        self._patch(request)
        n_warmup = request.profiler.n_warmup_steps
        if n_warmup is not None and request.mode != "profiled":
            warmup = n_warmup
        elif sources.switched or paused:
            warmup += max(MIN_WARMUP, self.batches_per_cycle(request) // self._accumulation)
            warmup += BACKGROUND_WARMUP if self._definition.tick != "fetch" else 0
        else:
            warmup = max(warmup, MIN_WARMUP if self._marks is not None else 1)
        if request.mode == "no_copy":
            # Each recorded batch has to be copied once before its copies can be answered.
            warmup += sources.n_replay_batches
        if sources.at_epoch_start:
            warmup = 0
        sources.switched = sources.at_epoch_start = False
        yield from self._warm_up(warmup, deadline)
        if session.group:
            finish = self._marks.finish_device if self._marks is not None else None
            yield from ranks.hold(session, request.id, self._between_steps, finish)
            deadline = perf_counter_ns() + int((request.limit_s or NO_LIMIT_S) * NS_PER_S)
        timed = self._profiled if request.trace_path is not None else self._timed
        steps = recorded(session, request, timed(request, deadline))
        done = yield from with_tensor_peak(session, request, steps)
        why = sources.crash() or (self._compute.failure() if self._compute is not None else None)
        if why is not None:
            raise WindowFailedError(why)
        boundary_ns = sources.boundary_ns(request) if not self._over else None
        return msgspec.structs.replace(done, startup_ns=startup_ns, boundary_ns=boundary_ns)

    def _drained(self, request: WindowRequest, deadline: int) -> WindowDone:
        """The loader alone, while the loop stands still."""
        from loaderdoctor.instrument.session.drain import drained

        clock = self._definition.clock
        if clock.source is None:
            raise SourceRefusedError("no loader was opened")
        return drained(
            clock.source,
            request,
            cycle=self.batches_per_cycle(request) // self._accumulation,
            samples_per_batch=samples_per_batch(clock, request),
            deadline=deadline,
        )

    def _warm_up(self, n: int, deadline: int) -> Steps:
        for _ in range(n):
            now = yield
            self._session.poll(now)
            self._between_steps()
            if now > deadline:
                return

    def _between_steps(self) -> None:
        self._sources.check()
        self._begin_step()

    def _switch_compute(self, request: WindowRequest, deadline: int) -> Steps:
        """Switch the models and optimizers of the loop, and let compilers do their work."""
        settings = request.settings
        if settings is None or not settings.numerics:
            return
        from loaderdoctor.errors import TrialRefused
        from loaderdoctor.instrument.trial import compute

        if not compute.asked(settings):
            return
        if self._compute is None:
            self._compute = compute.Compute(self._session)
        yield from self._compute.look(settings)
        self._sources.switched = True  # the loop must get steady again
        try:
            n_steps = self._compute.enter(settings)
        except TrialRefused as error:
            raise SourceRefusedError(str(error)) from error
        yield from self._warm_up(n_steps, deadline)
        reset_gpu_peaks(self._session)  # steps as they are ran meanwhile, and compilers
        if n_steps and (why := self._compute.failure()) is not None:
            raise WindowFailedError(why)

    def _patch(self, request: WindowRequest) -> None:
        """Answer or change the loop's own transfers during this window."""
        settings = request.settings
        non_blocking = settings.non_blocking if settings is not None else None
        if request.mode != "no_copy" and non_blocking is None:
            return
        from loaderdoctor.instrument.batches.free_copies import FreeCopies
        from loaderdoctor.instrument.session.transfer import ForceTransfer

        session = self._session
        device = session.device
        if request.mode == "no_copy":
            if device is None:
                raise SourceRefusedError("no accelerator: nothing is copied")
            if self._free_copies is None:
                self._free_copies = FreeCopies(device, position=self._sources.replay_position)
            self._transfers = self._free_copies
        if non_blocking is not None:
            self._transfers = ForceTransfer(non_blocking=non_blocking)
        if self._transfers is not None:
            self._transfers.install()
            self._transfers.begin_step()
            session.begin_thread_step = self._transfers.begin_step

    def _unpatch(self) -> None:
        if self._compute is not None and self._compute.leave():
            self._sources.switched = True
        self._session.begin_thread_step = None
        if self._transfers is not None:
            self._transfers.remove()
            self._transfers = None
        if self._free_copies is not None:
            self._free_copies.stop_counting()
            self._free_copies.restore()
        self._sources.restore_replay_buffers()

    def _begin_step(self) -> None:
        if self._transfers is not None:
            self._transfers.begin_step()

    # ------------------------------------------------------------ the window itself

    def _profiled(self, request: WindowRequest, deadline: int) -> Generator[None, int, WindowDone]:
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
        session.spans = True
        try:
            if self._definition.tick == "fetch":
                done = yield from self._traced(request, deadline, profiler)
            else:
                with queue_waits_named(self._definition.thread):
                    done = yield from self._traced(request, deadline, profiler)
        finally:
            session.spans = False
            profiler.finish()
        return msgspec.structs.replace(
            done, trace_path=request.trace_path, clock_marks=tuple(profiler.clock_marks)
        )

    def _traced(
        self, request: WindowRequest, deadline: int, profiler: WindowProfiler
    ) -> Generator[None, int, WindowDone]:
        clock = self._session.clock = StepClock(None)
        clock.start(perf_counter_ns(), fresh=False)
        for _ in range(profiler.n_warmup):
            now = yield
            self._begin_step()
            profiler.boundary(begins=clock.mark(now))
        return (yield from self._timed(request, deadline, profiler))

    def _timed(
        self, request: WindowRequest, deadline: int, profiler: WindowProfiler | None = None
    ) -> Generator[None, int, WindowDone]:
        session = self._session
        n_steps = self._whole_cycles(request)
        copies = self._free_copies if self._transfers is self._free_copies else None
        if copies is not None:
            copies.start_counting()
        if request.mode != "trial":
            reset_gpu_peaks(session)
        meter = CpuMeter(session.channel.n_above)
        recorder = session.recorder = Recorder()
        clock = session.clock = StepClock(self._marks, n_steps=n_steps)
        clock.start(perf_counter_ns(), fresh=session.at_fresh_feed)
        reason: str | None = None
        if profiler is None and self._transfers is None and not self._sources.substituting:
            session.count = counter(session, clock, n_steps)
        try:
            while clock.n_steps < n_steps:
                now = yield
                edge = session.at_edge or clock.n_steps + 1 >= n_steps
                begins = clock.mark(now, edge=edge)
                reason = self._sources.failure()
                if reason is None and now > deadline:
                    reason = f"the window's {request.limit_s} s were over"
                if profiler is not None:
                    over = reason is not None or clock.n_steps >= n_steps
                    profiler.boundary(begins=begins, last=over)
                session.poll(now)
                self._begin_step()
                if reason is not None:
                    break
        except ScriptOverError:
            self._over = True
            reason = SCRIPT_ENDED
        session.clock = session.recorder = session.count = None
        cpu = meter.since()
        if clock.n_steps == 0:
            raise WindowFailedError(reason or "no step ended in this window")
        if copies is not None and copies.reason is not None:
            raise WindowFailedError(copies.reason)
        times = clock.finish()
        self._step_ns = sum(times.host_ns) // len(times.host_ns)
        allocated, reserved = gpu_peaks(session)
        loader = self._definition.clock
        return WindowDone(
            id=request.id,
            mode=request.mode,
            status="ok" if reason is None else "short",
            reason=reason,
            n_steps=len(times.host_ns),
            n_samples=round(len(times.host_ns) * samples_per_batch(loader, request)),
            start_ns=times.start_ns,
            end_ns=times.end_ns,
            host_step_ns=times.host_ns,
            device_step_ns=times.device_ns,
            boundary_steps=times.boundary_steps,
            fetches=recorder.fetch_records(),
            boundaries=tuple(recorder.boundaries),
            worker_cpu_ns=cpu.workers_ns,
            main_cpu_ns=cpu.main_ns,
            cpu=cpu,
            pages=loader.pages.record(),
            host_bytes=host_bytes(session) if request.host_memory else None,
            gpu_peak_allocated_bytes=allocated,
            gpu_peak_reserved_bytes=reserved,
            n_copy_hits=copies.hits if copies is not None else None,
            n_copy_misses=copies.misses if copies is not None else None,
        )

    def _whole_cycles(self, request: WindowRequest) -> int:
        """`n_steps` up to whole cycles, where the limit leaves room for that."""
        cycle = self.batches_per_cycle(request)
        whole = -(-max(1, request.n_steps) // cycle) * cycle
        if request.limit_s is not None and whole * self._step_ns > request.limit_s * NS_PER_S:
            return max(1, request.n_steps)
        return whole
