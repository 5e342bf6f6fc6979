"""The comparison of two runs, for a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from loaderdoctor import format as fmt
from loaderdoctor.report.comparison import Comparison

_MAX_CHARS = 160
_STYLES = {"faster": "bold green", "slower": "bold red", "no difference": "bold", "unknown": "bold"}


def render_comparison(found: Comparison, names: tuple[str, str]) -> RenderableType:
    """Verdict first, then the step, its shares and the settings that differ."""
    table = Table(box=None, pad_edge=False, header_style="bright_black")
    for title in ("", fmt.plain(names[0]), fmt.plain(names[1]), "difference"):
        table.add_column(Text(title), justify="left" if not title else "right", overflow="fold")
    table.add_row("step", *_pair(found.before_ms, found.after_ms))
    for share in found.shares:
        if share.before_ms or share.after_ms:
            table.add_row(share.name, *_pair(share.before_ms, share.after_ms))
    for name, before, after in found.settings:
        values = (name, fmt.setting(before), fmt.setting(after))
        table.add_row(*(Text(_shown(text)) for text in values), "")
    caveats = [
        Text.assemble(("mind: ", "yellow"), Text(_shown(caveat)), overflow="fold")
        for caveat in found.caveats
    ]
    return Group(Text(sentence(found), style=_STYLES[found.change]), Text(""), table, *caveats)


def _shown(text: str) -> str:
    """Text of a report, which may be anyone's: no longer than two lines, and it steers nothing."""
    text = fmt.plain(text[: 2 * _MAX_CHARS])
    return text if len(text) <= _MAX_CHARS else text[: _MAX_CHARS - 1] + "…"


def sentence(found: Comparison) -> str:
    """The answer, as in `Faster: 42.2 → 12.1 ms a step, 30.1 ± 0.4 ms less.`."""
    difference = found.difference_ms
    if difference is None or found.before_ms is None or found.after_ms is None:
        return f"Can't tell: {found.reason}. Measure again with a larger --budget."
    steps = f"{fmt.ms(found.before_ms)} → {fmt.ms(found.after_ms)} a step"
    interval = (difference.low, difference.high)
    if found.change == "no difference":
        margin = max(abs(difference.low), abs(difference.high))
        return f"No difference beyond the noise: {steps}, at most {fmt.ms(margin)} apart."
    less = found.change == "faster"
    shown = abs(difference.value)
    mirrored = (-interval[1], -interval[0]) if less else interval
    word = "less" if less else "more"
    return f"{found.change.capitalize()}: {steps}, {fmt.ms(shown, mirrored)} {word}."


def _pair(before: float | None, after: float | None) -> tuple[str, str, str]:
    change = ""
    if before is not None and after is not None:
        sign = "+" if after >= before else "−"
        change = f"{sign}{fmt.ms(abs(after - before))}"
    return fmt.ms(before), fmt.ms(after), change
