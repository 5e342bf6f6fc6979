"""The report on a terminal: verdict first, evidence next, method last.

Colour only repeats what a word or glyph says, so pipes and NO_COLOR lose nothing. Text of the
user's is never read as markup and can't steer the terminal.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from loaderdoctor import format as fmt
from loaderdoctor.format import plain
from loaderdoctor.report.console.bars import GLYPHS, Bar, Capped, Legible
from loaderdoctor.report.console.preset_table import PresetTable
from loaderdoctor.report.console.tables import (
    RanksTable,
    TrialsTable,
    claims_table,
    machines_table,
    prescription_lines,
)
from loaderdoctor.report.gpu_model import Gpu
from loaderdoctor.report.model import Finding, MemoryHistory, Report, Workers
from loaderdoctor.report.words import gpu as gpu_words
from loaderdoctor.report.words.first_screen import (
    SHARE_ORDER,
    evidence_words,
    listed,
    other_loader_sentences,
    step_notes,
    what_if,
    what_if_notes,
)
from loaderdoctor.report.words.outside import share_words
from loaderdoctor.report.words.verdict import headline
from loaderdoctor.report.words.whole import whole_of

PROSE_WIDTH = 100
_BAR_WIDTH = 76

_SEVERITY_STYLES = {
    "high": "bold red",
    "moderate": "bold yellow",
    "low": "bold",
    "none": "bold green",
    "uncertain": "bold yellow",
}
_ALWAYS_SHOWN = ("input", "copy", "host", "compute")
_HOT_LINES = 3
_PHASES = {"fetch": "fetching", "collate": "collating", "sampler": "the sampler"}


def render_report(report: Report, *, folder: Path | None = None) -> RenderableType:
    """The whole report; `folder` is the run folder that holds the files, where there is one."""
    sections = [section for section in _sections(report, folder) if section is not None]
    return Legible(Group(*sections))


def console_text(report: Report, *, width: int = 100, folder: Path | None = None) -> str:
    """The report as plain text: what console.txt holds."""
    console = Console(
        file=io.StringIO(),
        width=width,
        color_system=None,
        force_terminal=False,
        legacy_windows=False,
        markup=False,
    )
    console.print(render_report(report, folder=folder))
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"


def _sections(report: Report, folder: Path | None) -> Iterator[RenderableType | None]:
    yield _verdict(report)
    yield _step(report)
    yield _ablation(report)
    yield _findings(report.findings)
    prescription = prescription_lines(report)
    yield _section("What to change", *prescription) if prescription else None
    yield _listed("Not advised", [(w.setting, w.reason) for w in report.not_advised])
    yield _workers(report.workers, other_loader_sentences(report))
    gpu = list(_gpu_lines(report.gpu, report.memory_history))
    yield _section("The GPU", *map(Text, gpu)) if gpu else None
    if report.ranges:
        yield _section("Your record_function ranges", _ranges(report))
    if any(trial.row is not None for trial in report.trials):
        yield _section("Trials, as published", PresetTable(report), cap=None)
    elif report.trials:
        yield _section("Trials, fastest first", TrialsTable(report), cap=None)
    if report.cluster is not None:
        yield _section("Machines", machines_table(report.cluster))
    if report.ranks:
        yield _section("Ranks", RanksTable(report.ranks))
    if report.claims:
        yield _section("Published claims", claims_table(report.claims), cap=None)
    yield _listed("Warnings", [(w.kind, w.text) for w in report.warnings])
    yield _method(report)
    if folder is not None:
        yield _files(folder)


def _section(title: str, *body: RenderableType, cap: int | None = PROSE_WIDTH) -> RenderableType:
    inner: RenderableType = Padding(Group(*body), (0, 0, 0, 2))
    return Group(Text(""), Text(title, style="bold"), Capped(inner, cap) if cap else inner)


def _verdict(report: Report) -> RenderableType:
    verdict = report.verdict
    what, how_sure = headline(report)
    head = Text.assemble(
        (what, _SEVERITY_STYLES[verdict.severity]),
        f", {how_sure}" if how_sure else "",
        (f"   loaderdoctor {report.command} {plain(report.target)}", "bright_black"),
        overflow="fold",
    )
    return Capped(Group(head, Text(plain(verdict.summary))), PROSE_WIDTH)


def _step(report: Report) -> RenderableType:
    step, shares, whole = report.step, report.shares, whole_of(report)
    counted = f"{fmt.count(step.count, 'step')} · " if step.window_ms is None else ""
    head = Text.assemble(
        (whole.time, "bold" if whole.ms is not None else ""),
        f" {whole.unit}" if whole.unit else "",
        f" · {counted}{plain(step.definition)}",
    )
    body: list[RenderableType] = [head]
    if shares is None:
        body.append(Text(f"Where the step goes: {fmt.NOT_RECORDED}"))
        return _section(whole.title, *body)
    values = {name: getattr(shares, name) for name in SHARE_ORDER}
    body.append(
        Bar(
            [(*GLYPHS[n], values[n] or 0.0) for n in SHARE_ORDER],
            whole=1.0,
            max_width=_BAR_WIDTH,
        )
    )
    body.append(_legend(report, values))
    body += [Text(note, style="bright_black") for note in step_notes(report)]
    return _section(whole.title, *body)


def _legend(report: Report, values: Mapping[str, float | None]) -> Table:
    """One line for each share: glyph, word, milliseconds, percent, and what is hidden."""
    grid = Table.grid(padding=(0, 2))
    for justify in ("left", "left", "right", "right", "left"):
        grid.add_column(justify=justify)
    wall = whole_of(report).ms
    hidden = {"input": report.hidden.input_ms, "copy": report.hidden.copy_ms}
    for name in SHARE_ORDER:
        value = values[name]
        if not value and name not in _ALWAYS_SHOWN:
            continue
        glyph, style = GLYPHS[name]
        mark = Text(glyph, style=style)
        if value is None:
            grid.add_row(mark, name, "", "", _absent(name))
            continue
        behind = hidden.get(name)
        note = f"and {fmt.ms(behind)} hidden behind other work" if behind else ""
        in_ms = fmt.ms(value * wall) if wall is not None else ""
        grid.add_row(mark, name, in_ms, fmt.share(value), Text(note, style="bright_black"))
    return grid


def _absent(name: str) -> str:
    return f"{fmt.NOT_APPLICABLE} (no accelerator)" if name == "copy" else fmt.NOT_RECORDED


def _ablation(report: Report) -> RenderableType | None:
    """What the step would be without the loader, and without the copies: measured, not guessed."""
    rows = what_if(report)
    if not rows:
        return None
    whole = max(row.value_ms for row in rows if row.value_ms is not None)
    grid = Table.grid(padding=(0, 2))
    grid.add_column()
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column()
    grid.add_column(justify="right", no_wrap=True)
    for row in rows:
        if row.value_ms is None:
            grid.add_row(row.words, row.figure, "", "")
            continue
        bar = Bar([("━", "bold" if row.is_now else "", row.value_ms)], whole=whole, max_width=40)
        gain = fmt.ratio(row.gain) if row.gain is not None else ""
        grid.add_row(row.words, row.figure, bar, gain)
    notes = [Text(plain(note), style="bright_black") for note in what_if_notes(report)]
    return _section("What it would be", grid, *notes)


def _findings(findings: Sequence[Finding]) -> RenderableType | None:
    if not findings:
        return None
    body: list[RenderableType] = []
    for finding in findings:
        if body:
            body.append(Text(""))
        head = Text.assemble(
            ("● " + finding.severity, _SEVERITY_STYLES.get(finding.severity, "")),
            f"  {plain(finding.kind)}",
        )
        if finding.share is not None:
            head.append(f" · {share_words(finding)}")
        if finding.loader:
            head.append(f" · {plain(finding.loader)}")
        body += [head, _indented(Text(plain(finding.summary)))]
        figures = evidence_words(finding)
        if figures:
            body.append(_indented(Text(" · ".join(figures), style="bright_black")))
        if finding.advice:
            body.append(_indented(Text.assemble(("→ ", "bold"), plain(finding.advice))))
    return _section("Findings", *body)


def _indented(body: RenderableType) -> Padding:
    return Padding(body, (0, 0, 0, 2))


def _listed(title: str, entries: Sequence[tuple[str, str]]) -> RenderableType | None:
    if not entries:
        return None
    lines = [Text.assemble((plain(name), "bold"), f": {plain(text)}") for name, text in entries]
    return _section(title, *lines)


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
        seen = f"{line['n_looks']} of {line['of_looks']} stack samples of {_PHASES[line['phase']]}"
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
    return _section("Making batches", *body)


def _gpu_lines(gpu: Gpu | None, history: MemoryHistory | None) -> Iterator[str]:
    if gpu is not None:
        for device in gpu.devices:
            which = gpu_words.heading(device, len(gpu.devices))
            yield (f"{which}: " if which else "") + _joined(gpu_words.device_figures(device))
        memory = _joined(gpu_words.memory_figures(gpu))
        if memory:
            yield memory
        if gpu.busy is not None:
            yield plain(gpu.busy.summary)
    if history is not None:
        yield f"Memory history: {gpu_words.memory_history_sentence(history)}"


def _ranges(report: Report) -> RenderableType:
    """What each range took, on the host and on the GPU."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bright_black", pad_edge=False)
    ranges = report.ranges
    name, *figures = gpu_words.range_headings(whole_of(report).per)
    table.add_column(name, overflow="fold")
    for heading in figures:
        table.add_column(heading, justify="right")
    for row in gpu_words.range_rows(ranges):
        table.add_row(*map(Text, row))
    if not any(found.depth for found in ranges):
        return table
    return Group(table, Text(gpu_words.NESTED, style="bright_black"))


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
    return _section("How it was measured", *lines)


def _files(folder: Path) -> RenderableType:
    name = plain(str(folder))
    return _section(
        "Files",
        Text(name, overflow="fold"),
        Text(f"loaderdoctor view {name}", style="cyan", overflow="fold"),
    )
