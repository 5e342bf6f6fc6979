"""Single windows of a sweep: asks the script run, and writes what came back to the trial."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import msgspec

from loaderdoctor.attribution.step import usable
from loaderdoctor.errors import RunError
from loaderdoctor.facts import own_settings
from loaderdoctor.instrument.command.endings import NOT_BEGUN, took_down
from loaderdoctor.instrument.command.job import NoJobError
from loaderdoctor.instrument.command.launch_config import Target as Script
from loaderdoctor.instrument.command.launched_run import ScriptRunLike, TrainingBeganError
from loaderdoctor.instrument.wire.protocol import (
    SCRIPT_ENDED,
    WINDOW_IDS,
    Ended,
    Mode,
    Observed,
    WindowDone,
    WindowRequest,
)
from loaderdoctor.tryout import (
    Measurement,
    Options,
    Outcome,
    Phase,
    Progress,
    Trial,
    epoch_steps,
    windows,
)
from loaderdoctor.tryout.windows import SHORT_EPOCH, Cost

# A batch of a trial that a diagnosis waits longer for never comes, where none was planned to.
HANGS_S = 30.0
# With a limit asked for, until the process counts as hung: torch's own time-out ends a trial whose
# workers hang, and its pool is shut down, within some seconds of it.
TIMEOUT_SLACK_S = 15.0
# Host memory of a trial is the largest of its windows'; it settles with the first epoch.
MEMORY_READINGS = 2
# A diagnosis times a boundary again where it makes so much of the epoch's steps: twice the same
# differ by a fifth, of less than this a hundredth of the step. To time it opens a pool twice.
WORTH_TIMING = 0.05
# Profiled steps run up to this many times as long (`launch_bound_tiny` in traces/truth.json).
PROFILED_FACTOR = 2.3


RERUN = "--rerun starts the script again where a trial takes it down, and goes on."


class OverError(Exception):
    """No further window can be had; what was measured stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Equipment:
    """What a driver works with.

    `reopen` starts the measuring process again after a trial took it down, where it may (the loop
    is a recipe, or the user said so); it returns a script run whose loop is warm.
    """

    script_run: ScriptRunLike
    on_progress: Callable[[Progress], None] | None = None
    reopen: Callable[[], ScriptRunLike] | None = None
    fresh: FreshRuns | None = None
    clock: Callable[[], float] = time.monotonic


