"""A script that trains without a DataLoader: one capture of its steps, told by the optimizer.

What such a loop does between some of its steps (an environment's episodes, the next part of the
data, validation) may be most of its time, and lies outside of what is captured: it is timed before.

Batches made by the loop itself (slices of a memmap, an environment's episodes, one tensor that
holds everything) give no loader to measure and nothing to substitute. What a profiler sees of such
a loop is still worth having, and a loop that may run for weeks must not be waited for.
"""

from __future__ import annotations

import math
import threading
import traceback
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from loaderdoctor.instrument.session.roles import device_of, optimizer_exists, training_device
from loaderdoctor.instrument.system import user_site
from loaderdoctor.instrument.wire.channel import ConnectionLostError
from loaderdoctor.instrument.wire.measured import PauseRecord, StackRecord
from loaderdoctor.instrument.wire.protocol import NoDataLoader, ProfilerSchedule, Stop
from loaderdoctor.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    import torch
    from torch.optim import Optimizer

    from loaderdoctor.instrument.session import Session

# A DataLoader is iterated before the first optimizer step in scripts that have one. Those that fit
# something else before it do so for less than this, or have built their loader by then.
MIN_STEPS, MIN_S = 8, 3.0
MIN_STEPS_SLOW, SLOW_S = 2, 20.0
# One that was built and is still not iterated after so much training never is, as we see it: a
# class of the script's own may replace `__iter__` altogether.
BUILT_S = 30.0
# Backward passes come before the first optimizer step, and several to one where gradients are
# accumulated: only a loop that updates its parameters by hand has so many and no optimizer.
MIN_BACKWARDS = 50
# The capture: as many steps as last about so long.
CAPTURE_S = 5.0
FEWEST, MOST = 5, 20  # fewer steps give no verdict (attribution.verdict)
N_WARMUP = 2
# A capture that would take longer than this is not made: its steps hold whole trainings. Where an
# optimizer's step holds many backward passes, those are captured in its place.
LIMIT_S = 30.0
WAIT_S = 3600.0
# Then the stack of the training thread is sampled: 800 samples, or a fifth where CPUs are full.
SAMPLED_S = 2.0
FEWEST_SAMPLED = 2
# Steps that take so many times the median hold a pause, where they are no more than this part of
# all. Where fewer than so many steps lie between two, the capture has pauses among its steps.
PAUSE_TIMES, RARE = 5.0, 0.1
PAUSED_APART = N_WARMUP + FEWEST + 3
# So much of what is sampled in pauses is in backward passes: these are long steps.
TRAINING_PART = 0.2
FEWEST_PAUSED = 8
# Where one pause was seen, so long is waited for a second, and samples are taken of more.
PAUSES_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refused:
    """Why steps were not captured; `too_large`: smaller ones could be."""

    reason: str
    too_large: bool = False


