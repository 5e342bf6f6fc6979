"""What `loaderdoctor analyze` writes where it is asked to: a run folder, a TensorBoard capture."""

from __future__ import annotations

import time
from pathlib import Path

from loaderdoctor.attribution.pictures import tracks
from loaderdoctor.attribution.trace_facts import Attributed
from loaderdoctor.commands.analyze.trace_readers import progress
from loaderdoctor.commands.page_extras import extras_of_trace
from loaderdoctor.errors import RunError, UsageError
from loaderdoctor.report.console.page import console_text
from loaderdoctor.report.files import RunFolder, plain_name
from loaderdoctor.report.html.page import write_html
from loaderdoctor.report.model import Report
from loaderdoctor.report.traces.captures import Overlay, worker_name, write_capture
from loaderdoctor.report.traces.raw_trace import bytes_to_write
from loaderdoctor.report.traces.scalars import write_scalars
from loaderdoctor.report.traces.tensorboard import BASELINE, write_plugin_trace
from loaderdoctor.trace.source import BYTES_AT_LEAST, BYTES_PER_ROW_HELD
from loaderdoctor.units import NS_PER_S


def write_files(
    path: Path,
    attributed: Attributed,
    report: Report,
    *,
    output: Path | None,
    tensorboard: Path | None,
    max_memory_bytes: int | None = None,
) -> Path | None:
    """Write the run's folder below `output` and the plugin's trace below `tensorboard`.

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