class Measurer:
    """Measures one window at a time; between windows the running loop is paused."""

    def __init__(
        self, observed: Observed, options: Options, outcome: Outcome, equipment: Equipment
    ) -> None:
        self.script_run = equipment.script_run
        self.reopening_s = 0.0  # spent on starting the script again
        self._fresh, self._reopen, self._clock = equipment.fresh, equipment.reopen, equipment.clock
        self._options, self._outcome, self._observed = options, outcome, observed
        train = observed.main_loader
        # "plain" where the loader can be opened only once, or is to stay as it is
        one_pass = train is not None and train.safety.one_pass
        self._own_mode: Mode = "plain" if one_pass or options.as_it_runs else "trial"

    def plain(self, n_steps: int, cost: Cost) -> None:
        """One window of the loop as it is, nothing re-opened."""
        done = self._measure(
            WindowRequest(
                id=next(WINDOW_IDS),
                mode="plain",
                n_steps=n_steps,
                limit_s=self._limit_s(n_steps * cost.step_s),
            )
        )
        if done is not None and usable(done):
            self._outcome.plain.append(done)

    def time(self, trial: Trial, phase: Phase, number: int, n_steps: int, cost: Cost) -> None:
        """One timed window of a trial, written to it; so is a failure."""
        mode: Mode = "trial" if trial.index else self._own_mode
        if trial.place == "process" and not trial.switched.changed():
            mode = "plain"
        if self._drains(trial):
            n_steps = self._drained_steps(trial, n_steps)
        elif mode == "trial":
            n_steps = self._with_end(trial, n_steps, cost)
        expected_s = cost.overhead_s + n_steps * cost.step_s
        limit_s = self._limit_s(expected_s) + self._slow_start_s(trial)
        began = self._clock()
        done = self._measure(
            WindowRequest(
                id=next(WINDOW_IDS),
                mode=mode,
                n_steps=n_steps,
                limit_s=limit_s,
                settings=trial.switched if mode == "trial" else None,
                measure_boundary=mode == "trial" and self._boundary_due(trial, expected_s),
                host_memory=self._memory_due(trial),
                tensor_memory=_tensor_memory_due(trial),
                drain=self._drains(trial),
                fetch_limit_s=self._fetch_limit_s(limit_s) if mode == "trial" else None,
                cache_limit_s=self._options.cache_limit_s if _keeps_samples(trial) else None,
            ),
            trial,
        )
        if done is not None and usable(done):
            wall_s = self._clock() - began
            trial.measurements.append(
                Measurement(phase=phase, round=number, window=done, wall_s=wall_s)
            )
        elif trial.index == 0 and self._options.as_it_runs:
            trial.status, trial.reason = "ok", None  # the next round asks for it again
        elif trial.index == 0 and mode == "trial" and trial.status != "ok":
            # The loop's own loader can't be opened a second time: measure it as it runs.
            self._outcome.notes.append(
                ("baseline-not-reopened", f"trial 0 is the running loop itself: {trial.reason}")
            )
            trial.status, trial.reason = "ok", None
            self._own_mode = "plain"
            self.time(trial, phase, number, n_steps, cost)

    def _with_end(self, trial: Trial, n_steps: int, cost: Cost) -> int:
        """`n_steps`, made whole epochs while an epoch's end has to be seen yet.

        A shorter last batch takes memory of its own: a row's GPU memory peaked at 95 MiB with the
        end of an epoch in the window, and at 82 without (H200).
        """
        if trial.row is None or self._observed.device is None:
            return n_steps
        epoch = windows.epoch_of(trial, self._observed)
        if epoch is None or epoch * cost.step_s > windows.LONGEST_EPOCH_S:
            return n_steps
        if any(measurement.times.n_boundaries for measurement in trial.measurements):
            return n_steps
        return math.ceil(n_steps / epoch) * epoch

    def _memory_due(self, trial: Trial) -> bool:
        """A row's as often as it is published; else until it is known.

        Each reading walks the page tables of every process of the tree: 13 ms of CPU for one
        process and 9 ms more for each worker (measured), between two windows.
        """
        if trial.row is not None:
            return trial.row.host_memory
        return sum(v.window.host_bytes is not None for v in trial.measurements) < MEMORY_READINGS

    def _drains(self, trial: Trial) -> bool:
        """Whether only its loader is measured, without the loop's work."""
        has_loader = trial.row is not None and not trial.settings.synthetic
        return self._options.loader_only and has_loader

    def _drained_steps(self, trial: Trial, n_steps: int) -> int:
        """Long enough that queues filled before don't count: two of them, or a whole epoch."""
        queue = trial.settings.queue_length
        if (
            self._observed.steps_per_epoch is not None
            and self._observed.steps_per_epoch <= SHORT_EPOCH * queue
        ):
            return self._observed.steps_per_epoch
        return max(n_steps, 2 * queue)

    def _limit_s(self, expected_s: float) -> float:
        options = self._options
        # A diagnosis, whose trials stand next to the loop as it runs, keeps to a budget by itself.
        budget_s = None if options.as_it_runs else options.budget_s
        return windows.limit_s(expected_s, budget_s=budget_s, at_most=options.trial_limit_s)

    def _fetch_limit_s(self, limit_s: float) -> float | None:
        """When a batch of a trial is taken to hang; None: by its source's own limit.

        Within a diagnosis with its window, but for what workers take to start: of those that a lock
        of the training process kept for ever, one trial took 120 s of a budget of 30.
        """
        options = self._options
        if options.trial_limit_s is not None or not options.as_it_runs:
            return options.trial_limit_s
        return max(HANGS_S, limit_s)

    def _slow_start_s(self, trial: Trial) -> float:
        """How much longer its first window may take."""
        if trial.measurements or self._options.as_it_runs:
            return 0.0
        return windows.slow_start_s(trial.settings)

    @property
    def _timeout_s(self) -> float | None:
        """How long to wait for a window of the running loop; None: from its own limit."""
        limit_s = self._options.trial_limit_s
        return limit_s + TIMEOUT_SLACK_S if limit_s is not None else None

    def _boundary_due(self, trial: Trial, expected_s: float) -> bool:
        """At least one boundary for each trial; more where they cost little next to the window."""
        if trial.settings.keep_iterator:
            return False  # it has none
        if trial.settings.keeps_loaders and self._own_mode == "plain":
            return False  # the loop's own, which it leaves as they are
        seen = [v.boundary_ms for v in trial.measurements if v.window.boundary_ns is not None]
        if not seen or seen[-1] is None:
            return True
        last, epoch = trial.measurements[-1], windows.epoch_of(trial, self._observed)
        step_ms = 1e3 * last.window_s / last.times.n_steps
        if self._options.as_it_runs and epoch and seen[-1] / epoch < WORTH_TIMING * step_ms:
            return False
        return len(seen) < windows.MIN_ROUNDS and seen[-1] / 1000 < 0.5 * expected_s

    def trace(self, trial: Trial, n_steps: int, cost: Cost) -> None:
        """One traced window of a trial; never used for times."""
        options = self._options
        assert options.trace_dir is not None
        name = "baseline" if trial.index == 0 else f"trial-{trial.index:02d}"
        suffix = f"-{len(trial.profiles) + 1}" if trial.profiles else ""
        own_loop = trial.index == 0 or (trial.place == "process" and not trial.switched.changed())
        request = WindowRequest(
            id=next(WINDOW_IDS),
            mode="profiled" if own_loop else "trial",
            n_steps=n_steps,
            limit_s=self._limit_s(cost.overhead_s + PROFILED_FACTOR * n_steps * cost.step_s),
            settings=None if own_loop else trial.switched,
            trace_path=str(options.trace_dir / f"{name}{suffix}.pt.trace.json.gz"),
            profiler=options.profiler,
        )
        failed = trial.status, trial.reason
        done = self._measure(request, trial if trial.place == "process" else None)
        trial.status, trial.reason = failed  # a trace that fails leaves its times as they are
        if done is None:
            return
        if usable(done) and done.trace_path:
            trial.profiles.append(done)
        else:
            text = f"trial {trial.index}: no trace ({done.reason or 'not recorded'})"
            self._outcome.notes.append(("no-trace", text))

    def _measure(self, request: WindowRequest, trial: Trial | None = None) -> WindowDone | None:
        """One window; a failed one is written to `trial`. Raises where nothing can follow."""
        died: str | None = None
        cause: RunError | None = None
        done: WindowDone | None = None
        try:
            if trial is not None and trial.place == "process":
                assert self._fresh is not None
                done = self._fresh.measure_trial(trial, request)
            else:
                done = next(
                    iter(self.script_run.measure([request], timeout_s=self._timeout_s)), None
                )
                died = took_down(done, self.script_run.ended) if done is not None else None
                done = None if died is not None else done
        except RunError as error:
            died, cause = str(error), error
        if done is None:
            ended = self.script_run.ended
            if ended is not None and ended.how == "script-ended":
                raise OverError("the script ended before the sweep did")
            if ended is not None and ended.how == "interrupted":
                raise KeyboardInterrupt
            died = died or _how(ended)
            if trial is not None and trial.index:
                trial.fail("failed", died)
            if self._reopen is None or trial is None:
                where = "" if trial is None else f"trial {trial.index}: "
                raise OverError(f"{where}{died.rstrip('.')}. {RERUN}") from cause
            began = self._clock()
            self.script_run = self._reopen()
            self.reopening_s += self._clock() - began
            return None
        if trial is not None and done.status in ("failed", "skipped"):
            reason = done.reason or "no reason given"
            if reason in (NOT_BEGUN, SCRIPT_ENDED):  # which says nothing of these settings
                raise OverError("the script ended before the sweep did")
            trial.fail("failed" if done.status == "failed" else "skipped", reason)
        return done