class NoDataLoaderWatch:
    """Told of each optimizer step until a loader is iterated; the first optimizer's are steps.

    Of threads that train with one optimizer side by side, the steps are those of the first, for as
    long as it lives.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._key: int | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()  # while it is decided whose steps are followed
        self._began_ns = 0
        self._steps: Iterator[None] | None = None
        self._captures = False
        self._n_passes = 0  # backward passes since the steps were begun to be timed
        self._only_some: str | None = None  # why fewer were captured than are wanted

    def stepped(self, optimizer: Optimizer | None) -> None:
        """An optimizer stepped or, without one, a backward pass ran; no loader feeds it so far."""
        key = None if optimizer is None else id(optimizer)
        thread = threading.current_thread()
        with self._lock:
            if self._begins(key, thread):
                self._key, self._thread, self._captures = key, thread, False
                self._steps = self._watch(optimizer)
            steps = self._steps
            if thread is not self._thread or steps is None:
                return
        self._n_passes += key is None and not self._captures
        if key != self._key:
            return
        try:
            next(steps, None)
        except Exception:  # ours: the user's run must not fail for it
            self._session.note("internal-error", traceback.format_exc())
            self._session.detach()

    def _begins(self, key: int | None, thread: threading.Thread) -> bool:
        """Whether steps are followed from here on."""
        if self._steps is None or self._thread is None:
            return True
        if thread is not self._thread and not self._thread.is_alive():
            return key == self._key
        return self._key is None and key is not None and not self._captures

    def _has_loader(self) -> bool:
        return bool(self._session.registry.states) or self._may_be_iterated()

    def _may_be_iterated(self) -> bool:
        trained_s = (perf_counter_ns() - self._began_ns) / NS_PER_S
        return self._session.registry.any_built and trained_s < BUILT_S

    def _watch(self, optimizer: Optimizer | None) -> Iterator[None]:
        session = self._session
        site = user_site().label
        began_ns = now_ns = self._began_ns = perf_counter_ns()
        n_steps = self._n_passes = 0
        step_ns: list[int] = []
        few = MIN_STEPS if optimizer is not None else MIN_BACKWARDS
        while not _enough(n_steps, (now_ns - began_ns) / NS_PER_S, few) or self._may_be_iterated():
            yield
            if session.registry.states:
                return
            before_ns, now_ns = now_ns, perf_counter_ns()
            n_steps += 1
            step_ns.append(now_ns - before_ns)
        # One step of an optimizer may hold many backward passes (LBFGS): it is waited for, unless
        # it lasts so long that too few would be seen.
        waits = optimizer is None and optimizer_exists()
        while waits and now_ns - began_ns < SLOW_S * NS_PER_S:
            yield
            n_steps, now_ns = n_steps + 1, perf_counter_ns()
        of_passes = optimizer is None
        device = training_device(device_of(optimizer) if optimizer is not None else None)
        # With an accelerator a long step of the host may wait for it (`.item()` now and then).
        pauses = pauses_of(step_ns) if device is None and not of_passes else None
        while pauses is not None and pauses.n == 1 and now_ns - began_ns < PAUSES_S * NS_PER_S:
            yield
            if self._has_loader():
                return
            before_ns, now_ns = now_ns, perf_counter_ns()
            n_steps += 1
            step_ns.append(now_ns - before_ns)
            if _is_paused(pauses, step_ns[-1]):
                pauses = pauses_of(step_ns)
        self._captures = True
        took_ms = (now_ns - began_ns) / NS_PER_MS
        step_ms = took_ms / n_steps
        if len(step_ns) >= 2 * MIN_STEPS and not of_passes:  # without the first: compiling, caches
            n_steps = len(step_ns) - MIN_STEPS
            step_ms = fmean(step_ns[MIN_STEPS:]) / NS_PER_MS
        splits = self._n_passes > len(step_ns) and not of_passes
        usual_ms = step_ms if pauses is None else pauses.usual_ms
        yield from _behind(pauses)
        refused = yield from self._capture(
            usual_ms, device, fewest=FEWEST if splits else 1, pauses=pauses
        )
        if self._has_loader():
            return
        if refused is not None and refused.too_large and splits:
            n_passes = self._n_passes
            self._key = None  # what is told of from here on are the passes of a step
            yield
            site, of_passes = user_site().label, True
            n_steps, step_ms = n_passes, took_ms / n_passes
            self._only_some = pauses = None
            refused = yield from self._capture(step_ms, device, fewest=1)
            if self._has_loader():
                return
        stacks = None
        if refused is None:
            stacks = yield from _sampled(usual_ms if pauses is not None else step_ms, pauses)
            if self._has_loader():
                return
        session.send(
            NoDataLoader(
                site=site,
                n_steps=n_steps,
                step_ms=step_ms,
                built=session.registry.any_built,
                of_passes=of_passes and optimizer_exists(),
                trace_path=str(self._trace_path) if refused is None else None,
                reason=refused.reason if refused is not None else self._only_some,
                stacks=stacks,
                pauses=pauses if stacks is not None and _are_pauses(stacks) else None,
            )
        )
        self._wait_for_stop()

    @property
    def _trace_path(self) -> Path:
        return self._session.run_dir.resolve() / "no-dataloader.json"

    def _capture(
        self,
        step_ms: float,
        device: torch.device | None,
        *,
        fewest: int,
        pauses: PauseRecord | None = None,
    ) -> Generator[None, None, _Refused | None]:
        """Profile some of the steps to come, which take about `step_ms`; why not, or None.

        Less than `FEWEST`, but `fewest`, where more have too many events; no more than lie between
        two `pauses`.
        """
        # Imports torch, which is the script's to import first: its environment still counts then.
        from loaderdoctor.instrument.session.profiling import (
            MAX_EVENTS,
            EventProbe,
            ProfilerBusyError,
            WindowProfiler,
            most_steps,
        )

        most = MOST if pauses is None else _between(pauses) - N_WARMUP - 2
        n_captured = max(FEWEST, min(MOST, most, int(CAPTURE_S * 1e3 / step_ms)))
        if (1 + N_WARMUP + n_captured) * step_ms > LIMIT_S * 1e3:
            reason = f"{n_captured} steps would take longer than {LIMIT_S:g} s"
            return _Refused(reason=reason, too_large=True)
        try:
            probe = EventProbe(device)
            probe.start()
            yield
            n_events = probe.finish()
            if FEWEST * n_events > MAX_EVENTS:
                self._only_some = f"{FEWEST} steps have more than {MAX_EVENTS:,} events"
                if fewest * n_events > MAX_EVENTS:
                    return _Refused(reason=self._only_some, too_large=True)
            n_captured = min(n_captured, most_steps(n_events))
            if self._has_loader():
                return None
            profiler = WindowProfiler(
                self._trace_path, ProfilerSchedule(warmup=N_WARMUP), device=device
            )
            profiler.start()
            for left in reversed(range(N_WARMUP + n_captured)):
                yield
                if self._has_loader():
                    break
                profiler.boundary(begins=True, last=left == 0)
            profiler.finish()
        except ProfilerBusyError as error:
            return _Refused(reason=str(error))
        return None

    def _wait_for_stop(self) -> None:
        """The command has what it wanted: it says whether the script may run on."""
        session = self._session
        try:
            message = session.channel.receive(WAIT_S)
        except ConnectionLostError:
            message = None
        if isinstance(message, Stop) and not message.to_end:
            session.stop()
        session.detach()


def pauses_of(step_ns: Sequence[int]) -> PauseRecord | None:
    """Between some of these steps; None where there is none, or the steps differ throughout.

    The first steps are warming up: what is long among `MIN_STEPS` of them is no pause.
    """
    times = step_ns[MIN_STEPS:]
    if len(times) < PAUSED_APART:
        return None
    longest_ns = PAUSE_TIMES * median(times)
    long = [i for i, ns in enumerate(times) if ns > longest_ns]
    if not long or len(long) > RARE * len(times):
        return None
    usual_ns = fmean(ns for ns in times if ns <= longest_ns)
    every = (long[-1] - long[0]) / (len(long) - 1) if len(long) > 1 else None
    if every is not None and every < PAUSED_APART:
        return None
    return PauseRecord(
        n=len(long),
        seconds=(fmean(times[i] for i in long) - usual_ns) / NS_PER_S,
        every_steps=every,
        usual_ms=usual_ns / NS_PER_MS,
    )


def _between(pauses: PauseRecord) -> int:
    """Steps from one pause to the next; of one that was seen once nobody knows."""
    return int(pauses.every_steps or MOST + N_WARMUP + 2)


def _is_paused(pauses: PauseRecord, ns: int) -> bool:
    """Whether so long after a step is not within the next."""
    return ns > PAUSE_TIMES * pauses.usual_ms * NS_PER_MS


def _behind(pauses: PauseRecord | None) -> Generator[None, None, None]:
    """Until a pause has just been, where they come again and again."""
    if pauses is None or pauses.every_steps is None:
        return
    for _ in range(math.ceil(2 * pauses.every_steps)):
        since_ns = perf_counter_ns()
        yield
        if _is_paused(pauses, perf_counter_ns() - since_ns):
            return


def _sampled(step_ms: float, pauses: PauseRecord | None) -> Generator[None, Any, StackRecord]:
    """Stack samples over some of the steps to come, which take about `step_ms`, and two pauses."""
    from loaderdoctor.instrument.session.stack_samples import with_stack_samples

    began_ns = since_ns = perf_counter_ns()

    def steps() -> Generator[None, int, None]:
        nonlocal since_ns
        n_steps = max(FEWEST_SAMPLED, math.ceil(SAMPLED_S * 1e3 / step_ms))
        n_all = n_steps if pauses is None else max(n_steps, 2 * _between(pauses) + 1)
        for i in range(n_all):
            yield
            since_ns = perf_counter_ns()
            if i >= n_steps and since_ns - began_ns > PAUSES_S * NS_PER_S:
                break

    def outside() -> bool:
        return pauses is not None and _is_paused(pauses, perf_counter_ns() - since_ns)

    return (yield from with_stack_samples(steps(), threading.get_ident(), outside, of_all=True))[1]


def _are_pauses(stacks: StackRecord) -> bool:
    """Whether samples in what seemed to be pauses show no training: else they are long steps."""
    n = stacks.n_outside
    return n >= FEWEST_PAUSED and stacks.n_outside_backward <= TRAINING_PART * n


def _enough(n_steps: int, seconds: float, few: int) -> bool:
    return (n_steps >= few and seconds >= MIN_S) or (
        n_steps >= MIN_STEPS_SLOW and seconds >= SLOW_S
    )
