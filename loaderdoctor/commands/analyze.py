"""`loaderdoctor analyze TRACE…`: the attribution of traces we need not have recorded."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from loaderdoctor.advice.trace_advice import trace_advice
from loaderdoctor.attribution import Attributed, attribute, facts_of
from loaderdoctor.attribution.combine import facts_of_trace
from loaderdoctor.attribution.cpu import shared_gpu_note
from loaderdoctor.attribution.ranks import compare, slowest, without_peer_wait
from loaderdoctor.attribution.verdict import judge_run
from loaderdoctor.commands.job_traces import (
    KEPT_BYTES,
    EngineName,
    Job,
    enforced,
    memory_limit,
    read_job,
    trace_reader,
    traces_in,
)
from loaderdoctor.commands.output import (
    ShareRule,
    check_target,
    deliver,
    exit_code,
    progress,
    share_rules,
)
from loaderdoctor.errors import LoaderdoctorError, UsageError
from loaderdoctor.facts import Facts
from loaderdoctor.facts.host import LoopLineFacts
from loaderdoctor.facts.loop import WallFacts
from loaderdoctor.facts.step import Bound, VerdictSeverity
from loaderdoctor.facts.trace import TraceFacts
from loaderdoctor.findings import Finding
from loaderdoctor.findings.rules import find
from loaderdoctor.format import plain
from loaderdoctor.report import decode_report
from loaderdoctor.report.build import Judged, RunNotes, Tried, build_report, rank_rows, step_of
from loaderdoctor.report.model import Recommendation, Report, ReportWarning
from loaderdoctor.trace import read_trace, with_events
from loaderdoctor.trace.columns import Trace
from loaderdoctor.tryout.answers import Elsewhere, advice_row, answered, not_tested

_GIVE = "Give what torch.profiler exported, a .json or .json.gz file."
# What no trace is called; files with other endings are read, whatever their name.
_OTHERS = {
    ".py": "a script, not a trace. To measure it: loaderdoctor diagnose {path}",
    ".ipynb": "a notebook, not a trace. Measure its loop where it runs, with `with "
    "loaderdoctor.watching():` around it.",
    ".pkl": f"a pickle, not a trace, and is not opened. {_GIVE}",
    ".pickle": f"a pickle, not a trace, and is not opened. {_GIVE}",
}
_OTHERS |= dict.fromkeys((".pt", ".pth", ".ckpt"), f"a model's weights, not a trace. {_GIVE}")
_OTHERS |= dict.fromkeys(
    (".nsys-rep", ".qdrep", ".sqlite", ".ncu-rep"),
    f"a recording of NVIDIA's tools, not a trace of torch.profiler. {_GIVE}",
)
_OTHERS |= dict.fromkeys(
    (".pftrace", ".perfetto-trace"), f"Perfetto's own format, not the JSON it also shows. {_GIVE}"
)
_OTHERS |= dict.fromkeys((".sh", ".bash", ".slurm"), f"a shell script, not a trace. {_GIVE}")
_OTHERS |= dict.fromkeys((".yaml", ".yml", ".toml"), f"a configuration, not a trace. {_GIVE}")
# Of `diagnose` itself, which has its trace alone.
UNTRIED = "not tested: without a DataLoader nothing is tried"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyzeOptions:
    """What the command line asks for; nothing is written unless a target is given."""

    traces: tuple[Path, ...]
    output: Path | None = None
    json_target: str | None = None
    verbose: bool = False
    tensorboard: Path | None = None
    fail_on: tuple[str, ...] = ()
    engine: EngineName = "local"
    ray_address: str | None = None
    max_memory: str | None = None  # as written: "4GB"


def analyze(options: AnalyzeOptions) -> int:
    """Report on a trace, or on the ranks of a job together; the exit code of the worst.

    A folder is a job, and so are several traces that state different ranks; other traces are
    reported one by one. Raises UsageError for unreadable input.
    """
    rules = share_rules(options.fail_on)
    check_target("--json", options.json_target)
    for path in options.traces:
        check_trace(path)
    is_folder = any(path.is_dir() for path in options.traces)
    paths = tuple(
        found
        for path in options.traces
        for found in (traces_in(path) if path.is_dir() else (path,))
    )
    memory = memory_limit(options.max_memory)
    with enforced(memory, paths):
        return _analyze(paths, is_folder, options, rules, memory)


def _analyze(
    paths: tuple[Path, ...],
    is_folder: bool,
    options: AnalyzeOptions,
    rules: tuple[ShareRule, ...],
    memory: int,
) -> int:
    if len(paths) == 1:
        return _one(paths[0], options, rules, memory)
    job = read_job(paths, trace_reader(options.engine, options.ray_address, memory))
    if is_folder and len(job.traces) == 1:
        return _one(Path(job.traces[0].source), options, rules, memory, _unread(job))
    if is_folder or job.numbered:
        label = ", ".join(map(str, options.traces))
        return _job(label if is_folder else f"{len(paths)} traces", job, options, rules, memory)
    if options.output or options.json_target or options.tensorboard:
        raise UsageError("--output, --json and --tensorboard take one trace or one job at a time.")
    return max(_one_of_several(path, options, rules, memory) for path in paths)


def _one_of_several(
    path: Path, options: AnalyzeOptions, rules: tuple[ShareRule, ...], memory: int
) -> int:
    """One that can't be read keeps none of the others from being reported."""
    try:
        return _one(path, options, rules, memory)
    except LoaderdoctorError as error:
        sys.stderr.write(f"loaderdoctor: {plain(str(error))}\n")
        return error.exit_code


