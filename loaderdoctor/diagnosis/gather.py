"""Gathers the evidence of one diagnosis, most valuable first: plain > profiled > ablation.

With an accelerator ablation goes before the profiled window. CUPTI stays attached after the first
profile and slows each launch from then on: a loop of 30 tiny layers on an H100 took 7.4 ms a step
before and 10.0 ms after it, with and without input alike, so that ablation after it overstates
what is left. (Detaching with TEARDOWN_CUPTI=1 restores the speed, but the next profile of the
process then records no kernels: torch 2.11.)

Last, one traced window with what is advised, to be shown next to a step of the loop as it is. It
explains and never ranks: no time is taken from it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import msgspec

from loaderdoctor.attribution import attribute
from loaderdoctor.attribution.cpu import cpu_facts
from loaderdoctor.attribution.step import usable, window_times
from loaderdoctor.attribution.timeline import timelines_of_window
from loaderdoctor.attribution.verdict import MIN_STEPS
from loaderdoctor.diagnosis.verify import Verification
from loaderdoctor.errors import LoaderdoctorError, RunError
from loaderdoctor.estimate import Estimate, interval, mean
from loaderdoctor.facts.step import StepTimeline
from loaderdoctor.instrument.command.launched_run import ScriptRunLike
from loaderdoctor.instrument.wire.protocol import (
    WINDOW_IDS,
    ProfilerSchedule,
    WindowDone,
    WindowRequest,
)
from loaderdoctor.instrument.wire.worker_log import WorkerLog
from loaderdoctor.report import model
from loaderdoctor.settings import Settings
from loaderdoctor.trace import read_trace
from loaderdoctor.tryout.ablating import MAX_LONGER_ROUNDS, Ablation, LoopEvidence
from loaderdoctor.tryout.measuring import PROFILED_FACTOR
from loaderdoctor.tryout.windows import MIN_ROUNDS, slow_start_s

# Each of the loop's threads stands this part of the time without a CPU: two threads on two CPUs
# then took 2 to 30 times as long as one (`benchmarks/contention.py`).
HARD_FIGHT_SHARE = 0.5
# The end of a pass that may go before training is waited for where a whole one takes no longer than
# this, and then what follows it: building an optimizer, opening another loader.
LONGEST_PASS_S = 30.0
AFTER_PASS_S = 5.0

# A window of stack samples has some 400 of them, which tell a share of 20 % to 4 points, or a fifth
# of that where other programs keep the CPUs busy. Slow steps are still seen whole, twice.
SAMPLED_S = 1.0
MIN_SAMPLED_STEPS = 2
ENOUGH_SAMPLES = 200
MAX_SAMPLED_WINDOWS = 3
ADVISED_NAME = "advised.pt.trace.json.gz"
# One step is shown: a few more make it a typical one, and two batches of each worker a steady one.
SHOWN_STEPS = 8
# A window that is not certain to end in time is not begun: opening the trial and the profiler's
# start took up to 2 s in the tests' loops, on two cores.
OVERHEAD_S = 2.0
# Kept back from the trials for it: of the usual budget of 45 s not a tenth.
KEPT_BACK_S = 4.0
KEPT_BACK_SHARE = 0.1


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
        first_until: float | None = None,
        finer_until: float | None = None,
        open_until: Callable[[], float] | None = None,
        beyond_until: Callable[[], float | None] | None = None,
        may_defer: bool = False,
    ) -> None:
        """Everything but trials. The times are on this gatherer's clock, for ablation.

        Where the loop's own threads fight hard, steps take many times as long as they need and what
        ablation measures is mostly that: fewer threads are then to be tried first, and with
        `may_defer` ablation is left to the caller (`deferred`).

        Rounds behind the first leave room for a window of stack samples, without which the loop's
        own work has no line.

        On an accelerator no round can follow the profile. Where the shares are still open before
        it, `open_until` is asked until when more may take, and `beyond_until` where there are too
        few to tell anything: None where no more would help.
        """
        if not self.plain():
            return
        self._end_s = max(until, first_until or until)
        self.deferred = may_defer and ablate and self._threads_fight_hard()
        ablate = ablate and not self.deferred
        profile_last = ablate and self.evidence.observed.device is not None
        if not profile_last:
            self.profiled()
        if ablate:
            self.ablate(
                until=min(until, self._end_s - self._sampling_s),
                with_copy=with_copy,
                first_until=first_until,
                finer_until=finer_until,
            )
        self.stack_samples()
        is_open = ablate and bool(self.evidence.rounds) and not self.settled
        if profile_last and is_open and open_until is not None:
            self.ablate(until=open_until(), with_copy=with_copy, most=MAX_LONGER_ROUNDS)
        few = profile_last and len(self.evidence.rounds) < MIN_ROUNDS
        until_s = beyond_until() if few and beyond_until is not None else None
        if until_s is not None:
            self.ablate(until=until_s, with_copy=with_copy)
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

    @property
    def _n_sampled_steps(self) -> int:
        return max(MIN_SAMPLED_STEPS, math.ceil(SAMPLED_S / self.evidence.sizes.step_s))

    @property
    def _sampling_s(self) -> float:
        """Of a window of stack samples, with the queue that is used up before it."""
        train = self.evidence.observed.main_loader
        n_dropped = 2 * train.settings.queue_length if train is not None else 0
        return (self._n_sampled_steps + n_dropped) * self.evidence.sizes.step_s

    def stack_samples(self) -> None:
        """Windows in which the training thread's stack is sampled: which lines its work is at.

        More than one where the first was too short of samples. Not begun where one would not end in
        time.
        """
        sizes, sampled = self.evidence.sizes, self.evidence.sampled
        n_steps = self._n_sampled_steps
        for n in range(MAX_SAMPLED_WINDOWS):
            if self._clock() + n_steps * sizes.step_s > self._end_s:
                return
            self._tell("sampling the loop's lines")
            request = self.request(
                "plain",
                n_steps=n_steps,
                stack_samples=True,
                host_memory=False,
                drop_batches=n == 0 and bool(self.evidence.rounds),
            )
            done = [w for w in self._measure([request]) if usable(w) and w.stacks is not None]
            sampled.extend(done)
            n_samples = sum(w.stacks.n for w in sampled if w.stacks is not None)
            if not done or n_samples >= ENOUGH_SAMPLES:
                return

    def await_training(self) -> None:
        """Let a loop that has not trained run on to the end of its pass, and a little longer.

        Passes over a loader in which a model is called go before training too, to keep features or
        to evaluate. Raises TrainingBeganError where it begins meanwhile. A pass too long for that
        is not waited for.
        """
        evidence = self.evidence
        epoch_s = (evidence.steps_per_epoch or math.inf) * evidence.sizes.step_s
        if evidence.observed.trains or epoch_s > LONGEST_PASS_S:
            return
        self._tell("waiting whether training begins")
        limit_s = epoch_s + AFTER_PASS_S
        n_steps = math.ceil(LONGEST_PASS_S / evidence.sizes.step_s)
        request = self.request("plain", n_steps=n_steps, host_memory=False)
        self._measure([msgspec.structs.replace(request, limit_s=limit_s)])


# `--memory-history`: torch's memory snapshot of the loop, and what recording it costs.
#
# The cost is measured as all costs are: windows with and without, in shuffled order each round. The
# snapshot is of the last round, saved after its time was taken.

N_ROUNDS = 3  # the fewest for an interval
# Events the allocator keeps, the latest: some kilobytes each with their stacks, so up to some
# hundred megabytes on disk. A training step makes hundreds to some thousands.
MAX_ENTRIES = 100_000
NAME = "memory_snapshot.pickle"

NOT_APPLICABLE = (
    "--memory-history does not apply: torch records the history of CUDA and ROCm memory only, and "
    "this loop uses no such device. Nothing was recorded."
)

Measure = Callable[[Sequence[WindowRequest]], Sequence[WindowDone]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryHistory:
    """What came of it; `path` None: no snapshot, for the reason given."""

    path: Path | None = None
    n_entries: int = 0
    overhead: Estimate | None = None  # steps with it / steps without; None: not measured
    reason: str | None = None


def record(gatherer: Gatherer, measure: Measure, path: Path, *, seed: int = 0) -> MemoryHistory:
    """Record, save to `path`, measure the cost. Never raises for a window that did not come."""
    device = gatherer.evidence.observed.device
    if device is None or not device.startswith("cuda"):
        return MemoryHistory(reason=NOT_APPLICABLE)
    rng, ratios = Random(seed), []
    saved: WindowDone | None = None
    for n in range(N_ROUNDS):
        without = gatherer.request("plain")
        recording = msgspec.structs.replace(
            gatherer.request("plain"),
            memory_entries=MAX_ENTRIES,
            snapshot_path=str(path.resolve()) if n == N_ROUNDS - 1 else None,
        )
        windows = [without, recording]
        rng.shuffle(windows)
        done = {window.id: window for window in measure(windows)}
        plain, recorded = done.get(without.id), done.get(recording.id)
        if recorded is None or not usable(recorded):
            why = recorded.reason if recorded is not None else None
            why = why or "the script ended before it was recorded"
            return MemoryHistory(reason=f"--memory-history: {why}.")
        saved = recorded
        if plain is not None and usable(plain):
            ratios.append(window_times(recorded).within_ms / window_times(plain).within_ms)
    if saved is None or saved.snapshot is None:
        return MemoryHistory(reason="--memory-history: the snapshot was not saved.")
    return MemoryHistory(
        path=Path(saved.snapshot.path),
        n_entries=saved.snapshot.n_entries,
        overhead=mean(ratios) if ratios else None,
    )


def history_row(history: MemoryHistory | None) -> model.MemoryHistory | None:
    """As the report holds it; None where there is no snapshot."""
    if history is None or history.path is None:
        return None
    path = history.path
    return model.MemoryHistory(
        path=path.name,
        n_bytes=path.stat().st_size if path.is_file() else None,  # it may lie on another machine
        n_entries=history.n_entries,
        max_entries=MAX_ENTRIES,
        overhead=history.overhead.value if history.overhead is not None else None,
        overhead_ci=interval(history.overhead),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Advised:
    """The settings of the winner, and its traced window."""

    settings: Settings
    window: WindowDone

    def steps(self, log: WorkerLog | None) -> tuple[StepTimeline, ...]:
        """Its steps as pictures; empty where the trace can't be read."""
        assert self.window.trace_path is not None
        try:
            attributed = attribute(read_trace(Path(self.window.trace_path)))
            return timelines_of_window(attributed, self.window, log)
        except LoaderdoctorError:
            return ()


