"""What `loaderdoctor analyze` writes where it is asked to: a run folder, a TensorBoard capture."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from loaderdoctor import format as fmt
from loaderdoctor.attribution.pictures import tracks
from loaderdoctor.attribution.trace_facts import Attributed
from loaderdoctor.commands.page_extras import extras_of_trace
from loaderdoctor.errors import RunError, UsageError
from loaderdoctor.report.console.page import console_text
from loaderdoctor.report.files import RunFolder, decode_report, plain_name
from loaderdoctor.report.html.page import write_html
from loaderdoctor.report.model import Report, ReportWarning
from loaderdoctor.report.traces.captures import Overlay, worker_name, write_capture
from loaderdoctor.report.traces.raw_trace import bytes_to_write
from loaderdoctor.report.traces.scalars import write_scalars
from loaderdoctor.report.traces.tensorboard import BASELINE, write_plugin_trace
from loaderdoctor.trace.source import BYTES_AT_LEAST, BYTES_PER_ROW_HELD
from loaderdoctor.tryout.answers import Elsewhere
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


# The run of ours that an analysed trace lies in, and what that run tried.

# Reports of large sweeps take a few MB; what is larger is none of ours.
MAX_REPORT_BYTES: Final = 64_000_000
_TRIAL = re.compile(r"trial-(\d{2,6})(?:\.|$)")


def run_of(trace: Path) -> tuple[Elsewhere | None, tuple[ReportWarning, ...]]:
    """What the run tried whose folder holds this trace: `RUN/perfetto/…`, `RUN/tensorboard/x/…`.

    None where it lies in no run of ours; a report there that can't be read is a warning.
    """
    path = trace.resolve()
    folder = next((f for f in _folders(path) if (f / "report.json").is_file()), None)
    if folder is None:
        return None, ()
    source = folder / "report.json"
    try:
        if source.stat().st_size > MAX_REPORT_BYTES:
            raise UsageError(f"{source}: too large for a report.")
        report = decode_report(source.read_bytes(), source=source)
    except (UsageError, OSError) as error:
        text = f"What the run of this trace tried is not known: {error}"
        return None, (ReportWarning(kind="run-not-read", text=text),)
    if report.command not in ("diagnose", "sweep"):
        return None, ()
    return _tried_by(report, path), ()


def _folders(path: Path) -> tuple[Path, ...]:
    """Run folders that would hold this file."""
    parents = path.parents
    if len(parents) > 1 and parents[0].name == "perfetto":
        return (parents[1],)
    if len(parents) > 2 and parents[1].name == "tensorboard":
        return (parents[2],)
    return ()


def _tried_by(report: Report, trace: Path) -> Elsewhere:
    main = next((x for x in report.loaders if x.role == "train"), None)
    return Elsewhere(
        trials=report.trials,
        recorded=_recorded(trace),
        command=report.command,
        own=dict(main.settings) if main is not None else {},
        target=report.target,
    )


def _recorded(trace: Path) -> int:
    """Index of the trial that a trace is of, by its place; 0 is the loop as it is."""
    name = trace.name if trace.parent.name == "perfetto" else trace.parent.name
    found = _TRIAL.match(name)
    return int(found[1]) if found is not None else 0


# How far the reading or writing of one large trace has come, on stderr where that is a terminal.
#
# Drawn by the work itself, not by a thread: next to threads a trace is not read in parts.

# Nothing is drawn for what is over by then; after it, a few times a second.
_SILENT_S = 1.0
_EVERY_S = 0.2
_BAR_WIDTH = 30

Told = Callable[[float], None]


@contextmanager
def progress(
    what: str, *, console: Console | None = None, clock: Callable[[], float] = time.monotonic
) -> Iterator[Told | None]:
    """Gives what is to be told the share done so far (0…1); None where nobody looks."""
    shown = console or Console(file=sys.stderr, markup=False)
    if not shown.is_terminal:
        yield None
        return
    live = Live(console=shown, transient=True, auto_refresh=False)
    began_s = drawn_s = clock()

    def told(share: float) -> None:
        nonlocal drawn_s
        now_s = clock()
        if now_s - began_s < _SILENT_S or now_s - drawn_s < _EVERY_S:
            return
        drawn_s = now_s
        live.start()
        row = Table.grid(padding=(0, 2))
        row.add_column(no_wrap=True, overflow="ellipsis")
        row.add_column()
        row.add_column(no_wrap=True)
        left_s = (now_s - began_s) * (1.0 - share) / share if share > 0 else None
        left = fmt.time_left(left_s) if left_s is not None else ""
        bar = ProgressBar(total=1.0, completed=share, width=_BAR_WIDTH)
        row.add_row(fmt.plain(what), bar, Text(left, style="dim"))
        live.update(row, refresh=True)

    try:
        yield told
    finally:
        live.stop()