def _keeps_samples(trial: Trial) -> bool:
    """Whether it makes each sample once: of what is drawn at random that is another training."""
    return bool(trial.settings.cache or trial.settings.resident)


def _tensor_memory_due(trial: Trial) -> bool:
    """Once for each row that is about it: a step under the profiler."""
    if trial.row is None or not trial.row.tensor_memory:
        return False
    return all(v.window.tensor_peak_bytes is None for v in trial.measurements)


def _how(ended: Ended | None) -> str:
    if ended is None:
        return "the measuring process ended"
    if ended.reason is not None and ended.how != "script-ended":
        return f"the measuring process was {ended.reason}"
    return f"the measuring process ended with exit code {ended.exit_code}"


# Trials in a process of their own: each measurement starts the script again, and ends it.
#
# For what is decided when a process starts (start method, thread counts, options of the script),
# for what may take the process down, and to check figures from the running loop against. A process
# that fails is a result of its trial, never the end of the sweep.

# Beyond a window's own limit, until its process counts as hung: drop and warm-up of a slow loop.
SLACK_S = 30.0
# Opens a process of a script (None: the sweep's own), its loop warm. Raises RunError.
OpenFresh = Callable[[Script | None], AbstractContextManager[ScriptRunLike]]


class FreshRuns:
    """Measures each request in its own process."""

    def __init__(self, open_process: OpenFresh) -> None:
        self._open = open_process

    def measure_trial(self, trial: Trial, request: WindowRequest) -> WindowDone:
        """One window; `failed` where the process could not start, died or hung."""
        try:
            with self._open(trial.script) as script_run:
                observed = script_run.observed
                assert observed is not None
                _note_loop(trial, observed)
                timeout_s = None if request.limit_s is None else request.limit_s + SLACK_S
                done = next(iter(script_run.measure([request], timeout_s=timeout_s)), None)
                ended = script_run.ended
        except NoJobError as error:
            return msgspec.structs.replace(_failed(request, str(error)), status="skipped")
        except (RunError, TrainingBeganError) as error:
            return _failed(request, str(error))
        if ended is not None and ended.how == "interrupted":
            raise KeyboardInterrupt
        if done is None:
            return _failed(request, f"its process {_how_it_ended(ended)} before the window did")
        if (why := took_down(done, ended)) is not None:
            return _failed(request, why)
        if done.startup_ns is None and (startup_ns := _startup_ns(observed)) is not None:
            done = msgspec.structs.replace(done, startup_ns=startup_ns)
        return done


def _failed(request: WindowRequest, reason: str) -> WindowDone:
    return WindowDone(id=request.id, mode=request.mode, status="failed", reason=reason)


def _how_it_ended(ended: Ended | None) -> str:
    if ended is None:
        return "ended"
    return f"was {ended.reason}" if ended.reason else f"ended with exit code {ended.exit_code}"


def _note_loop(trial: Trial, observed: Observed) -> None:
    """The script's options may change its batch and its epoch."""
    train = observed.main_loader
    if train is None or trial.script is None:
        return
    own = own_settings(observed)
    trial.steps_per_epoch = epoch_steps(trial.switched, own, train.steps_per_epoch)
    batch_size = trial.switched.batch_size or train.batch_size
    if batch_size is not None:  # of each rank
        trial.samples_per_step = float(batch_size * trial.script.n_ranks)


def _startup_ns(observed: Observed) -> int | None:
    """From the first iterator's creation to its first batch, as the script itself met it."""
    first = next((b for b in observed.boundaries if b.first), None)
    return first.create_ns + first.first_wait_ns if first is not None else None
