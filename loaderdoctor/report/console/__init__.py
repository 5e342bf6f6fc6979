"""The report on a terminal: verdict first, evidence next, method last.

`BriefPage` is that on one screen: what is wrong, how sure that is, what to do and what it gains.
Where a screen is too long (several ranks, a doubt, long findings), what the verdict says already
goes first. Colour only repeats what a word or glyph says, so pipes and NO_COLOR lose nothing. Text
of the user's is never read as markup and can't steer the terminal.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from loaderdoctor import format as fmt
from loaderdoctor.findings import Kind
from loaderdoctor.format import plain
from loaderdoctor.report.console.renderables import Capped, Legible
from loaderdoctor.report.console.sections import (
    PROSE_WIDTH,
    ablation,
    change_lines,
    change_outline,
    finding_head,
    findings,
    gpu_lines,
    idea_lines,
    indented,
    prescription_lines,
    ranges_table,
    section,
    step,
    verdict,
    workers,
)
from loaderdoctor.report.console.tables import (
    claims_table,
    machines_table,
    preset_tables,
    ranks_table,
    trials_table,
    whole_run,
)
from loaderdoctor.report.model import Finding, Report
from loaderdoctor.report.words import is_outside
from loaderdoctor.report.words.changes import (
    IDEAS,
    IN_THE_STEP,
    leader_not_advised,
    nothing_is_advised,
)
from loaderdoctor.report.words.first_screen import (
    causes,
    changes_and_ideas,
    other_loader_sentences,
    shortened,
)
from loaderdoctor.report.words.summary import names_cause
from loaderdoctor.report.words.whole_run import meaning
from loaderdoctor.setting_words import heading


def render_report(
    report: Report, *, folder: Path | None = None, brief: bool = False
) -> RenderableType:
    """The whole report; `folder` is the run folder that holds the files, where there is one.

    Brief: the answer and what carries it, for a terminal. The rest is in the folder's files.
    """
    if brief:
        return Legible(BriefPage(report, folder))
    return Legible(Group(*(x for x in _sections(report, folder) if x is not None)))


def console_text(
    report: Report, *, width: int = 100, folder: Path | None = None, brief: bool = False
) -> str:
    """The report as plain text: what console.txt holds, or the brief one."""
    console = Console(
        file=io.StringIO(),
        width=width,
        color_system=None,
        force_terminal=False,
        legacy_windows=False,
        markup=False,
    )
    console.print(render_report(report, folder=folder, brief=brief))
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"


def _sections(report: Report, folder: Path | None) -> Iterator[RenderableType | None]:
    yield verdict(report)
    yield step(report)
    yield whole_run(report)
    yield ablation(report)
    yield findings(report.findings)
    prescription, ideas = prescription_lines(report), idea_lines(report)
    titles = (IN_THE_STEP, "What to change") if is_outside(report) else ("What to change", IDEAS)
    both = [(titles[0], prescription), (titles[1], ideas)]
    for title, lines in reversed(both) if is_outside(report) else both:
        yield section(title, *lines) if lines else None
    yield _listed("Not advised", [(heading(w.setting), w.reason) for w in report.not_advised])
    yield workers(report.workers, other_loader_sentences(report))
    gpu = list(gpu_lines(report.gpu, report.memory_history))
    yield section("The GPU", *map(Text, gpu)) if gpu else None
    if report.ranges:
        yield section("Your record_function ranges", ranges_table(report))
    if any(trial.row is not None for trial in report.trials):
        yield section("Trials, as published", preset_tables(report), cap=None)
    elif report.trials:
        yield section("Trials, fastest first", trials_table(report), cap=None)
    if report.cluster is not None:
        yield section("Machines", machines_table(report.cluster))
    if report.ranks:
        yield section("Ranks", ranks_table(report.ranks))
    if report.claims:
        yield section("Published claims", claims_table(report.claims), cap=None)
    yield _listed("Warnings", [(w.kind, w.text) for w in report.warnings])
    yield _method(report)
    if folder is not None:
        yield _files(folder)


def _listed(title: str, entries: Sequence[tuple[str, str]]) -> RenderableType | None:
    if not entries:
        return None
    lines = [Text.assemble((plain(name), "bold"), f": {plain(text)}") for name, text in entries]
    return section(title, *lines)


def _method(report: Report) -> RenderableType | None:
    if not report.method:
        return None
    lines = [Text(plain(sentence), style="bright_black") for sentence in report.method]
    device = report.environment.get("device_name")
    cpus = report.environment.get("usable_cpus")
    if report.environment:
        machine = f"{plain(str(device or 'no accelerator'))}, {fmt.cpus(cpus)} usable CPUs, "
        machine += f"torch {plain(str(report.environment.get('torch')))}."
        lines.append(Text("Machine: " + machine, style="bright_black"))
    return section("How it was measured", *lines)


def _files(folder: Path) -> RenderableType:
    name = plain(str(folder))
    return section(
        "Files",
        Text(name, overflow="fold"),
        Text(f"loaderdoctor view {name}", style="cyan", overflow="fold"),
    )


# More findings, and more changes, than these are counted.
_FINDINGS = 3
_CHANGES = 3
_IDEAS = 2
_TRIALS = 10  # of a sweep: the fastest, and the loop as it is


# A screen that is read at a glance; a sweep's table was asked for and has its place besides.
SCREEN_LINES = 40
_SWEEP_LINES = 60
# Warnings of an option that had no effect: who asked for it is told on the first screen.
_WITHOUT_EFFECT = ("memory-history",)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Detail:
    """How much of it is said: the defaults are all."""

    told_causes: bool = True  # in a sentence of their own too, if the verdict names them
    what_if: bool = True  # as bars: the verdict has the first of their figures
    roomy: bool = True  # a line for each part of the step, and advice for smaller findings
    findings: bool = True  # in sentences, not by name alone
    others: bool = True  # changes and ideas next to the first, not their number alone


# Tried in this order until the screen is no longer than it may be: what goes without saying first.
_GOES = ("told_causes", "what_if", "roomy", "findings", "others")
_DETAILS = [_Detail(**dict.fromkeys(_GOES[:n], False)) for n in range(len(_GOES) + 1)]


@dataclass(frozen=True, slots=True)
class BriefPage:
    """The first screen, in as much detail as it has lines for."""

    report: Report
    folder: Path | None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        most = _SWEEP_LINES if self.report.trials and _is_sweep(self.report) else SCREEN_LINES
        for detail in _DETAILS:
            sections = _brief_sections(self.report, self.folder, detail)
            page = Group(*(section for section in sections if section is not None))
            if len(console.render_lines(page, options, pad=False)) <= most:
                break
        yield page


def _is_sweep(report: Report) -> bool:
    return report.command == "sweep"


def _brief_sections(
    report: Report, folder: Path | None, detail: _Detail
) -> Iterator[RenderableType | None]:
    """In the order in which they are read; None: nothing to say."""
    published = any(trial.row is not None for trial in report.trials)
    yield verdict(report)
    if published:  # its rows and claims are what was asked
        yield section("Trials, as published", preset_tables(report), cap=None)
    else:
        yield step(report, brief=True, roomy=detail.roomy)
        yield whole_run(report, brief=True)
        if detail.what_if and not is_outside(report):
            yield ablation(report, brief=True)
    if report.trials and _is_sweep(report) and not published:
        yield section("Trials, fastest first", trials_table(report, most=_TRIALS), cap=None)
    if report.claims:
        yield section("Published claims", claims_table(report.claims), cap=None)
    if report.ranks:
        yield section("Ranks", ranks_table(report.ranks))
    if not published:
        yield _findings(report, detail)
    if not published or report.recommendations:  # of which the first lines speak
        yield from _what_to_change(report, detail)
    yield _end(report, folder)


def _what_to_change(report: Report, detail: _Detail) -> Iterator[RenderableType | None]:
    """First what the verdict speaks of: outside the steps, that is no setting of the loader."""
    changes, ideas = list(_changes(report, detail)), idea_lines(report, most=_IDEAS)
    if changes and not detail.others and not is_outside(report):
        ideas = []
    if is_outside(report):
        yield section("What to change", *ideas) if ideas else None
        yield section(IN_THE_STEP, *changes) if changes else None
    else:
        yield section("What to change", *changes) if changes else None
        yield section(IDEAS, *ideas) if ideas else None


def _findings(report: Report, detail: _Detail) -> RenderableType | None:
    found = causes(report.findings)
    if not found:
        return None
    known = [cause for cause in found if cause.first.severity != "uncertain"]
    n_left_out = len(found) - len(known[:_FINDINGS] or found[:1])
    found = tuple(known[:_FINDINGS] or found[:1])
    body: list[RenderableType] = []
    for i, cause in enumerate(found):
        body.append(finding_head(cause.first))
        # Where most lies outside, the verdict was written from that finding, figures and all.
        told = (is_outside(report) and cause.first.kind == Kind.TIME_OUTSIDE_STEPS.value) or (
            not detail.told_causes and names_cause(report.verdict.summary, cause.first)
        )
        summary = shortened(cause.first.summary)
        if detail.findings and not told and not _is_said(summary, report):
            body.append(indented(Text(plain(summary))))
        if cause.aspects:
            kinds = ", ".join(aspect.kind for aspect in cause.aspects)
            body.append(indented(Text(f"the same time seen as: {plain(kinds)}")))
        # What to change says that of the verdict's own cause.
        if (i or not _is_answer(cause.first, report)) and cause.first.advice and detail.roomy:
            advice = shortened(cause.first.advice, most=0)
            body.append(indented(Text.assemble(("→ ", "bold"), plain(advice))))
    if n_left_out:
        body.append(Text(f"and {n_left_out} smaller, or not certain", style="bright_black"))
    return section("Findings", *body)


def _is_said(summary: str, report: Report) -> bool:
    return summary in report.verdict.summary


def _changes(report: Report, detail: _Detail) -> Iterator[RenderableType]:
    """The change that the verdict speaks of in full, the others by name."""
    changes, ideas = changes_and_ideas(report)
    n_ideas = 0 if detail.others else len(ideas)
    leads = leader_not_advised(report)
    # What to do about the verdict's own cause; that of another finding stands with it.
    advice = next((f.advice for f in report.findings[:1] if _is_answer(f, report)), None)
    if changes:
        in_full = 0 if is_outside(report) else 1
        for change in changes[:in_full]:
            yield from change_lines(1, change, report.step)
        most = _CHANGES if detail.others or not in_full else 1
        for number, change in enumerate(changes[in_full:most], 1 + in_full):
            yield change_outline(number, change, report.step)
        more = [f"{len(changes) - most} more"] if len(changes) > most else []
        if n_ideas and in_full:
            more.append(fmt.count(n_ideas, "idea"))
        if more:
            yield Text(f"and {', and '.join(more)}", style="bright_black")
    elif leads is not None:
        yield Text(plain(leads))
    elif ideas:
        pass
    elif advice is not None:
        if not _is_said(advice, report):
            yield Text(plain(advice))
    elif (nothing := nothing_is_advised(report)) is not None and not _is_said(nothing, report):
        yield Text(nothing)
    if report.not_advised:
        names = ", ".join(dict.fromkeys(heading(w.setting) for w in report.not_advised))
        yield Text(f"not advised here: {plain(names)}", style="bright_black")


def _is_answer(finding: Finding, report: Report) -> bool:
    """Whether the verdict is about this finding."""
    said = report.verdict.summary
    return (
        names_cause(said, finding)
        or _is_said(finding.summary, report)
        or (finding.advice is not None and finding.advice in said)
        or is_outside(report)
    )


def _end(report: Report, folder: Path | None) -> RenderableType:
    """Where the rest is; and last of all what the advice means."""
    n = len(report.warnings)
    warnings = f", and {fmt.count(n, 'warning')}" if n else ""
    at = f"{plain(str(folder))}/report.html, or " if folder is not None else ""
    where = Text(f"All of it{warnings}: {at}--verbose", style="bright_black", overflow="fold")
    lines: list[RenderableType] = [Text(""), where]
    lines += [Text(plain(w.text)) for w in report.warnings if w.kind in _WITHOUT_EFFECT]
    for loader in report.loaders:
        if "#" in loader.id and _is_said(loader.id, report):
            said = f"{loader.id}: loader {loader.id.rpartition('#')[2]} of that line"
            lines.append(Text(plain(said), style="bright_black"))
    what_for = meaning(report)
    if what_for and not is_outside(report):
        lines.append(Text(what_for, style="bold"))
    return Capped(Group(*lines), PROSE_WIDTH)
