"""What commands write into a run folder, and what only its page shows, taken from attribution.

Commands import this only when they write: TensorBoard's and Jinja's packages, a quarter of all that
`diagnose` loads, would keep the script from starting.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

from loaderdoctor.attribution import Attributed, attribute
from loaderdoctor.attribution.pictures import sample_times, tracks, waits_of_trace, waits_of_windows
from loaderdoctor.attribution.step import usable
from loaderdoctor.attribution.timeline import step_timelines, timelines_of_window
from loaderdoctor.commands.output import progress
from loaderdoctor.diagnosis import Diagnosis
from loaderdoctor.diagnosis.analysis import Analysis, overlay
from loaderdoctor.diagnosis.gather import Advised
from loaderdoctor.errors import LoaderdoctorError, RunError, UsageError
from loaderdoctor.facts.step import SampleTimes, StepTimeline
from loaderdoctor.instrument.wire.protocol import Observed, WindowDone
from loaderdoctor.instrument.wire.worker_log import WorkerLog
from loaderdoctor.report import RunFolder, plain_name
from loaderdoctor.report.charts import Prediction
from loaderdoctor.report.charts.figures import HtmlExtras, TracedSteps
from loaderdoctor.report.console import console_text
from loaderdoctor.report.html import write_html
from loaderdoctor.report.model import Report
from loaderdoctor.report.traces import Overlay, worker_name, write_capture
from loaderdoctor.report.traces.raw_trace import bytes_to_write
from loaderdoctor.report.traces.scalars import write_scalars
from loaderdoctor.report.traces.tensorboard import BASELINE, RANKS, write_plugin_trace
from loaderdoctor.report.words.changes import changes_of
from loaderdoctor.sweep.evidence import SweepEvidence
from loaderdoctor.trace import read_trace
from loaderdoctor.trace.source import BYTES_AT_LEAST, BYTES_PER_ROW_HELD
from loaderdoctor.tryout.ablating import LoopEvidence
from loaderdoctor.units import NS_PER_S


def extras_of_trace(attributed: Attributed) -> HtmlExtras:
    """Of `analyze`: what the trace alone shows."""
    return HtmlExtras(
        made_at=time.time(),
        traced=_traced(step_timelines(attributed)),
        waits=waits_of_trace(attributed),
    )


def extras_of_diagnosis(
    report: Report,
    evidence: LoopEvidence | None,
    analysis: Analysis | None,
    advised: Advised | None = None,
) -> HtmlExtras:
    """Of `diagnose`: the profiled window with the workers in it, plain waits, predictions.

    And a step of the window with what is advised, where that was traced.
    """
    if evidence is None or analysis is None:
        return HtmlExtras(made_at=time.time())
    plain = evidence.steady
    steps: tuple[StepTimeline, ...] = ()
    if analysis.attributed is not None and evidence.profiled is not None:
        steps = timelines_of_window(analysis.attributed, evidence.profiled, analysis.log)
    return HtmlExtras(
        made_at=time.time(),
        traced=_traced(steps),
        advised=_advised(report, advised, analysis.log),
        waits=waits_of_windows(evidence.observed, plain),
        samples=_samples(analysis.log, plain, evidence.observed),
        predictions=tuple(_predictions(report, analysis)),
    )


def extras_of_sweep(report: Report, evidence: SweepEvidence) -> HtmlExtras:
    """Of `sweep`: steps of the loop as it is and of the best trial, and the loop's own waits."""
    outcome = evidence.sweep.outcome if evidence.sweep is not None else None
    plain = [w for w in outcome.plain if usable(w)] if outcome is not None else []
    best = report.best.trial if report.best is not None else 0
    own, other = (
        TracedSteps(label=report.trials[i].label, steps=evidence.traces[i].steps[:1])
        if i in evidence.traces and evidence.traces[i].steps
        else None
        for i in (0, best)
    )
    return HtmlExtras(
        made_at=time.time(),
        traced=(own,) if own is not None else (),
        advised=other if best else None,
        waits=waits_of_windows(evidence.observed, plain),
        samples=_samples(evidence.log, plain, evidence.observed),
    )


def _advised(report: Report, advised: Advised | None, log: WorkerLog | None) -> TracedSteps | None:
    """The winner's step, where it is the change that the report speaks of."""
    first = next(iter(changes_of(report.recommendations)), None)
    if advised is None or first is None or first.measured_ms is None:
        return None
    changed = advised.settings.changed()
    if any(changed.get(row.setting) != row.to for row in first.rows):
        return None
    steps = advised.steps(log)[:1]
    return TracedSteps(label=first.words(), steps=steps) if steps else None


def _traced(steps: tuple[StepTimeline, ...]) -> tuple[TracedSteps, ...]:
    return (TracedSteps(label=None, steps=steps),) if steps else ()


def _samples(
    log: WorkerLog | None, plain: list[WindowDone], observed: Observed
) -> SampleTimes | None:
    if log is None or not plain:
        return None
    window = max(plain, key=lambda w: w.end_ns - w.start_ns)
    return sample_times(
        log,
        window.start_ns,
        window.end_ns,
        fetches=window.fetches,
        loaders=observed.loaders,
    )


