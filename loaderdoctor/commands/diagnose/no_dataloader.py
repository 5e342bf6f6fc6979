"""What `diagnose` says of a script that trains without a DataLoader: its trace, as `analyze` does.

The profiler can't tell the loop's own making of batches from its other work, so `input` is not
recorded; where the step goes otherwise, it can.
"""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from loaderdoctor import format as fmt
from loaderdoctor.attribution.loop_stacks import loop_line_facts
from loaderdoctor.attribution.trace_facts import Attributed, attribute, facts_of
from loaderdoctor.commands.analyze.command import report_of_facts
from loaderdoctor.instrument.command.endings import built_only
from loaderdoctor.instrument.wire.protocol import NoDataLoader
from loaderdoctor.report.files import RunFolder
from loaderdoctor.report.model import Report, ReportWarning
from loaderdoctor.trace.read import read_trace

KIND = "no-loader"


def report_without_dataloader(seen: NoDataLoader, target: str) -> tuple[Report, Attributed]:
    """The report of the profiled steps. Raises TraceError where they can't be read."""
    assert seen.trace_path is not None
    attributed = attribute(read_trace(Path(seen.trace_path)))
    steps = (
        f"a step here is one backward pass at {seen.site}, since one step of the optimizer holds "
        "too many of them to profile"
        if seen.of_passes
        else f"the steps are those of the optimizer at {seen.site}"
    )
    text = (
        f"No torch DataLoader was iterated: {steps}, and the loop makes its batches itself. What "
        "that costs is part of host (where it runs torch's operators on a CPU that also trains, of "
        "compute), and no settings were tried: batches made in a torch DataLoader could be "
        f"measured, prefetched and tuned.{built_only(seen)} Without the profiler, {seen.n_steps} "
        f"of these steps took {fmt.step_ms(seen.step_ms)} each; everything else here is "
        "from the profiled steps."
    )
    warnings = (ReportWarning(kind=KIND, text=text),)
    facts = facts_of(attributed)
    lines = loop_line_facts(
        [seen.stacks] if seen.stacks is not None else [], has_accelerator=facts.has_accelerator
    )
    report = report_of_facts(target, facts, warnings, loop_lines=lines, command="diagnose")
    what = "backward pass at" if seen.of_passes else "step of"
    step = replace(report.step, definition=f"one {what} {seen.site}")
    report = replace(report, step=step)
    if seen.reason is not None and report.verdict.bound == "unknown":
        summary = f"No verdict: only {fmt.count(step.count, 'step')} could be profiled, since "
        summary = f"{summary}{seen.reason}. Shorten the step (less data, a shorter sequence)."
        report = replace(report, verdict=replace(report.verdict, summary=summary))
    return report, attributed


def write_without_dataloader(
    folder: RunFolder, seen: NoDataLoader, report: Report, attributed: Attributed, *, at: float
) -> None:
    """Report, page, traces and scalars, as of any run."""
    from loaderdoctor.commands.analyze.files import write_into

    assert seen.trace_path is not None
    write_into(folder, Path(seen.trace_path), attributed, report, at=at)
