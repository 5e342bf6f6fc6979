"""The report on a terminal: verdict first, evidence next, method last.

Colour only repeats what a word or glyph says, so pipes and NO_COLOR lose nothing. Text of the
user's is never read as markup and can't steer the terminal.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from loaderdoctor import format as fmt
from loaderdoctor.findings.line_names import PHASES
from loaderdoctor.format import plain
from loaderdoctor.report.console.brief import BriefPage
from loaderdoctor.report.console.renderables import Legible
from loaderdoctor.report.console.sections import (
    IDEAS,
    IN_THE_STEP,
    ablation,
    findings,
    idea_lines,
    prescription_lines,
    section,
    step,
    verdict,
)
from loaderdoctor.report.console.tables import (
    PresetTable,
    RanksTable,
    TrialsTable,
    claims_table,
    machines_table,
    whole_run,
)
from loaderdoctor.report.model import MemoryHistory, Report, Workers
from loaderdoctor.report.run_model import Gpu
from loaderdoctor.report.words.first_screen import listed, other_loader_sentences
from loaderdoctor.report.words.parts import (
    NESTED,
    device_figures,
    device_heading,
    is_outside,
    memory_figures,
    memory_history_sentence,
    range_headings,
    range_rows,
    whole_of,
)
from loaderdoctor.setting_words import heading

_HOT_LINES = 3


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
    yield whole_run(report.run)
    yield ablation(report)
    yield findings(report.findings)
    prescription, ideas = prescription_lines(report), idea_lines(report)
    titles = (IN_THE_STEP, "What to change") if is_outside(report) else ("What to change", IDEAS)
    both = [(titles[0], prescription), (titles[1], ideas)]
    for title, lines in reversed(both) if is_outside(report) else both:
        yield section(title, *lines) if lines else None
    yield _listed("Not advised", [(heading(w.setting), w.reason) for w in report.not_advised])
    yield _workers(report.workers, other_loader_sentences(report))
    gpu = list(_gpu_lines(report.gpu, report.memory_history))
    yield section("The GPU", *map(Text, gpu)) if gpu else None
    if report.ranges:
        yield section("Your record_function ranges", _ranges(report))
    if any(trial.row is not None for trial in report.trials):
        yield section("Trials, as published", PresetTable(report), cap=None)
    elif report.trials:
        yield section("Trials, fastest first", TrialsTable(report), cap=None)
    if report.cluster is not None:
        yield section("Machines", machines_table(report.cluster))
    if report.ranks:
        yield section("Ranks", RanksTable(report.ranks))
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


def _workers(workers: Workers | None, others: Sequence[str]) -> RenderableType | None:
    if workers is None:
        return None
    makers = fmt.count(workers.n_workers, "worker") if workers.n_workers else "the training process"
    figures: dict[str, float | None] = {
        "batch_ms": workers.batch_ms,
        "of it fetch_ms": workers.fetch_ms,
        "collate_ms": workers.collate_ms,
        "cpu_share": workers.cpu_share,
        "idle_share": workers.idle_share if workers.n_workers else None,
        "pinning_ms": workers.pin_ms,
        "receiving_ms": workers.receive_ms,
    }
    of = f" for {plain(workers.loader)}" if others and workers.loader is not None else ""
    body: list[RenderableType] = [Text(f"Made in {makers}{of}: {' · '.join(listed(figures))}")]
    if workers.transforms:
        each = sorted(workers.transforms.items(), key=lambda item: -item[1])
        words = ", ".join(f"{plain(name)} {fmt.ms(cost)}" for name, cost in each)
        body.append(Text(f"Transforms, each sample: {words}"))
    named = [line for line in workers.lines if line["named"]]
    for line in named[:_HOT_LINES]:
        where = f"{line['file']}:{line['line']}"
        seen = f"{line['n_looks']} of {line['of_looks']} stack samples of {PHASES[line['phase']]}"
        text = Text(f"{fmt.share(line['share'])} ({seen}) at {plain(where)}")
        if line["code"]:
            text.append(f"  {plain(str(line['code']).strip())}", style="cyan")
        body.append(text)
    if workers.lines and not named:
        seen = fmt.count(sum(line["n_looks"] for line in workers.lines), "stack sample")
        if workers.spread is not None:
            body.append(Text(f"No line alone; most of it: {plain(workers.spread)}."))
        else:
            body.append(Text(f"{seen} of its code: too few, or too spread, to name a line."))
    body += [Text(plain(other)) for other in others]
    return section("Making batches", *body)


def _gpu_lines(gpu: Gpu | None, history: MemoryHistory | None) -> Iterator[str]:
    if gpu is not None:
        for device in gpu.devices:
            which = device_heading(device, len(gpu.devices))
            yield (f"{which}: " if which else "") + _joined(device_figures(device))
        memory = _joined(memory_figures(gpu))
        if memory:
            yield memory
        if gpu.busy is not None:
            yield plain(gpu.busy.summary)
    if history is not None:
        yield f"Memory history: {memory_history_sentence(history)}"


def _ranges(report: Report) -> RenderableType:
    """What each range took, on the host and on the GPU."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bright_black", pad_edge=False)
    ranges = report.ranges
    name, *figures = range_headings(whole_of(report).per)
    table.add_column(name, overflow="fold")
    for figure in figures:
        table.add_column(figure, justify="right")
    for row in range_rows(ranges):
        table.add_row(*map(Text, row))
    if not any(found.depth for found in ranges):
        return table
    return Group(table, Text(NESTED, style="bright_black"))


def _joined(figures: Sequence[tuple[str, str]]) -> str:
    return " · ".join(f"{name} {figure}" for name, figure in figures)


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
