"""The report on a terminal: verdict first, evidence next, method last.

Colour only repeats what a word or glyph says, so pipes and NO_COLOR lose nothing. Text of the
user's is never read as markup and can't steer the terminal.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from loaderdoctor.report import format as fmt
from loaderdoctor.report.bars import LOOKS, ORDER, Bar, Capped, Legible
from loaderdoctor.report.console_gpu import gpu_lines, ranges_table
from loaderdoctor.report.console_tables import (
    claims_table,
    machines_table,
    ranks_table,
    trials_table,
)
from loaderdoctor.report.format import plain
from loaderdoctor.report.model import (
    Finding,
    Recommendation,
    Report,
    Step,
    Workers,
)
from loaderdoctor.report.preset_table import preset_table
from loaderdoctor.report.summary import meaning

PROSE_WIDTH = 100
_BAR_WIDTH = 76

BOUND_WORDS = {
    "input": "Input-bound",
    "copy": "Copy-bound",
    "communication": "Communication-bound",
    "compute": "Compute-bound",
    "host": "Host-bound",
    "unknown": "No verdict",
}
_SEVERITY_STYLES = {
    "high": "bold red",
    "moderate": "bold yellow",
    "low": "bold",
    "none": "bold green",
    "uncertain": "bold yellow",
}
_ALWAYS_SHOWN = ("input", "copy", "host", "compute")
_HOT_LINES = 3


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
    yield _prescription(report)
    yield _listed("Not advised", [(w.setting, w.reason) for w in report.withheld])
    yield _workers(report.workers)
    gpu = gpu_lines(report.gpu, report.memory_history)
    yield _section("The GPU", *gpu) if gpu else None
    if report.ranges:
        yield _section("Your record_function ranges", ranges_table(report.ranges))
    if any(trial.row is not None for trial in report.trials):
        yield _section("Trials, as published", preset_table(report), cap=None)
    elif report.trials:
        yield _section("Trials, fastest first", trials_table(report), cap=None)
    if report.cluster is not None:
        yield _section("Machines", machines_table(report.cluster))
    if report.ranks:
        yield _section("Ranks", ranks_table(report.ranks))
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
    head = Text.assemble(
        (BOUND_WORDS[verdict.bound], _SEVERITY_STYLES[verdict.severity]),
        ("" if verdict.bound == "unknown" else f", {severity_words(verdict.severity)}"),
        (f"   loaderdoctor {report.command} {plain(report.target)}", "bright_black"),
        overflow="fold",
    )
    return Capped(Group(head, Text(plain(verdict.summary))), PROSE_WIDTH)


def severity_words(severity: str) -> str:
    return {"none": "healthy", "uncertain": "uncertain"}.get(severity, severity)


def _step(report: Report) -> RenderableType:
    step, shares = report.step, report.shares
    counted = f"{fmt.count(step.count, 'step')} · {plain(step.definition)}"
    if step.wall_ms is None:
        head = Text(f"Step time {fmt.NOT_RECORDED} · {counted}")
    else:
        time = fmt.ms(step.wall_ms, step.wall_ms_ci)
        head = Text.assemble((time, "bold"), f" a step · {counted}")
    body: list[RenderableType] = [head]
    if shares is None:
        body.append(Text(f"Where the step goes: {fmt.NOT_RECORDED}"))
        return _section("The step", *body)
    values = {name: getattr(shares, name) for name in ORDER}
    body.append(
        Bar(
            [(LOOKS[n].glyph, LOOKS[n].style, values[n] or 0.0) for n in ORDER],
            whole=1.0,
            max_width=_BAR_WIDTH,
        )
    )
    body.append(_legend(report, values))
    spread = _boundary(step)
    if spread:
        body.append(Text(spread, style="bright_black"))
    return _section("The step", *body)


def _legend(report: Report, values: Mapping[str, float | None]) -> Table:
    """One line for each share: glyph, word, milliseconds, percent, and what is hidden."""
    grid = Table.grid(padding=(0, 2))
    for justify in ("left", "left", "right", "right", "left"):
        grid.add_column(justify=justify)
    wall = report.step.wall_ms
    hidden = {"input": report.hidden.input_ms, "copy": report.hidden.copy_ms}
    for name in ORDER:
        value = values[name]
        look = LOOKS[name]
        if not value and name not in _ALWAYS_SHOWN:
            continue
        mark = Text(look.glyph, style=look.style)
        if value is None:
            grid.add_row(mark, look.word, "", "", _absent(name))
            continue
        behind = hidden.get(name)
        note = f"and {fmt.ms(behind)} hidden behind other work" if behind else ""
        in_ms = fmt.ms(value * wall) if wall is not None else ""
        grid.add_row(mark, look.word, in_ms, fmt.share(value), Text(note, style="bright_black"))
    return grid


def _absent(name: str) -> str:
    return f"{fmt.NOT_APPLICABLE} (no accelerator)" if name == "copy" else fmt.NOT_RECORDED


def _boundary(step: Step) -> str | None:
    if step.boundary_ms is None or step.within_epoch_ms is None or step.steps_per_epoch is None:
        return None
    return (
        f"Of it {fmt.ms(step.within_epoch_ms)} within an epoch; each epoch boundary adds "
        f"{fmt.ms(step.boundary_ms)}, spread over {fmt.count(step.steps_per_epoch, 'step')}."
    )


def _ablation(report: Report) -> RenderableType | None:
    """What the step would be without the loader, and without the copies: measured, not guessed."""
    ablation = report.ablation
    if ablation is None:
        return None
    rows = [
        ("now", ablation.plain_ms, ablation.ci_ms.get("plain_ms")),
        ("with an instant loader", ablation.no_input_ms, ablation.ci_ms.get("no_input_ms")),
        ("and with free copies", ablation.no_copy_ms, ablation.ci_ms.get("no_copy_ms")),
    ]
    whole = max(value for _, value, _ in rows if value is not None)
    grid = Table.grid(padding=(0, 2))
    grid.add_column()
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column()
    grid.add_column(justify="right", no_wrap=True)
    for label, value, ci in rows:
        if value is None:
            no_copy = label == "and with free copies" and _no_accelerator(report)
            grid.add_row(label, fmt.NOT_APPLICABLE if no_copy else fmt.NOT_RECORDED, "", "")
            continue
        gain = "" if label == "now" else fmt.ratio(ablation.plain_ms / value if value > 0 else None)
        bar = Bar([("━", "bold" if label == "now" else "", value)], whole=whole, max_width=40)
        grid.add_row(label, fmt.ms(value, ci), bar, gain)
    body: list[RenderableType] = [grid]
    if ablation.reason:
        body.append(Text(plain(ablation.reason), style="bright_black"))
    for loader, cost_ms in ablation.by_loader_ms.items():
        body.append(Text(f"{plain(loader)} alone costs {fmt.ms(cost_ms)} a step"))
    return _section("What it would be", *body)


def _no_accelerator(report: Report) -> bool:
    return report.shares is not None and report.shares.copy is None


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
            head.append(f" · {fmt.share(finding.share)} of the step")
        if finding.loader:
            head.append(f" · {plain(finding.loader)}")
        body += [head, _indented(Text(plain(finding.summary)))]
        figures = _evidence(finding.evidence)
        if figures:
            body.append(_indented(Text(figures, style="bright_black")))
        if finding.advice:
            body.append(_indented(Text.assemble(("→ ", "bold"), plain(finding.advice))))
    return _section("Findings", *body)


def _evidence(evidence: Mapping[str, Any]) -> str:
    """The figures that were recorded; report.json names the others, as null."""
    shown = {name: value for name, value in evidence.items() if value is not None}
    return " · ".join(fmt.evidence(name, value) for name, value in shown.items())


def _indented(body: RenderableType) -> Padding:
    return Padding(body, (0, 0, 0, 2))


def _prescription(report: Report) -> RenderableType | None:
    if not report.recommendations:
        told = report.verdict.severity == "none" or any(f.advice for f in report.findings)
        if told or report.verdict.bound == "unknown" or report.command == "analyze":
            return None
        return _section("What to change", Text("No change of settings is known to help."))
    body: list[RenderableType] = []
    groups = groupby(
        report.recommendations,
        key=lambda r: (r.measured_step_ms, r.measured_ci_ms, r.predicted_step_ms),
    )
    for number, (_, group) in enumerate(groups, 1):
        if body:
            body.append(Text(""))
        body += _change(number, list(group), report.step)
    what_for = meaning(report)
    if what_for:
        body += [Text(""), Text(what_for, style="bold")]
    return _section("What to change", *body)


def _change(number: int, group: Sequence[Recommendation], step: Step) -> list[RenderableType]:
    """Changes that were measured together: what, the code, the gain, what to beware of."""
    what = Text(f"{number}  ")
    for i, change in enumerate(group):
        what.append(", " if i else "")
        what.append(plain(change.setting), style="bold")
        if change.from_ is not None or change.to is not None:  # else a change of code
            what.append(f" {fmt.setting(change.from_)} → {fmt.setting(change.to)}")
    below: list[RenderableType] = [
        _code(code) for code in dict.fromkeys(change.code for change in group)
    ]
    below.append(_gain(group[0], step, len(group)))
    for change in group:
        if change.summary:
            below.append(Text(plain(change.summary)))
        if change.caution:
            below.append(Text.assemble(("beware: ", "yellow"), plain(change.caution)))
    return [what, Padding(Group(*below), (0, 0, 0, 3))]


def _gain(change: Recommendation, step: Step, n_changes: int) -> Text:
    predicted = change.predicted_step_ms
    if change.measured_step_ms is None:
        return Text(
            f"not tried here; predicted {fmt.ms(predicted)} a step"
            if predicted is not None
            else "not tried here"
        )
    text = Text("together " if n_changes > 1 else "")
    text.append(fmt.ms(change.measured_step_ms, change.measured_ci_ms), style="bold green")
    text.append(" a step, measured")
    if step.wall_ms is not None and change.measured_step_ms > 0:
        text.append(f" ({fmt.ratio(step.wall_ms / change.measured_step_ms)} as fast")
        text.append(f"; predicted {fmt.ms(predicted)})" if predicted is not None else ")")
    return text


def _code(code: str) -> Text:
    """Code lines, those of a diff in its colours; `-` and `+` say the same."""
    text = Text(no_wrap=False, overflow="fold")
    for i, line in enumerate(code.splitlines()):
        style = {"+": "green", "-": "red"}.get(line[:1], "cyan")
        text.append(("\n" if i else "") + plain(line), style=style)
    return text


def _listed(title: str, entries: Sequence[tuple[str, str]]) -> RenderableType | None:
    if not entries:
        return None
    lines = [Text.assemble((plain(name), "bold"), f": {plain(text)}") for name, text in entries]
    return _section(title, *lines)


def _workers(workers: Workers | None) -> RenderableType | None:
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
    }
    body: list[RenderableType] = [Text(f"Made in {makers}: {_evidence(figures)}")]
    if workers.transforms:
        each = sorted(workers.transforms.items(), key=lambda item: -item[1])
        words = ", ".join(f"{plain(name)} {fmt.ms(cost)}" for name, cost in each)
        body.append(Text(f"Transforms, each sample: {words}"))
    named = [line for line in workers.lines if line["named"]]
    for line in named[:_HOT_LINES]:
        where = f"{line['file']}:{line['line']}"
        looks = f"{line['n_looks']} of {fmt.count(line['of_looks'], 'look')}"
        text = Text(f"{fmt.share(line['share'])} ({looks}) at {plain(where)}")
        if line["code"]:
            text.append(f"  {plain(str(line['code']).strip())}", style="cyan")
        body.append(text)
    if workers.lines and not named:
        looks = fmt.count(workers.lines[0]["of_looks"], "look")
        body.append(Text(f"{looks} at its code: too few, or too spread, to name a line."))
    return _section("Making batches", *body)


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
