"""Two runs compared, as a terminal shows it: faster, slower, or no difference beyond the noise."""

from __future__ import annotations

import math
import posixpath
from dataclasses import dataclass
from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from loaderdoctor import format as fmt
from loaderdoctor.estimate import Estimate
from loaderdoctor.report.console.renderables import Legible
from loaderdoctor.report.model import Report, Shares
from loaderdoctor.report.run_model import Script
from loaderdoctor.report.words import SHARE_ORDER
from loaderdoctor.setting_words import READINGS, heading, phrase

Change = Literal["faster", "slower", "no difference", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareChange:
    """Milliseconds a step of one share in both runs; None where it was not recorded."""

    name: str
    before_ms: float | None
    after_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """B against A. `difference_ms` is B - A, negative where B is faster."""

    change: Change
    reason: str | None  # why nothing can be said, and what to do
    before_ms: float | None
    after_ms: float | None
    difference_ms: Estimate | None
    shares: tuple[ShareChange, ...]
    settings: tuple[tuple[str, object, object], ...]  # name, A, B: only what differs
    caveats: tuple[str, ...]  # what makes the two hard to compare
    of_one_script: bool = True  # as far as is known
    per: str  # what times are of: where batch sizes differ, B's are for as many samples as A's

    @property
    def ratio(self) -> float | None:
        """How many times as long a step takes in B."""
        if self.before_ms is None or self.after_ms is None or self.before_ms <= 0:
            return None
        return self.after_ms / self.before_ms


def compare(a: Report, b: Report) -> Comparison:
    """Compare the steps of two runs by their intervals.

    The two are independent, so their margins add in quadrature. A run without an interval (too
    few windows, or a trace alone) gives no verdict: a point estimate says nothing about noise.
    """
    times = _times_as_many_samples(a, b)
    before, after = _estimate(a), _estimate(b, times)
    difference, change, reason = None, "unknown", None
    if before is None or after is None:
        which, lacks = ("the first", a) if before is None else ("the second", b)
        reason = f"{which} run has no interval of its step time. {_to_have_one(lacks)}"
    else:
        margin = math.hypot(before.margin, after.margin)
        n = min(before.n, after.n)
        difference = Estimate.around(after.value - before.value, margin, n=n)
        change = (
            "faster" if difference.high < 0 else "slower" if difference.low > 0 else "no difference"
        )
    return Comparison(
        change=change,  # type: ignore[arg-type]
        reason=reason,
        before_ms=a.step.wall_ms,
        after_ms=_scaled(b.step.wall_ms, times),
        difference_ms=difference,
        shares=tuple(
            ShareChange(
                name=name,
                before_ms=_share_ms(a, name, b),
                after_ms=_scaled(_share_ms(b, name, a), times),
            )
            for name in SHARE_ORDER
        )
        + _outside(a, b, times),
        settings=_settings(a, b),
        caveats=_caveats(a, b),
        of_one_script=_other_script(a, b) is None,
        per="a step" if times == 1.0 else "for as many samples",
    )


# What comes each so many steps was surely due in twice as many.
_PERIODS = 2
MAX_BATCH = 2**31  # samples: a report.json may be anyone's


def _times_as_many_samples(a: Report, b: Report) -> float:
    """As many samples as a step of A has, in steps of B; 1 where that is not known of both."""
    sizes = [r.loaders[0].batch_size if r.loaders else None for r in (a, b)]
    ours = [size for size in sizes if size is not None and 0 < size < MAX_BATCH]
    return ours[0] / ours[1] if len(ours) == 2 else 1.0


def _to_have_one(report: Report) -> str:
    if report.command in ("diagnose", "sweep"):
        return "Measure again with a larger --budget."
    return "Compare runs of `loaderdoctor diagnose`, which measures several windows."


def _scaled(value: float | None, times: float) -> float | None:
    return None if value is None else value * times


def _estimate(report: Report, times: float = 1.0) -> Estimate | None:
    wall, interval = report.step.wall_ms, report.step.wall_ms_ci
    if wall is None or interval is None:
        return None
    low, high = (edge * times for edge in interval)
    return Estimate(value=wall * times, low=low, high=high, n=report.step.count)


def _share_ms(report: Report, name: str, beside: Report) -> float | None:
    """None where it was not recorded; so is what is left of a step of which `beside` knows more."""
    shares: Shares | None = report.shares
    value: float | None = getattr(shares, name) if shares is not None else None
    if name == "other" and not _recorded(beside) <= _recorded(report):
        return None
    wall = report.step.wall_ms
    return value * wall if value is not None and wall is not None else None


# Shares that `other` holds too where they were not recorded.
_WITHIN_OTHER = ("input", "host", "compute")


def _recorded(report: Report) -> set[str]:
    shares = report.shares
    return {n for n in _WITHIN_OTHER if shares is not None and getattr(shares, n) is not None}


def _outside_ms(report: Report, beside: Report) -> float | None:
    """None where it was not recorded; nor is nothing that was watched for less than it may take."""
    wall = report.wall
    if wall is None:
        return None
    if not wall.outside and report.run is None and beside.wall is not None:
        every = [part.every_steps for part in beside.wall.outside]
        if any(n is None or wall.n_steps < _PERIODS * n for n in every):
            return None
    return wall.total_ms - wall.step_ms


def _outside(a: Report, b: Report, times: float) -> tuple[ShareChange, ...]:
    """What lies outside the steps, a training step, where either run has any."""
    before, after = _outside_ms(a, b), _outside_ms(b, a)
    if not before and not after:
        return ()
    return (ShareChange(name="outside", before_ms=before, after_ms=_scaled(after, times)),)


def _settings(a: Report, b: Report) -> tuple[tuple[str, object, object], ...]:
    """Settings of the loader that feeds the step."""
    if not (a.loaders and b.loaders):
        return ()
    before, after = a.loaders[0].settings, b.loaders[0].settings
    names = dict.fromkeys([*before, *after])
    return tuple(
        (name, before.get(name), after.get(name))
        for name in names
        if before.get(name) != after.get(name)
    )


# Where these differ, a difference in step time may not be the loader's.
_SURROUNDINGS = ("host", "device_name", "usable_cpus", "torch", "n_threads")


def _caveats(a: Report, b: Report) -> tuple[str, ...]:
    found = []
    if (other := _other_script(a, b)) is not None:
        found.append(f"they ran different things: {other[0]} and {other[1]}")
    data = tuple(r.loaders[0].dataset if r.loaders else None for r in (a, b))
    if data[0] != data[1] and None not in data:
        found.append(f"the dataset differs: {data[0]} and {data[1]}")
    for name in _SURROUNDINGS:
        x, y = a.environment.get(name), b.environment.get(name)
        if x != y and x is not None and y is not None:
            found.append(f"{name} differs: {x} and {y}")
    batch = tuple(r.loaders[0].batch_size if r.loaders else None for r in (a, b))
    if batch[0] != batch[1] and None not in batch:
        found.append(
            f"the batch size differs ({batch[0]} and {batch[1]}): times of the second are for as "
            "many samples as a step of the first"
        )
    return tuple(found)


def _other_script(a: Report, b: Report) -> tuple[str, str] | None:
    """What each ran, where that differs: other files, of which the text differs too."""
    if a.target != b.target:
        return a.target, b.target
    if a.script is None or b.script is None:
        return None
    ours, theirs = _main_file(a.script), _main_file(b.script)
    if ours is None or theirs is None or ours[0] == theirs[0] or ours[1] == theirs[1]:
        return None  # one file, before and after a change, or one text in two folders
    return ours[0], theirs[0]


def _main_file(script: Script) -> tuple[str, str] | None:
    """(path, hash) of the script itself; None where it was not kept."""
    if script.given is None:
        return None
    path = posixpath.normpath(posixpath.join(script.cwd, script.given.replace("\\", "/")))
    return (path, script.sources[path]) if path in script.sources else None


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
        values = (heading(name), _value(name, before), _value(name, after))
        table.add_row(*(Text(_shown(text)) for text in values), "")
    caveats = [
        Text.assemble(("mind: ", "yellow"), Text(_shown(caveat)), overflow="fold")
        for caveat in found.caveats
    ]
    said = Text(sentence(found), style=_STYLES[found.change])
    return Legible(Group(said, Text(""), table, *caveats))


def _value(name: str, value: Any) -> str:
    """What it was set to: as words where the setting is one of ours."""
    is_ours = name in READINGS and not READINGS[name].spelling
    readable = isinstance(value, bool | int | float | str)  # report.json may be anyone's
    return phrase(name, value) if is_ours and readable else fmt.setting(value)


def _shown(text: str) -> str:
    """Text of a report, which may be anyone's: no longer than two lines, and it steers nothing."""
    text = fmt.plain(text[: 2 * _MAX_CHARS])
    return text if len(text) <= _MAX_CHARS else text[: _MAX_CHARS - 1] + "…"


def sentence(found: Comparison) -> str:
    """The answer, as in `Faster: 42.2 → 12.1 ms a step, 30.1 ± 0.4 ms less.`."""
    difference = found.difference_ms
    if difference is None or found.before_ms is None or found.after_ms is None:
        return f"Can't tell: {found.reason}"
    steps = f"{fmt.ms(found.before_ms)} → {fmt.ms(found.after_ms)} {found.per}"
    interval = (difference.low, difference.high)
    if found.change == "no difference":
        margin = max(abs(difference.low), abs(difference.high))
        return f"No difference beyond the noise: {steps}, at most {fmt.ms(margin)} apart."
    less = found.change == "faster"
    of = "" if found.of_one_script else ", of two scripts that differ"
    shown = abs(difference.value)
    mirrored = (-interval[1], -interval[0]) if less else interval
    word = "less" if less else "more"
    return f"{found.change.capitalize()}: {steps}, {fmt.ms(shown, mirrored)} {word}{of}."


def _pair(before: float | None, after: float | None) -> tuple[str, str, str]:
    change = ""
    if before is not None and after is not None:
        sign = "+" if after >= before else "−"
        change = f"{sign}{fmt.ms(abs(after - before))}"
    return fmt.ms(before), fmt.ms(after), change
