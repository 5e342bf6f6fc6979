"""`loaderdoctor analyze TRACE…`: the attribution of traces we need not have recorded."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from loaderdoctor.attribution.combine import facts_of_trace
from loaderdoctor.attribution.judge import judge_trace
from loaderdoctor.attribution.trace_facts import Attributed, attribute, facts_of
from loaderdoctor.attribution.tracks import tracks
from loaderdoctor.commands.output import (
    ShareRule,
    check_json_target,
    deliver,
    exit_code,
    share_rules,
)
from loaderdoctor.commands.pictures import extras_of_trace
from loaderdoctor.errors import RunError, UsageError
from loaderdoctor.findings.rules import find
from loaderdoctor.report.build import build_report
from loaderdoctor.report.captures import Overlay, worker_name, write_capture
from loaderdoctor.report.console import console_text
from loaderdoctor.report.files import RunFolder, plain_name
from loaderdoctor.report.html.page import write_html
from loaderdoctor.report.model import Report, ReportWarning
from loaderdoctor.report.scalars import write_scalars
from loaderdoctor.report.tensorboard import BASELINE, write_plugin_trace
from loaderdoctor.trace.columns import Trace
from loaderdoctor.trace.read import read_trace


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyzeOptions:
    """What the command line asks for; nothing is written unless a target is given."""

    traces: tuple[Path, ...]
    output: Path | None = None
    json_target: str | None = None
    tensorboard: Path | None = None
    fail_on: tuple[str, ...] = ()


def analyze(options: AnalyzeOptions) -> int:
    """Report on each trace; the exit code of the worst. Raises UsageError for unreadable input."""
    rules = share_rules(options.fail_on)
    check_json_target(options.json_target)
    one_target = options.output or options.json_target or options.tensorboard
    if len(options.traces) > 1 and one_target:
        raise UsageError("--output, --json and --tensorboard take one trace at a time.")
    return max(_one(path, options, rules) for path in options.traces)


def report_of_trace(path: Path, attributed: Attributed) -> Report:
    """Judge, find, report."""
    in_trace = facts_of(attributed)
    facts = facts_of_trace(in_trace)
    bound, severity = judge_trace(in_trace)
    return build_report(
        facts=facts,
        target=str(path),
        bound=bound,
        severity=severity,
        findings=find(facts),
        warnings=_warnings(attributed.trace),
    )


def _one(path: Path, options: AnalyzeOptions, rules: tuple[ShareRule, ...]) -> int:
    attributed = attribute(read_trace(path))
    report = report_of_trace(path, attributed)
    added = Overlay.of(tracks(attributed))
    folder = None
    at = time.time()
    at_ns = int(at * 1e9)
    if options.output is not None:
        run = RunFolder.create(str(path), output=options.output, at=at)
        folder = run.path
        text = console_text(report, folder=folder)
        run.write_report(report, text)
        write_html(report, run, extras_of_trace(attributed))
        write_capture(run, BASELINE, path, at_ns=at_ns, overlay=added)
        write_scalars(report, run.tensorboard, console_text=text, at=at)
    if options.tensorboard is not None:
        capture = _new_capture(options.tensorboard, path)
        write_plugin_trace(
            path,
            capture / f"{worker_name()}.{at_ns}.pt.trace.json.gz",
            extra_waits=added.waits_outside_next,
        )
    deliver(report, json_target=options.json_target, folder=folder)
    return exit_code(report, rules)


def _new_capture(logdir: Path, trace: Path) -> Path:
    """A folder of its own below `logdir`: TensorBoard reads each run's folder once."""
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


def _warnings(trace: Trace) -> tuple[ReportWarning, ...]:
    if not trace.n_dropped_events:
        return ()
    text = f"{trace.n_dropped_events} malformed events of the trace were left out."
    return (ReportWarning(kind="malformed-events", text=text),)
