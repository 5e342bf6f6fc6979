"""Single steps on the page: what each thread, the device and the workers did."""

from __future__ import annotations

from dataclasses import dataclass, replace

from loaderdoctor import format as fmt
from loaderdoctor.facts.pictures import StepTimeline
from loaderdoctor.report.html.chart import Chart, Table, drawn

# What the colours of a timeline mean, by the page's name for each.
DOING_WORDS = {
    "input": "getting a batch",
    "copy": "copying to the device",
    "communication": "collectives",
    "host": "host work",
    "compute": "compute",
    "sync": "waiting for the device",
    "fetch": "loading samples",
    "collate": "collating",
    "send": "handing over the batch",
    "pin": "pinning or moving batches",
    "other": "not recorded",
}
_WHICH = {"typical": "A typical step", "slowest": "The slowest step", "only": "The step"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedSteps:
    """Steps of one capture; `label` says under which settings, None where there is one capture."""

    label: str | None
    steps: tuple[StepTimeline, ...]


def before_after(own: TracedSteps | None, other: TracedSteps | None) -> tuple[Chart, ...]:
    """A typical step as it is and one as advised, to the same scale; empty without both."""
    if own is None or other is None or not (own.steps and other.steps):
        return ()
    axis_ms = max(own.steps[0].wall_ms, other.steps[0].wall_ms)
    return tuple(
        replace(
            timeline(name, traced, replace(traced.steps[0], axis_ms=axis_ms)),
            title=f"{words}: {fmt.ms(traced.steps[0].wall_ms)}",
        )
        for name, traced, words in (
            ("before", own, "As it is"),
            ("after", other, f"With {fmt.plain(other.label or 'what is advised')}"),
        )
    )


def drawn_alike(own: TracedSteps | None, other: TracedSteps | None) -> bool:
    """Whether the pair's first picture is that of the step by itself: one of them will do."""
    return (
        own is not None
        and other is not None
        and bool(own.steps and other.steps)
        and own.steps[0].wall_ms >= other.steps[0].wall_ms
    )


def timeline(number: int | str, traced: TracedSteps, step: StepTimeline) -> Chart:
    shown = [strip.doing for row in step.rows for strip in row.strips if strip.spans]
    legend = tuple((doing, words) for doing, words in DOING_WORDS.items() if doing in shown)
    title = f"{_WHICH[step.which]}: {fmt.ms(step.wall_ms)}"
    if traced.label is not None:
        title += f", {fmt.plain(traced.label)}"
    note = f"Step {step.number} of the {step.n_steps} measured in the trace."
    if step.n_workers_left_out:
        note += f" {fmt.count(step.n_workers_left_out, 'more row')} of workers left out."
    table = Table(
        headings=("row", "doing", "time", "of the step"),
        rows=tuple(
            (
                row.name,
                DOING_WORDS[strip.doing],
                fmt.ms(strip.total_ms),
                fmt.share(strip.total_ms / step.wall_ms if step.wall_ms else None),
            )
            for row in step.rows
            for strip in row.strips
            if strip.spans
        ),
    )
    chart = Chart(name=f"step-{number}", title=title, note=note, legend=legend, table=table)
    return drawn(chart, step)
