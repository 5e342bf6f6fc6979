"""Raw traces of the trials -> the run folder: whole for Perfetto, and as TensorBoard's plugin."""

from __future__ import annotations

import platform
import time
from pathlib import Path

from loaderdoctor.errors import TraceError
from loaderdoctor.report.files import RunFolder, trial_run
from loaderdoctor.report.perfetto import write_perfetto_trace
from loaderdoctor.report.tensorboard import BASELINE, write_plugin_trace
from loaderdoctor.sweep.outcome import Outcome
from loaderdoctor.sweep.trials import Trial


def write_traces(outcome: Outcome, folder: RunFolder) -> dict[int, str]:
    """Every trial's traces; the plugin's, relative to the run folder, by trial index.

    Of several captures of the loop as it is, each is a span of the same TensorBoard run.
    """
    written: dict[int, str] = {}
    for trial in outcome.trials:
        for window in reversed(trial.profiles):  # the first capture's path is the one kept
            assert window.trace_path is not None
            try:
                path = _write(trial, Path(window.trace_path), folder)
            except TraceError as error:
                outcome.notes.append(("no-trace", f"trial {trial.index}: {error}"))
                continue
            written[trial.index] = str(path.relative_to(folder.path))
    return written


def _write(trial: Trial, source: Path, folder: RunFolder) -> Path:
    run = trial_run(trial.index) if trial.index else BASELINE
    write_perfetto_trace(source, folder.perfetto_trace(source.name.partition(".")[0]))
    target = folder.plugin_trace(run, worker=f"{platform.node()}_0", at_ns=time.time_ns())
    write_plugin_trace(source, target)
    return target
