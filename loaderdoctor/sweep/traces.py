"""Raw traces of the trials -> what they say, and the files people open in the run folder.

One trace at a time: forty of them at once would not fit a small machine's memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from loaderdoctor.attribution.gpu import tensor_core_share
from loaderdoctor.attribution.timeline import timelines_of_window
from loaderdoctor.attribution.trace_facts import attribute, facts_of
from loaderdoctor.errors import LoaderdoctorError
from loaderdoctor.facts.pictures import StepTimeline
from loaderdoctor.facts.trace import TraceFacts
from loaderdoctor.instrument.wire.protocol import WindowDone
from loaderdoctor.instrument.wire.worker_log import WorkerLog
from loaderdoctor.report.files import RunFolder, trial_run
from loaderdoctor.report.traces.captures import Overlay, write_capture
from loaderdoctor.report.traces.tensorboard import BASELINE
from loaderdoctor.report.traces.worker_tracks import track_events
from loaderdoctor.trace.calibrate import calibrate
from loaderdoctor.trace.columns import Trace
from loaderdoctor.trace.read import read_trace
from loaderdoctor.tryout.outcome import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """A trial's first capture: what it says, and the plugin's file relative to the run folder."""

    facts: TraceFacts
    path: str
    steps: tuple[StepTimeline, ...] = ()  # for the pictures of report.html
    tensor_core_share: float | None = None  # of the time in kernels; None without any


def read_and_write(
    outcome: Outcome, folder: RunFolder, log: WorkerLog | None, *, own_workers: int | None
) -> dict[int, Traced]:
    """Every capture, by trial index; one that can't be read or written becomes a note.

    `own_workers` is what a trial has that leaves `num_workers` as it is.
    Further captures of the loop as it is (`--repeat`) are TensorBoard runs of their own.
    """
    found: dict[int, Traced] = {}
    for index, n_before, window, workers in _captures(outcome):
        run = trial_run(index) if index else BASELINE
        run += f"-{n_before + 1}" if n_before else ""
        try:
            traced = _one(window, run, folder, log, own_workers if workers is None else workers)
        except LoaderdoctorError as error:
            outcome.notes.append(("no-trace", f"trial {index}: {error}"))
        else:
            found.setdefault(index, traced)
    return found


def _captures(outcome: Outcome) -> Iterator[tuple[int, int, WindowDone, int | None]]:
    for trial in outcome.trials:
        for n_before, window in enumerate(trial.profiles):
            yield trial.index, n_before, window, trial.settings.num_workers


def _one(
    window: WindowDone, run: str, folder: RunFolder, log: WorkerLog | None, num_workers: int | None
) -> Traced:
    assert window.trace_path is not None
    source = Path(window.trace_path)
    trace = read_trace(source)
    path = write_capture(
        folder, run, source, at_ns=time.time_ns(), overlay=_tracks(trace, window, log)
    )
    attributed = attribute(trace)
    return Traced(
        facts=facts_of(attributed, num_workers=num_workers),
        path=str(path.relative_to(folder.path)),
        steps=timelines_of_window(attributed, window, log),
        tensor_core_share=tensor_core_share(trace),
    )


def _tracks(trace: Trace, window: WindowDone, log: WorkerLog | None) -> Overlay:
    """The workers' own records on the trace's clock, as lanes beside the profiler's."""
    if log is None or not window.clock_marks:
        return Overlay()
    return Overlay(worker_tracks=track_events(log, calibrate(trace, window.clock_marks), trace))
