"""Sections of the report on a terminal: from the verdict to changes, workers and the GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from loaderdoctor import format as fmt
from loaderdoctor.format import plain
from loaderdoctor.report.console.renderables import (
    GLYPHS,
    Bar,
    Capped,
    Fitted,
    FittedTable,
    Verbatim,
)
from loaderdoctor.report.model import Finding, MemoryHistory, Report, Step, Workers
from loaderdoctor.report.run_model import Gpu
from loaderdoctor.report.words import (
    NESTED,
    Part,
    device_figures,
    device_heading,
    line_words,
    memory_figures,
    memory_history_sentence,
    named_lines,
    no_line_sentence,
    parts_of,
    range_headings,
    range_rows,
    whole_of,
)
from loaderdoctor.report.words.changes import (
    MEASURED,
    Change,
    changes_of,
    leader_not_advised,
    nothing_is_advised,
    vocabulary,
)
from loaderdoctor.report.words.first_screen import (
    changes_and_ideas,
    evidence_words,
    listed,
    share_words,
    step_notes,
    what_if,
    what_if_notes,
    what_if_title,
)
from loaderdoctor.report.words.verdict import headline, trust_sentence
from loaderdoctor.report.words.whole_run import meaning

PROSE_WIDTH = 100
_BAR_WIDTH = 76

_SEVERITY_STYLES = {
    "high": "bold red",
    "moderate": "bold yellow",
    "low": "bold",
    "none": "bold green",
    "uncertain": "bold yellow",
}
_HOT_LINES = 3


def section(title: str, *body: RenderableType, cap: int | None = PROSE_WIDTH) -> RenderableType:
    inner: RenderableType = Padding(Group(*body), (0, 0, 0, 2))
    return Group(Text(""), Text(title, style="bold"), Capped(inner, cap) if cap else inner)


def verdict(report: Report) -> RenderableType:
    """What the loop is bound by, in a sentence, and how far that is to be trusted."""
    found = report.verdict
    what, how_sure = headline(report)
    known = found.bound != "unknown"  # what nobody knows is no good news
    head = Text.assemble(
        (what, _SEVERITY_STYLES[found.severity if known else "uncertain"]),
        f", {how_sure}" if how_sure else "",
        (f"   {plain(report.target)}", "bright_black"),
        overflow="fold",
    )
    body: list[RenderableType] = [head, Text(plain(found.summary))]
    doubt = trust_sentence(report)
    if doubt is not None:
        body.append(Text.assemble(("How far to trust it: ", "yellow"), plain(doubt)))
    return Capped(Group(*body), PROSE_WIDTH)


def step(report: Report, *, brief: bool = False, roomy: bool = True) -> RenderableType:
    """The step as a bar with a line for each part. Brief: without what a step is.

    Not `roomy`: the parts side by side, without what is hidden.
    """
    one, shown = report.step, parts_of(report)
    head = Text.assemble(
        (shown.time, "bold" if shown.is_known else ""), f" {shown.unit}" if shown.unit else ""
    )
    if not brief:
        counted = f"{fmt.count(one.count, 'step')} · " if one.window_ms is None else ""
        head.append(f" · {counted}{plain(one.definition)}")
    body: list[RenderableType] = [head]
    if not shown.parts:
        body.append(Text(f"Where the step goes: {fmt.NOT_RECORDED}"))
        return section(shown.title, *body)
    weights = [(*GLYPHS[part.name], part.share or 0.0) for part in shown.parts]
    legend = _legend(shown.parts, brief=brief) if roomy else _legend_line(shown.parts)
    body += [Bar(weights, whole=1.0, max_width=_BAR_WIDTH), legend]
    notes = step_notes(report, brief=brief)
    body += [Text(plain(note), style="bright_black") for note in notes]
    return section(shown.title, *body)


def _legend(parts: Sequence[Part], *, brief: bool) -> Fitted:
    """One line for each part: glyph, word, milliseconds, percent, and what is hidden.

    Brief: without what there is not.
    """
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, min_width=max(len(part.name) for part in parts))
    for figures in ([part.ms for part in parts], [part.text for part in parts if part.ms]):
        need = max(map(len, figures), default=0)
        grid.add_column(justify="right", no_wrap=True, min_width=need)
    grid.add_column()
    notes = []
    for part in parts:
        glyph, style = GLYPHS[part.name]
        mark, hidden = Text(glyph, style=style), Text(part.hidden, style="bright_black")
        if part.share is not None:
            grid.add_row(mark, part.name, part.ms, part.text, hidden)
        elif not brief or part.name != "copy":
            hidden = Text(part.text)
            grid.add_row(mark, part.name, "", "", hidden)
        if hidden:
            notes.append(Text.assemble(f"{part.name}: ", hidden))
    return Fitted(grid, Group(_legend_line(parts), *notes))


def _legend_line(parts: Sequence[Part]) -> Columns:
    """Each part that is known, as many in a line as fit."""
    shown = []
    for part in parts:
        if part.share is not None:
            glyph, style = GLYPHS[part.name]
            shown.append(Text.assemble((glyph, style), f" {part.name} {part.ms} {part.text}"))
    return Columns(shown, padding=(0, 2))


def ablation(report: Report, *, brief: bool = False) -> RenderableType | None:
    """What the step would be as advised, without the loader, without copies: as measured."""
    rows = what_if(report)
    if not rows:
        return None
    whole = max(row.value_ms for row in rows if row.value_ms is not None)
    gains = [fmt.ratio(row.gain) if row.gain is not None else "" for row in rows]
    grid = Table.grid(padding=(0, 2))
    words, figure = (max(len(getattr(row, name)) for row in rows) for name in ("words", "figure"))
    grid.add_column(no_wrap=True, min_width=words)
    grid.add_column(justify="right", no_wrap=True, min_width=figure)
    grid.add_column()
    grid.add_column(justify="right", no_wrap=True, min_width=max(map(len, gains)))
    for row, gain in zip(rows, gains, strict=True):
        weight = row.value_ms or 0.0
        bar = Bar([("━", "bold" if row.is_now else "", weight)], whole=whole, max_width=40)
        grid.add_row(row.words, row.figure, bar if row.value_ms is not None else "", gain)
    lines = [
        Text(f"{row.words}: {row.figure}{f', {gain}' if gain else ''}")
        for row, gain in zip(rows, gains, strict=True)
    ]
    notes = [Text(plain(note), style="bright_black") for note in what_if_notes(report, brief=brief)]
    return section(what_if_title(report), Fitted(grid, Group(*lines)), *notes)


def findings(found: Sequence[Finding]) -> RenderableType | None:
    """Every finding with its evidence and its advice."""
    if not found:
        return None
    body: list[RenderableType] = []
    for finding in found:
        if body:
            body.append(Text(""))
        body += [finding_head(finding), indented(Text(plain(finding.summary)))]
        figures = evidence_words(finding)
        if figures:
            body.append(indented(Text(" · ".join(figures), style="bright_black")))
        if finding.advice:
            body.append(indented(Text.assemble(("→ ", "bold"), plain(finding.advice))))
    return section("Findings", *body)


def finding_head(finding: Finding) -> Text:
    """How severe, which kind, what it takes and where."""
    if finding.aspect_of is None:
        mark = ("● " + finding.severity, _SEVERITY_STYLES.get(finding.severity, ""))
    else:
        mark = (f"○ {plain(finding.aspect_of)}, seen as", "")
    head = Text.assemble(mark, f"  {plain(finding.kind)}")
    if finding.share is not None:
        head.append(f" · {share_words(finding)}")
    if finding.loader:
        head.append(f" · {plain(finding.loader)}")
    return head


def indented(body: RenderableType) -> Padding:
    return Padding(body, (0, 0, 0, 2))


def prescription_lines(report: Report) -> list[RenderableType]:
    """What to change, the first first; empty where there is nothing to say about it."""
    every, (changes, _) = changes_of(report.recommendations), changes_and_ideas(report)
    leads = leader_not_advised(report)
    if not every:
        said = leads if leads is not None else nothing_is_advised(report)
        return [Text(plain(said))] if said is not None else []
    body: list[RenderableType] = []
    for number, change in enumerate(changes, 1):
        if body:
            body.append(Text(""))
        body += change_lines(number, change, report.step)
    if leads is not None:
        body += [Text(""), Text(plain(leads))]
    words = vocabulary(every)
    if words:
        body += [Text("")] if body else []
        body += [Text(words, style="bright_black")]
    what_for = meaning(report)
    if what_for:
        body += [Text(""), Text(what_for, style="bold")]
    return body


def idea_lines(report: Report, *, most: int | None = None) -> list[RenderableType]:
    """What else may help, in words: no line of it is known to fit the script.

    With `most` so many of them, and the others counted.
    """
    _, ideas = changes_and_ideas(report)
    body: list[RenderableType] = []
    for change in ideas[:most]:
        said = [*_ideas(change), *(_words(change) if most is None else ())]
        body += [_outline(change, report.step), _below(*said)]
    if len(ideas) > len(ideas[:most]):
        body.append(Text(f"and {len(ideas) - len(ideas[:most])} more", style="bright_black"))
    return body


def change_outline(number: int, change: Change, step: Step) -> Text:
    """One change in a sentence, and the option of the script that does it."""
    option = next((row.idea for row in change.rows if row.command and row.idea), None)
    said = f". {plain(option)}" if option is not None else ""
    return Text.assemble(f"{number}  ", _outline(change, step), said)


def _outline(change: Change, step: Step) -> Text:
    return Text.assemble((plain(change.title()), "bold"), ": ", _gain(change, step))


def change_lines(number: int, change: Change, step: Step) -> Sequence[RenderableType]:
    """One change in full."""
    what = Text.assemble(f"{number}  ", (plain(change.title()), "bold"))
    return [
        what,
        _below(*_ideas(change), *map(_code, change.texts), _gain(change, step), *_words(change)),
    ]


def _below(*body: RenderableType) -> Padding:
    return Padding(Group(*body), (0, 0, 0, 3))


def _ideas(change: Change) -> list[Text]:
    return [Text(plain(idea)) for idea in change.ideas]


def _words(change: Change) -> list[Text]:
    """What it rests on, and what to beware of."""
    found = []
    for row in change.rows:
        if row.summary:
            found.append(Text(plain(row.summary)))
        if row.caution:
            found.append(Text.assemble(("beware: ", "yellow"), plain(row.caution)))
    return found


def _gain(change: Change, step: Step) -> Text:
    measured_ms = change.measured_ms
    if measured_ms is None:
        return Text(change.prediction() or "not tried here")
    first = change.first
    text = Text("together " if len(change.rows) > 1 else "")
    text.append(fmt.step_ms(measured_ms, first.measured_ci_ms), style="bold green")
    text.append(f" {change.per}, {MEASURED}")
    more = change.behind(step.wall_ms)
    text.append(f" ({'; '.join(more)})" if more else "")
    return text


def _code(code: str) -> Verbatim:
    """Code lines, those of a diff in its colours; `-` and `+` say the same."""
    styles = {"+": "green", "-": "red"}
    kept = ("\t".join(map(plain, line.split("\t"))) for line in code.splitlines())
    return Verbatim([(x, styles.get(x[:1], "cyan")) for x in kept])


def workers(made: Workers | None, others: Sequence[str]) -> RenderableType | None:
    if made is None:
        return None
    makers = fmt.count(made.n_workers, "worker") if made.n_workers else "the training process"
    figures: dict[str, float | None] = {
        "batch_ms": made.batch_ms,
        "of it fetch_ms": made.fetch_ms,
        "collate_ms": made.collate_ms,
        "cpu_share": made.cpu_share,
        "idle_share": made.idle_share if made.n_workers else None,
        "pinning_ms": made.pin_ms,
        "receiving_ms": made.receive_ms,
    }
    of = f" for {plain(made.loader)}" if others and made.loader is not None else ""
    body: list[RenderableType] = [Text(f"Made in {makers}{of}: {' · '.join(listed(figures))}")]
    if made.transforms:
        each = sorted(made.transforms.items(), key=lambda item: -item[1])
        words = ", ".join(f"{plain(name)} {fmt.ms(cost)}" for name, cost in each)
        body.append(Text(f"Transforms, each sample: {words}"))
    for line in named_lines(made)[:_HOT_LINES]:
        text = Text(f"{line_words(line)} at {plain(f'{line.file}:{line.line}')}")
        if line.code:
            text.append(f"  {plain(line.code.strip())}", style="cyan")
        body.append(text)
    if (no_line := no_line_sentence(made)) is not None:
        body.append(Text(no_line))
    body += [Text(plain(other)) for other in others]
    return section("Making batches", *body)


def gpu_lines(gpu: Gpu | None, history: MemoryHistory | None) -> Iterator[str]:
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


def ranges_table(report: Report) -> RenderableType:
    """What each range took, on the host and on the GPU."""
    table = FittedTable.of(range_headings(whole_of(report).per), range_rows(report.ranges))
    if not any(found.depth for found in report.ranges):
        return table
    return Group(table, Text(NESTED, style="bright_black"))


def _joined(figures: Sequence[tuple[str, str]]) -> str:
    return " · ".join(f"{name} {figure}" for name, figure in figures)
