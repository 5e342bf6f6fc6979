"""One traced window with what is advised, to be shown next to a step of the loop as it is.

It explains and never ranks: no time is taken from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from loaderdoctor.attribution.step import usable
from loaderdoctor.attribution.timeline import timelines_of_window
from loaderdoctor.attribution.trace_facts import attribute
from loaderdoctor.diagnosis.verify import Verification
from loaderdoctor.errors import LoaderdoctorError, RunError
from loaderdoctor.facts.pictures import StepTimeline
from loaderdoctor.instrument.command.launched_run import ScriptRunLike
from loaderdoctor.instrument.wire.protocol import (
    WINDOW_IDS,
    ProfilerSchedule,
    WindowDone,
    WindowRequest,
)
from loaderdoctor.instrument.wire.worker_log import WorkerLog
from loaderdoctor.settings import Settings
from loaderdoctor.trace.read import read_trace
from loaderdoctor.tryout.measuring import PROFILED_FACTOR
from loaderdoctor.tryout.windows import slow_start_s

NAME = "advised.pt.trace.json.gz"
# One step is shown: a few more make it a typical one, and two batches of each worker a steady one.
MIN_STEPS = 8
# A window that is not certain to end in time is not begun: opening the trial and the profiler's
# start took up to 2 s in the tests' loops, on two cores.
OVERHEAD_S = 2.0
# Kept back from the trials for it: of the usual budget of 45 s not a tenth.
KEPT_BACK_S = 4.0
KEPT_BACK_SHARE = 0.1


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
    n_steps = max(MIN_STEPS, 2 * (settings.num_workers or 0))
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
        trace_path=str(folder / NAME),
        profiler=profiler,
    )
    try:
        done = next(iter(script_run.measure([request])), None)
    except RunError:
        return None  # what ended says so itself
    if done is None or not usable(done) or not done.trace_path:
        return None
    return Advised(settings=settings, window=done)
