"""`loaderdoctor analyze TRACE…`: the attribution of traces we need not have recorded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from loaderdoctor.attribution.combine import facts_of_trace
from loaderdoctor.attribution.judge import judge_trace
from loaderdoctor.attribution.trace_facts import Attributed, attribute, facts_of
from loaderdoctor.commands.output import (
    ShareRule,
    check_json_target,
    deliver,
    exit_code,
    share_rules,
)
from loaderdoctor.errors import UsageError
from loaderdoctor.findings.rules import find
from loaderdoctor.report.build import build_report
from loaderdoctor.report.model import Report, ReportWarning
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
    folder = None
    if options.output is not None or options.tensorboard is not None:
        # Half of the time to start (tensorboard, jinja2, matplotlib), for what is seldom asked.
        from loaderdoctor.commands.analyze_files import write_files

        folder = write_files(
            path, attributed, report, output=options.output, tensorboard=options.tensorboard
        )
    deliver(report, json_target=options.json_target, folder=folder)
    return exit_code(report, rules)


def _warnings(trace: Trace) -> tuple[ReportWarning, ...]:
    if not trace.n_dropped_events:
        return ()
    text = f"{trace.n_dropped_events} malformed events of the trace were left out."
    return (ReportWarning(kind="malformed-events", text=text),)
