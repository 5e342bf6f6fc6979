"""What to change, on a terminal: each change with its code, what it gains, what to beware of."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from loaderdoctor import format as fmt
from loaderdoctor.format import plain
from loaderdoctor.report.console.bars import Verbatim
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

# The heading of changes to the step, where the verdict is about what lies outside it.
IN_THE_STEP = "For the step itself"
# The heading of what is advised in words.
IDEAS = "Ideas, for which no line of the script is known"


def prescription_lines(report: Report) -> list[RenderableType]:
    """What to change, the first first; empty where there is nothing to say about it."""
    every = changes_of(report.recommendations)
    changes = [change for change in every if not change.is_idea]
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
    ideas = [change for change in changes_of(report.recommendations) if change.is_idea]
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
    texts = dict.fromkeys(x for row in change.rows for x in (row.command, row.code) if x)
    return [what, _below(*_ideas(change), *map(_code, texts), _gain(change, step), *_words(change))]


def _below(*body: RenderableType) -> Padding:
    return Padding(Group(*body), (0, 0, 0, 3))


def _ideas(change: Change) -> list[Text]:
    """What to do, in words: where there is no line, or where an option does it."""
    return [
        Text(plain(idea)) for idea in dict.fromkeys(row.idea for row in change.rows if row.idea)
    ]


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
    more = []
    if (ratio := change.times_as_fast(step.wall_ms)) is not None:
        more.append(f"{fmt.ratio(ratio)} as fast{change.compared(step.wall_ms)}")
    if (promised := change.in_new_runs()) is not None:
        more.append(promised)
    if (predicted := change.prediction_met()) is not None:
        more.append(predicted)
    text.append(f" ({'; '.join(more)})" if more else "")
    return text


def _code(code: str) -> Verbatim:
    """Code lines, those of a diff in its colours; `-` and `+` say the same."""
    styles = {"+": "green", "-": "red"}
    kept = ("\t".join(map(plain, line.split("\t"))) for line in code.splitlines())
    return Verbatim([(x, styles.get(x[:1], "cyan")) for x in kept])