def _predictions(report: Report, analysis: Analysis) -> Iterator[Prediction]:
    """Candidates that a trial measured, in the order tried."""
    predicted = {
        c.settings.label(): c.predicted_step_ms
        for c in analysis.prescription.candidates
        if c.predicted_step_ms is not None
    }
    for trial in report.trials:
        expected = predicted.get(trial.label)
        if expected is not None and trial.step_ms is not None and trial.settings != {}:
            yield Prediction(
                label=trial.label,
                predicted_ms=expected,
                measured_ms=trial.step_ms,
                measured_ci_ms=trial.step_ms_ci,
            )


def write_run(folder: RunFolder, diagnosis: Diagnosis, report: Report, *, at: float) -> None:
    """Report, page, traces and scalars of a run that began at `at` (seconds since the epoch)."""
    text = console_text(report, folder=folder.path)
    folder.write_report(report, text)
    _write_traces(folder, diagnosis, at_ns=int(at * NS_PER_S))
    write_scalars(report, folder.tensorboard, console_text=text, at=at)
    extras = extras_of_diagnosis(report, diagnosis.shown, diagnosis.analysis, diagnosis.advised)
    write_html(report, folder, extras)


def _write_traces(folder: RunFolder, diagnosis: Diagnosis, *, at_ns: int) -> None:
    """Both files of the profiled window, and of every rank's where there are several.

    Of a trace that can't be read a line says so.
    """
    shown, analysis, group = diagnosis.shown, diagnosis.analysis, diagnosis.group
    if shown is None or analysis is None or analysis.attributed is None:
        return
    profiled = shown.profiled
    assert profiled is not None
    assert profiled.trace_path is not None
    try:
        added = overlay(analysis, profiled)
        write_capture(folder, BASELINE, Path(profiled.trace_path), at_ns=at_ns, overlay=added)
        for rank, path in group.traces.items() if group is not None else ():
            added = Overlay.of(tracks(attribute(read_trace(path))))
            write_capture(folder, RANKS, path, at_ns=at_ns, overlay=added, rank=rank)
    except LoaderdoctorError as error:
        sys.stderr.write(f"loaderdoctor: the traces were not written: {error}\n")


def write_files(
    path: Path,
    attributed: Attributed,
    report: Report,
    *,
    output: Path | None,
    tensorboard: Path | None,
    max_memory_bytes: int | None = None,
) -> Path | None:
    """What `loaderdoctor analyze` writes where it is asked to.

    The run's folder below `output` and the plugin's trace below `tensorboard`.

    Returns the run's folder, None where only a capture was asked for. Raises UsageError, before
    anything is written, for a trace that takes more memory to be written than is allowed.
    """
    if max_memory_bytes is not None:
        _check_memory(path, attributed, max_memory_bytes)
    folder = None
    at = time.time()
    if output is not None:
        run = RunFolder.create(str(path), output=output, at=at)
        folder = run.path
        write_into(run, path, attributed, report, at=at)
    if tensorboard is not None:
        added = Overlay.of(tracks(attributed))
        capture = _new_capture(tensorboard, path)
        with progress("Writing for TensorBoard") as told:
            write_plugin_trace(
                path,
                capture / f"{worker_name()}.{int(at * NS_PER_S)}.pt.trace.json.gz",
                extra_waits=added.waits_outside_next,
                on_share=told,
            )
    return folder


def write_into(
    run: RunFolder, path: Path, attributed: Attributed, report: Report, *, at: float
) -> None:
    """Report, page, traces and scalars of the trace at `path`; `at`: seconds since the epoch."""
    text = console_text(report, folder=run.path)
    run.write_report(report, text)
    write_html(report, run, extras_of_trace(attributed))
    added = Overlay.of(tracks(attributed))
    with progress("Writing traces") as told:
        write_capture(run, BASELINE, path, at_ns=int(at * NS_PER_S), overlay=added, on_share=told)
    write_scalars(report, run.tensorboard, console_text=text, at=at)


def _check_memory(path: Path, attributed: Attributed, max_memory_bytes: int) -> None:
    """Reading keeps a few columns; to be written again a trace is held as text, flows and all."""
    trace = attributed.trace
    held = BYTES_AT_LEAST + len(trace.spans) * BYTES_PER_ROW_HELD
    needed = held + bytes_to_write(trace.text)
    if needed > max_memory_bytes:
        raise UsageError(
            f"{path}: needs {needed / 1e6:,.0f} MB of memory to be written again, the limit is "
            f"{max_memory_bytes / 1e6:,.0f} MB. Analyze it without --output and --tensorboard, or "
            "allow more with --max-memory."
        )


def _new_capture(logdir: Path, trace: Path) -> Path:
    """A new folder below `logdir`: TensorBoard reads each run's folder once."""
    name = plain_name(trace.name.partition(".")[0])
    for suffix in ("", *(f"-{n}" for n in range(2, 1000))):
        folder = logdir / f"{name}{suffix}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise RunError(f"{folder}: can't be made ({error.strerror or error}).") from None
        return folder
    raise UsageError(f"{logdir}: holds a thousand runs named {name}. Name another folder.")
