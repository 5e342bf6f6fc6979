"""The charts of a report, each with the same figures as a table: for wide and for narrow pages.

Where drawing fails, the table stands in the chart's place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from loaderdoctor import format as fmt
from loaderdoctor.facts.step import SampleTimes, StepTimeline, WaitSeries
from loaderdoctor.report.charts import (
    NO_PREFETCH,
    Bars,
    Prediction,
    Predictions,
    RunLine,
    Subject,
    gpu_memory_bars,
    host_memory_bars,
    share_stacks,
    step_bars,
    time_legend,
    time_note,
    workers_by_prefetch,
)
from loaderdoctor.report.model import Report
from loaderdoctor.report.run_model import GpuBusy, Run
from loaderdoctor.report.words import run as run_words
from loaderdoctor.report.words.tables import is_clear

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
class Table:
    """Rows of text under headings; the first column names the row."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One chart as the page shows it: `wide` and `narrow` are the same chart; None: not drawn."""

    name: str
    title: str
    note: str
    legend: tuple[tuple[str, str], ...] = ()  # (colour of the page, words)
    wide: Markup | None = None
    narrow: Markup | None = None
    table: Table | None = None
    problem: str | None = None


def _drawn(
    subject: Subject,
    *,
    name: str,
    title: str,
    note: str,
    legend: Iterable[tuple[str, str]] = (),
    headings: Sequence[str] = (),
    rows: Iterable[Sequence[str]] = (),
) -> Chart:
    """The chart with its pictures for both widths; with the reason where the library failed."""
    table = Table(headings=tuple(headings), rows=tuple(map(tuple, rows))) if headings else None
    made = Chart(name=name, title=title, note=note, legend=tuple(legend), table=table)
    try:
        from loaderdoctor.report.charts.draw import svg_pair

        wide, narrow = svg_pair(subject, name=name, description=title)
    except Exception as error:  # a broken library must not cost the report
        return replace(made, problem=f"{type(error).__name__}: {error}")
    return replace(made, wide=wide, narrow=narrow)


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedSteps:
    """Steps of one capture; `label` says under which settings, None where there is one capture."""

    label: str | None
    steps: tuple[StepTimeline, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HtmlExtras:
    """What report.html shows beyond report.json; empty where nothing of the kind was recorded.

    Commands fill it from attribution: the report computes nothing.
    """

    made_at: float | None = None  # seconds since the epoch
    traced: tuple[TracedSteps, ...] = ()
    advised: TracedSteps | None = None  # a step with what is advised, or what did best
    waits: WaitSeries | None = None
    samples: SampleTimes | None = None
    predictions: tuple[Prediction, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Charts:
    """Everything drawn for a report; empty tuples and None where nothing was recorded."""

    before_after: tuple[Chart, ...]  # a step as it is, and with what is advised, to one scale
    timelines: tuple[Chart, ...]
    waits: Chart | None
    samples: Chart | None
    trials: tuple[Chart, ...]
    predictions: Chart | None
    busy: Chart | None
    run: Chart | None


def charts_of(report: Report, extras: HtmlExtras) -> Charts:
    own = next(iter(extras.traced), None)
    steps = [(traced, step) for traced in extras.traced for step in traced.steps]
    return Charts(
        before_after=_before_after(own, extras.advised),
        timelines=tuple(
            _timeline(number, traced, step)
            for number, (traced, step) in enumerate(steps)
            if number or not _drawn_alike(own, extras.advised)
        ),
        waits=_waits(extras.waits) if extras.waits is not None else None,
        samples=_samples(extras.samples) if extras.samples is not None else None,
        trials=tuple(_trials(report)),
        predictions=_predictions(extras.predictions) if extras.predictions else None,
        busy=_busy(report.gpu.busy) if report.gpu and report.gpu.busy else None,
        run=_run(report.run) if report.run is not None and report.run.timeline else None,
    )


def _before_after(own: TracedSteps | None, other: TracedSteps | None) -> tuple[Chart, ...]:
    """A typical step as it is and one as advised, to the same scale; empty without both."""
    if own is None or other is None or not (own.steps and other.steps):
        return ()
    axis_ms = max(own.steps[0].wall_ms, other.steps[0].wall_ms)
    return tuple(
        replace(
            _timeline(name, traced, replace(traced.steps[0], axis_ms=axis_ms)),
            title=f"{words}: {fmt.ms(traced.steps[0].wall_ms)}",
        )
        for name, traced, words in (
            ("before", own, "As it is"),
            ("after", other, f"With {fmt.plain(other.label or 'what is advised')}"),
        )
    )


def _drawn_alike(own: TracedSteps | None, other: TracedSteps | None) -> bool:
    """Whether the pair's first picture is that of the step by itself: one of them will do."""
    return (
        own is not None
        and other is not None
        and bool(own.steps and other.steps)
        and own.steps[0].wall_ms >= other.steps[0].wall_ms
    )


def _timeline(number: int | str, traced: TracedSteps, step: StepTimeline) -> Chart:
    """What each thread, the device and the workers did in one step."""
    strips = [(row, strip) for row in step.rows for strip in row.strips if strip.spans]
    shown = {strip.doing for _, strip in strips}
    title = f"{_WHICH[step.which]}: {fmt.ms(step.wall_ms)}"
    if traced.label is not None:
        title += f", {fmt.plain(traced.label)}"
    note = f"Step {step.number} of the {step.n_steps} measured in the trace."
    if step.n_workers_left_out:
        note += f" {fmt.count(step.n_workers_left_out, 'more row')} of workers left out."
    whole_ms = step.wall_ms
    return _drawn(
        step,
        name=f"step-{number}",
        title=title,
        note=note,
        legend=((doing, words) for doing, words in DOING_WORDS.items() if doing in shown),
        headings=("row", "doing", "time", "of the step"),
        rows=(
            (
                row.name,
                DOING_WORDS[strip.doing],
                fmt.ms(strip.total_ms),
                fmt.share(strip.total_ms / whole_ms if whole_ms else None),
            )
            for row, strip in strips
        ),
    )


def _busy(series: GpuBusy) -> Chart:
    gaps, shares = series.idle_gaps, series.shares or (0.0,)
    legend = [("compute", "a kernel runs")]
    figures = {
        "window": fmt.seconds(series.window_ms / 1e3),
        "mean": fmt.share(sum(shares) / len(shares)),
        "lowest": fmt.share(min(shares)),
        "idle gaps": f"{gaps.n:,}" if gaps is not None else "0",
    }
    if gaps is not None:
        legend.append(("input", "falls idle"))
        figures |= {
            "each": fmt.seconds(gaps.mean_ms / 1e3),
            "period": fmt.seconds(gaps.period_ms / 1e3) if gaps.period_ms is not None else "–",
            "in steps": f"{gaps.period_steps:g}" if gaps.period_steps is not None else "–",
            "busy otherwise": fmt.share(gaps.usual_share),
            "in the gaps": fmt.share(gaps.low_share),
            "waiting": fmt.share(gaps.waiting_share),
        }
    return _drawn(
        series,
        name="gpu-busy",
        title="GPU-busy over time",
        note=f"{series.summary} Each value is of {fmt.seconds(series.over_ms / 1e3)}.",
        legend=legend,
        headings=tuple(figures),
        rows=[tuple(figures.values())],
    )


def _run(run: Run) -> Chart:
    legend = [(colour, words) for words, colour, _ in run_words.parts(run.time)]
    if run.alerts:
        legend.append(("ink", "something was told"))
    stretches = tuple(
        (
            stretch.start_s,
            stretch.end_s,
            tuple((colour, share) for _, colour, share in run_words.parts(stretch.time)),
        )
        for stretch in run.timeline
    )
    return _drawn(
        RunLine(stretches=stretches, alerts=tuple(alert.at_s for alert in run.alerts)),
        name="run-line",
        title="Where the time went",
        note=f"{fmt.count(len(run.timeline), 'stretch', 'stretches')} of the run, in order.",
        legend=legend,
        headings=run_words.EPOCH_HEADINGS,
        rows=run_words.epoch_rows(run.epochs),
    )


def _waits(series: WaitSeries) -> Chart:
    n = len(series.waits_ms)
    note = f"{fmt.count(n, 'batch', 'batches')} of the {series.source}, in order"
    note += f"; {series.n_left_out:,} later ones not shown." if series.n_left_out else "."
    legend = [("input", "wait for one batch")]
    if series.cycle_means_ms:
        legend.append(("ink", f"mean of each {series.cycle} batches, one from every worker"))
    if series.epochs:
        legend.append(("good", "an epoch begins (dashes)"))
    if series.windows:
        legend.append(("muted", "a later window begins"))
    figures = {
        "batches": f"{n:,}",
        "mean wait": fmt.ms(series.mean_ms),
        "median": fmt.ms(series.quantile_ms(0.5)),
        "95 % of them below": fmt.ms(series.quantile_ms(0.95)),
        "longest": fmt.ms(max(series.waits_ms)),
        "epochs begun": f"{len(series.epochs):,}",
    }
    return _drawn(
        series,
        name="waits",
        title="Wait for each batch",
        note=note,
        legend=legend,
        headings=tuple(figures),
        rows=[tuple(figures.values())],
    )


def _samples(samples: SampleTimes) -> Chart:
    median, p95 = fmt.ms(samples.median_ms), fmt.ms(samples.p95_ms)
    return _drawn(
        samples,
        name="samples",
        title="Time to load a sample",
        note=f"{fmt.count(samples.n, 'sample')}. Line: the median, {median}. "
        f"Dashes: 95 % are below {p95}.",
        headings=("samples", "median", "95 % of them below", "slowest"),
        rows=[(f"{samples.n:,}", median, p95, fmt.ms(samples.max_ms))],
    )


def _trials(report: Report) -> Iterator[Chart]:
    """Charts of trials that ran, fastest first; each only where two trials can be compared."""
    alike = report.by_hardware[0][2] if report.trials else ()  # unlike machines are not compared
    ran = [(i, t) for i, t in enumerate(report.trials) if t.status == "ok" and t.step_ms]
    ran = [(i, t) for i, t in ran if i in alike]
    ran.sort(key=lambda item: (not is_clear(item[1]), item[1].compared_ms or 0.0))
    if len(ran) < 2:
        return
    rows = [(f"#{i} · {trial.label}", i) for i, trial in ran]
    yield _drawn(
        Bars(bars=step_bars(report, rows)),
        name="trial-times",
        title="Step time by settings",
        note=time_note(report),
        legend=time_legend(report),
    )
    shared = [row for row in rows if report.trials[row[1]].shares is not None]
    if len(shared) > 1:
        stacks = share_stacks(report, shared)
        yield _drawn(
            stacks,
            name="trial-shares",
            title="Where the step goes, by settings",
            note="Percent of each trial's step, in the same order; trials that were not traced "
            "have no bar.",
            legend=((name, name) for name in stacks.parts),
        )
    own: Mapping[str, Any] = report.loaders[0].settings if report.loaders else {}
    cells = workers_by_prefetch([t for _, t in ran], own)
    if cells is not None:
        factors = [f if f == NO_PREFETCH else f"prefetch {f}" for f in cells.prefetch]
        known = {at: fmt.number(ms) for at, ms in cells.step_ms.items()}
        yield _drawn(
            cells,
            name="grid",
            title="Workers × prefetch",
            note="Milliseconds a step; the darker, the slower. Of trials that differ in other "
            "settings too, the fastest.",
            headings=("", *factors),
            rows=(
                (
                    fmt.count(workers, "worker"),
                    *(known.get((row, column), "–") for column in range(len(factors))),
                )
                for row, workers in enumerate(cells.workers)
            ),
        )
    on_gpu = [row for row in rows if report.trials[row[1]].gpu_peak_allocated_bytes is not None]
    if on_gpu:
        yield _drawn(
            Bars(bars=gpu_memory_bars(report, on_gpu)),
            name="gpu-memory",
            title="GPU memory",
            note="Peaks of the training process.",
            legend=(("plain", "allocated"), ("ink", "reserved (line)")),
        )
    on_host = [row for row in rows if report.trials[row[1]].host_bytes is not None]
    if on_host:
        yield _drawn(
            Bars(bars=host_memory_bars(report, on_host)),
            name="host-memory",
            title="Host memory",
            note="Of the training process and its workers together.",
        )


def _predictions(pairs: Sequence[Prediction]) -> Chart:
    pairs = [replace(pair, label=fmt.plain(pair.label)) for pair in pairs]
    return _drawn(
        Predictions(pairs=tuple(pairs)),
        name="predictions",
        title="Predicted against measured",
        note="Milliseconds a step. Ring: predicted from the diagnosis. Dot: measured in this run.",
        headings=("settings", "predicted", "measured"),
        rows=(
            (x.label, fmt.ms(x.predicted_ms), fmt.ms(x.measured_ms, x.measured_ci_ms))
            for x in pairs
        ),
    )