def kept_back_s(budget_s: float) -> float:
    """Seconds of the budget that trials leave for this window."""
    return min(KEPT_BACK_S, KEPT_BACK_SHARE * budget_s)


def trace_advised(
    script_run: ScriptRunLike,
    verification: Verification | None,
    folder: Path,
    profiler: ProfilerSchedule,
    left_s: float,
) -> Advised | None:
    """Trace the winner into `folder`, within `left_s` seconds; None: no winner, or no time."""
    best = verification.best if verification is not None else None
    if best is None or best.step is None or script_run.ended is not None:
        return None
    settings = best.settings
    n_steps = max(SHOWN_STEPS, 2 * (settings.num_workers or 0))
    step_s = best.step.value / 1000
    expected_s = OVERHEAD_S + slow_start_s(settings) + PROFILED_FACTOR * n_steps * step_s
    if expected_s > left_s:
        return None
    request = WindowRequest(
        id=next(WINDOW_IDS),
        mode="trial",
        n_steps=n_steps,
        limit_s=left_s,
        settings=best.trial.switched,
        trace_path=str(folder / ADVISED_NAME),
        profiler=profiler,
    )
    try:
        done = next(iter(script_run.measure([request])), None)
    except RunError:
        return None  # what ended says so itself
    if done is None or not usable(done) or not done.trace_path:
        return None
    return Advised(settings=settings, window=done)