def report_of_facts(
    target: str,
    facts: TraceFacts,
    warnings: tuple[ReportWarning, ...],
    elsewhere: Elsewhere | None = None,
    loop_lines: LoopLineFacts | None = None,
    wall: WallFacts | None = None,
    command: Literal["analyze", "diagnose"] = "analyze",
) -> Report:
    """Judge, find, report: one trace. `elsewhere`: what the run tried that it was recorded in.

    `loop_lines`: of the same loop, where its stack was sampled too; `wall`: what was timed between
    its steps. `command` asked for it.
    """
    of_trace = replace(facts_of_trace(facts), loop_lines=loop_lines, wall=wall, command=command)
    if facts.shared_gpu:
        text = shared_gpu_note(facts)
        warnings = (*warnings, ReportWarning(kind="shared-gpu", text=text))
    return _report(target, of_trace, elsewhere, RunNotes(warnings=warnings))


def _report(target: str, facts: Facts, elsewhere: Elsewhere | None, notes: RunNotes) -> Report:
    bound, severity = judge_run(facts)
    findings = answered(find(facts), facts, elsewhere=elsewhere)
    return build_report(
        facts,
        target=target,
        judged=Judged(bound=bound, severity=severity, findings=findings),
        tried=Tried(recommendations=_advised(facts, findings, bound, severity, elsewhere)),
        notes=notes,
    )


def _advised(
    facts: Facts,
    findings: Sequence[Finding],
    bound: Bound,
    severity: VerdictSeverity,
    elsewhere: Elsewhere | None,
) -> tuple[Recommendation, ...]:
    """What the trace suggests; nothing where its own run has tried, and says what came of it."""
    if elsewhere is not None and len(elsewhere.trials) > 1:
        return ()
    here = facts.command == "diagnose"
    return tuple(
        advice_row(
            way,
            facts.step_ms,
            untested=UNTRIED if here else not_tested(elsewhere, tries=way.axis is not None),
        )
        for way in trace_advice(facts, findings, bound, severity)
    )


def report_of_job(target: str, job: Job) -> tuple[Report, Path]:
    """Judge, find, report: the rank the others wait for, next to them. Returns its trace too."""
    ranks = compare(job.traces, job.ranks)
    slow = slowest(ranks)
    trace = job.traces[ranks.index(slow)]
    in_trace = without_peer_wait(trace.facts, slow.peer_wait_ms)
    facts = replace(facts_of_trace(in_trace), ranks=ranks)
    elsewhere, unread = run_of(Path(trace.source))
    warnings = _job_warnings(job, all(r.peer_wait_ms is None for r in ranks))
    notes = RunNotes(
        warnings=(*warnings, *unread), ranks=rank_rows(ranks, step_of(facts).definition)
    )
    return _report(target, facts, elsewhere, notes), Path(trace.source)


def _read(path: Path, memory: int) -> Trace:
    with progress(f"Reading {path.name}") as told:
        return read_trace(path, max_memory_bytes=memory, kept_bytes=KEPT_BYTES, on_share=told)


