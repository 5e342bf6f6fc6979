"""What to change, on a terminal: each change with its code, what it gains, what to beware of."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from loaderdoctor import format as fmt
from loaderdoctor.format import plain
from loaderdoctor.report.model import Report, Step
from loaderdoctor.report.words.changes import (
    MEASURED,
    Change,
    changes_of,
    leader_not_advised,
    meaning,
    nothing_is_advised,
    vocabulary,
)


def prescription_lines(report: Report) -> list[RenderableType]:
    """What to change, the first first; empty where there is nothing to say about it."""
    changes = changes_of(report.recommendations)
    leads = leader_not_advised(report)
    if not changes:
        said = leads if leads is not None else nothing_is_advised(report)
        return [Text(plain(said))] if said is not None else []
    body: list[RenderableType] = []
    for number, change in enumerate(changes, 1):
        if body:
            body.append(Text(""))
        body += change_lines(number, change, report.step)
    if leads is not None:
        body += [Text(""), Text(plain(leads))]
    words = vocabulary(changes)
    if words:
        body += [Text(""), Text(words, style="bright_black")]
    what_for = meaning(report)
    if what_for:
        body += [Text(""), Text(what_for, style="bold")]
    return body


def change_outline(number: int, change: Change, step: Step) -> Text:
    """One change in a sentence."""
    return Text.assemble(f"{number}  ", (plain(change.title()), "bold"), ": ", _gain(change, step))


def change_lines(number: int, change: Change, step: Step) -> Sequence[RenderableType]:
    """One change in full."""
    what = Text.assemble(f"{number}  ", (plain(change.title()), "bold"))
    below: list[RenderableType] = [
        _code(code) for code in dict.fromkeys(row.code for row in change.rows)
    ]
    below.append(_gain(change, step))
    for row in change.rows:
        if row.summary:
            below.append(Text(plain(row.summary)))
        if row.caution:
            below.append(Text.assemble(("beware: ", "yellow"), plain(row.caution)))
    return [what, Padding(Group(*below), (0, 0, 0, 3))]


def _gain(change: Change, step: Step) -> Text:
    measured_ms = change.measured_ms
    if measured_ms is None:
        return Text(change.prediction() or "not tried here")
    first = change.first
    text = Text("together " if len(change.rows) > 1 else "")
    text.append(fmt.step_ms(measured_ms, first.measured_ci_ms), style="bold green")
    text.append(f" a step, {MEASURED}")
    more = []
    if (ratio := change.times_as_fast(step.wall_ms)) is not None:
        more.append(f"{fmt.ratio(ratio)} as fast{change.compared(step.wall_ms)}")
    if first.predicted_step_ms is not None:
        more.append(f"{fmt.ms(first.predicted_step_ms)} {change.basis}")
    text.append(f" ({'; '.join(more)})" if more else "")
    return text


def _code(code: str) -> Text:
    """Code lines, those of a diff in its colours; `-` and `+` say the same."""
    text = Text(no_wrap=False, overflow="fold")
    for i, line in enumerate(code.splitlines()):
        style = {"+": "green", "-": "red"}.get(line[:1], "cyan")
        text.append(("\n" if i else "") + plain(line), style=style)
    return text
