"""What the first change means for a whole run: every hour of it, and an epoch."""

from __future__ import annotations

from loaderdoctor import format as fmt
from loaderdoctor.report.model import Report
from loaderdoctor.report.run_model import Wall
from loaderdoctor.report.words.changes import changes_of


def meaning(report: Report) -> str | None:
    """What the first change means for a whole run; None where it was not measured as faster.

    Nor where its gain here is none that a new run is promised, or how much of the time training on
    other loaders takes is not known.
    """
    now_ms = report.step.wall_ms
    first = next(iter(changes_of(report.recommendations)), None)  # what the headline speaks of
    ratio = (first.times_as_fast(now_ms) if first is not None else None) or 0.0
    only_reads = not report.trains and not report.calls_model  # and ends before training, may be
    unpromised = first is not None and not first.is_promised
    outside_ms = _beside_steps_ms(report.wall) if report.wall is not None else 0.0
    if now_ms is None or ratio <= 1.0 or only_reads or unpromised or outside_ms is None:
        return None
    alone_ms, now_ms = now_ms, now_ms + outside_ms
    best_ms = alone_ms / ratio + outside_ms
    what = "training" if report.trains else "inference"
    about = "about " if first is not None and first.is_loose else ""
    text = f"Every hour of this {what} becomes {about}{_minutes(60 * best_ms / now_ms)} min"
    if first is not None and first.first.speed_up_ci is not None:
        slowest, quickest = (
            _minutes(60 * (alone_ms / times + outside_ms) / now_ms)
            for times in first.first.speed_up_ci
        )
        if slowest != quickest:
            text += f" ({quickest} to {slowest} in a new run)"
    steps = report.step.steps_per_epoch
    if steps is not None and first is not None:
        of_steps = f" of {fmt.count(steps, 'step')}" if first.per == "a step" else ""
        text += (
            f"; an epoch{of_steps} takes {about}{fmt.seconds(steps * best_ms / 1e3)} "
            f"instead of {fmt.seconds(steps * now_ms / 1e3)}"
        )
    return text + "."


def _minutes(value: float) -> str:
    """Of an hour, no finer than trials can tell it."""
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def _beside_steps_ms(wall: Wall) -> float | None:
    """What a shorter step leaves as it is, a step; None where it is not known to come again."""
    others = [part for part in wall.elsewhere if not part.in_steps]
    if any(part.n == 1 or part.ms_per_step is None for part in others):
        return None
    return wall.total_ms - wall.step_ms + sum(part.ms_per_step or 0.0 for part in others)