def _one(
    path: Path,
    options: AnalyzeOptions,
    rules: tuple[ShareRule, ...],
    memory: int,
    of_folder: tuple[ReportWarning, ...] = (),
) -> int:
    trace = _read(path, memory)
    attributed = attribute(with_events(trace))
    left_out = _left_out(
        n_later=trace.n_later_events,
        n_malformed=attributed.trace.n_dropped_events,
        n_others=attributed.n_other_processes,
    )
    elsewhere, unread = run_of(path)
    facts = facts_of(attributed, recorded_here=elsewhere is not None)
    report = report_of_facts(str(path), facts, (*left_out, *of_folder, *unread), elsewhere)
    return _deliver(path, attributed, report, options, rules, memory)


def _job(
    target: str, job: Job, options: AnalyzeOptions, rules: tuple[ShareRule, ...], memory: int
) -> int:
    report, slow = report_of_job(target, job)
    attributed = None
    if options.output is not None or options.tensorboard is not None:
        attributed = attribute(_read(slow, memory))
    return _deliver(slow, attributed, report, options, rules, memory)


def _deliver(
    path: Path,
    attributed: Attributed | None,
    report: Report,
    options: AnalyzeOptions,
    rules: tuple[ShareRule, ...],
    memory: int,
) -> int:
    folder = None
    if attributed is not None and (options.output is not None or options.tensorboard is not None):
        # Half of the time to start (tensorboard, jinja2, matplotlib), for what is seldom asked.
        from loaderdoctor.commands.run_folder import write_files

        folder = write_files(
            path,
            attributed,
            report,
            output=options.output,
            tensorboard=options.tensorboard,
            max_memory_bytes=memory,
        )
    deliver(report, json_target=options.json_target, folder=folder, verbose=options.verbose)
    return exit_code(report, rules)


def _left_out(*, n_later: int, n_malformed: int, n_others: int) -> Iterator[ReportWarning]:
    """What the report leaves out: later events, malformed ones, and other training processes."""
    if n_later:
        text = (
            f"The trace is large: the report is of its first part in time. {n_later:,} events that "
            f"begin later were left out, so that it takes no more than {KEPT_BYTES / 1e9:.0f} GB "
            "of memory."
        )
        yield ReportWarning(kind="part-of-trace", text=text)
    if n_malformed:
        text = f"{n_malformed} malformed events of the trace were left out."
        yield ReportWarning(kind="malformed-events", text=text)
    if n_others:
        text = (
            f"Traces of {n_others + 1} training processes were merged into this file; the report "
            "is about one of them, as far as they can be told apart. Analyze the folder of the "
            "traces they were merged from."
        )
        yield ReportWarning(kind="processes-left-out", text=text)


def _job_warnings(job: Job, unmatched: bool) -> tuple[ReportWarning, ...]:
    said = [
        *_left_out(
            n_later=max((trace.n_later_events for trace in job.traces), default=0),
            n_malformed=sum(trace.n_malformed for trace in job.traces),
            n_others=max((trace.n_other_processes for trace in job.traces), default=0),
        )
    ]
    said += _unread(job)
    if unmatched and len(job.traces) > 1:
        text = (
            "Too few collectives were found that the traces share, so what ranks wait for one "
            "another is not known; the report's first part is of the rank with the longest step."
        )
        said.append(ReportWarning(kind="ranks-not-matched", text=text))
    return tuple(said)


def _unread(job: Job) -> tuple[ReportWarning, ...]:
    """What is missing beside the traces of this job that are reported."""
    said = [ReportWarning(kind="rank-not-read", text=text) for text in job.problems]
    said += [ReportWarning(kind="captures-left-out", text=text) for text in job.left_out]
    n_ranks = max((trace.n_ranks or 0 for trace in job.traces), default=0)
    if n_ranks > len(job.traces):
        text = (
            f"{len(job.traces)} of the job's {n_ranks} ranks are here; its slowest may be missing."
        )
        said.append(ReportWarning(kind="ranks-missing", text=text))
    return tuple(said)


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


def check_trace(path: Path) -> None:
    """Raise UsageError where the name says that this file is something else."""
    said = _OTHERS.get(path.suffix)
    if said is not None and path.is_file():
        raise UsageError(f"{path}: {said.format(path=path)}")
