"""What times and shares are of: a step, a batch where nothing trains, or a trace as one window."""

from __future__ import annotations

from dataclasses import dataclass

from loaderdoctor import format as fmt
from loaderdoctor.report.model import Report


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
