"""What the bar at the top shows, and what its parts are of.

Parts of a step, of a batch where nothing trains, of a trace as one window, or of all the time where
that is the point.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loaderdoctor import format as fmt
from loaderdoctor.report.model import Report

# The parts of a step in reading order: what can be gained first, then what the step is for.
SHARE_ORDER = ("input", "copy", "communication", "host", "compute", "other")
# What lies outside the steps, before all of them: there only where the verdict is about it.
OUTSIDE = "outside"
_ALWAYS_SHOWN = ("input", "copy", "host", "compute")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of the whole. `share` None: not recorded or not applicable, as `text` says."""

    name: str
    share: float | None
    ms: str
    text: str
    hidden: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """`title` and `time` are of what the parts make up; no parts where nothing is known."""

    title: str
    time: str  # with the noise
    unit: str  # behind it
    is_known: bool  # whether `time` is a time
    parts: tuple[Part, ...]


def is_outside(report: Report) -> bool:
    """Whether the verdict is about what lies outside the steps."""
    return report.verdict.bound == OUTSIDE


def parts_of(report: Report) -> Parts:
    """The shares, without those that are nothing and go without saying."""
    shares, whole, wall = report.shares, whole_of(report), report.wall
    values = {name: getattr(shares, name) for name in SHARE_ORDER} if shares is not None else {}
    if not is_outside(report) or wall is None or not values:
        return Parts(
            title=whole.title,
            time=whole.time,
            unit=whole.unit,
            is_known=whole.ms is not None,
            parts=_parts(report, values, whole.ms),
        )
    inside = 1.0 - wall.outside_share
    scaled = {name: None if v is None else v * inside for name, v in values.items()}
    return Parts(
        title="A training step, with its share of what lies outside",
        time=fmt.ms(wall.total_ms),
        unit=f"a training step, {whole.time} of it the step itself",
        is_known=True,
        parts=_parts(report, {OUTSIDE: wall.outside_share, **scaled}, wall.total_ms),
    )


def _parts(
    report: Report, values: Mapping[str, float | None], whole_ms: float | None
) -> tuple[Part, ...]:
    hidden = {"input": report.hidden.input_ms, "copy": report.hidden.copy_ms}
    found = []
    for name, share in values.items():
        if not share and name not in _ALWAYS_SHOWN:
            continue
        absent = f"{fmt.NOT_APPLICABLE} (no accelerator)" if name == "copy" else fmt.NOT_RECORDED
        behind = hidden.get(name)
        found.append(
            Part(
                name=name,
                share=share,
                ms=fmt.ms(share * whole_ms) if share is not None and whole_ms is not None else "",
                text=fmt.share(share) if share is not None else absent,
                hidden=f"and {fmt.ms(behind)} hidden behind other work" if behind else "",
            )
        )
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """`ms` None: its time was not recorded."""

    title: str  # of the section that shows its shares
    ms: float | None
    time: str  # with the noise
    unit: str  # behind a time: "a step"
    per: str  # in a heading, behind a unit of time


def whole_of(report: Report) -> Whole:
    """Of this report."""
    step = report.step
    if step.window_ms is not None:
        return Whole(
            title="The recorded window",
            ms=step.window_ms,
            time=fmt.ms(step.window_ms),
            unit="in all",
            per="in all",
        )
    unit = "a step" if report.trains else "a batch"
    return Whole(
        title="The step" if report.trains else "A batch",
        ms=step.wall_ms,
        time=(
            fmt.step_ms(step.wall_ms, step.wall_ms_ci)
            if step.wall_ms is not None
            else f"Step time {fmt.NOT_RECORDED}"
        ),
        unit=unit if step.wall_ms is not None else "",
        per=unit,
    )
