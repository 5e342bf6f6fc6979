"""Gathers the evidence of one diagnosis, most valuable first: plain > profiled > ablation.

With an accelerator ablation goes before the profiled window. CUPTI stays attached after the first
profile and slows each launch from then on: a loop of 30 tiny layers on an H100 took 7.4 ms a step
before and 10.0 ms after it, with and without input alike, so that ablation after it overstates
what is left. (Detaching with TEARDOWN_CUPTI=1 restores the speed, but the next profile of the
process then records no kernels: torch 2.11.)
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

from loaderdoctor.attribution.cpu import cpu_facts
from loaderdoctor.attribution.step import usable
from loaderdoctor.attribution.verdict import MIN_STEPS
from loaderdoctor.instrument.command.launched_run import ScriptRunLike
from loaderdoctor.instrument.wire.protocol import ProfilerSchedule
from loaderdoctor.tryout.ablating import Ablation, LoopEvidence

# Each of the loop's threads stands this part of the time without a CPU: two threads on two CPUs
# then took 2 to 30 times as long as one (`benchmarks/contention.py`).
HARD_FIGHT_SHARE = 0.5


class Gatherer(Ablation):
    """Sends the windows of a diagnosis to a script run and keeps what comes back."""

    def __init__(
        self,
        script_run: ScriptRunLike,
        evidence: LoopEvidence,
        *,
        trace_path: Path,
        profiler: ProfilerSchedule,
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
        on_stage: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(script_run, evidence, seed=seed, clock=clock, on_stage=on_stage)
        self.deferred = False  # ablation, until other numbers of threads were tried
        self._trace_path = trace_path
        self._profiler = profiler
        self._end_s = float("inf")  # of all gathering

    def gather(
        self,
        *,
        until: float,
        ablate: bool,
        with_copy: bool,
        fewest_until: float | None = None,
        may_defer: bool = False,
    ) -> None:
        """Everything but trials. The times are on this gatherer's clock, for ablation.

        Where the loop's own threads fight hard, steps take many times as long as they need and what
        ablation measures is mostly that: fewer threads are then to be tried first, and with
        `may_defer` ablation is left to the caller (`deferred`).
        """
        if not self.plain():
            return
        self._end_s = max(until, fewest_until or until)
        self.deferred = may_defer and ablate and self._threads_fight_hard()
        ablate = ablate and not self.deferred
        profile_last = ablate and self.evidence.observed.device is not None
        if not profile_last:
            self.profiled()
        if ablate:
            self.ablate(until=until, with_copy=with_copy, fewest_until=fewest_until)
        if profile_last:
            self.profiled()

    def _threads_fight_hard(self) -> bool:
        environment = self.evidence.observed.environment
        cpu = cpu_facts(self.evidence.plain, environment.usable_cpus)
        waiting = cpu.waiting_threads if cpu is not None else None
        n_threads = environment.n_threads
        return n_threads > 1 and (waiting or 0.0) >= HARD_FIGHT_SHARE * n_threads

    def plain(self) -> bool:
        """A first plain window, with queues as the user's own run left them; whether it came."""
        self._tell("measuring the loop as it is")
        sizes = self.evidence.sizes
        # It may stay the only one: enough steps for a verdict, in whole cycles.
        n_steps = max(sizes.n_steps, math.ceil(MIN_STEPS / sizes.cycle) * sizes.cycle)
        done = self._measure([self.request("plain", n_steps=n_steps, drop_batches=False)])
        self.evidence.plain.extend(done)
        return bool(done)

    def profiled(self) -> None:
        """The profiled window, and where nothing was substituted yet a plain one behind it."""
        self._tell("profiling")
        pristine = not self.evidence.rounds
        request = self.request(
            "profiled",
            n_steps=self._profiler.active or self.evidence.sizes.n_profiled_steps,
            trace_path=str(self._trace_path),
            profiler=self._profiler,
            drop_batches=not pristine,
        )
        done = self._measure([request])
        if done and usable(done[0]) and done[0].trace_path:
            self.evidence.profiled = done[0]
        elif done:
            self.evidence.profiled_reason = done[0].reason or "nothing was recorded"
        if pristine and self._clock() + self.evidence.sizes.window_s <= self._end_s:
            self.evidence.plain.extend(self._measure([self.request("plain")]))
