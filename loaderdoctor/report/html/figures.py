"""The charts of a report, each with the same figures as a table.

Where drawing fails, the table stands in the chart's place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from loaderdoctor import format as fmt
from loaderdoctor.facts.pictures import SampleTimes, WaitSeries
from loaderdoctor.report.charts.subjects import (
    NO_PREFETCH,
    Bars,
    Grid,
    Labelled,
    Prediction,
    Predictions,
    RunLine,
    gpu_memory_bars,
    host_memory_bars,
    share_stacks,
    step_bars,
    time_legend,
    time_note,
    workers_by_prefetch,
)
from loaderdoctor.report.html.chart import Chart, Table, drawn
from loaderdoctor.report.html.timelines import TracedSteps, before_after, drawn_alike, timeline
from loaderdoctor.report.machine_model import GpuBusy
from loaderdoctor.report.model import Report
from loaderdoctor.report.run_model import Run
from loaderdoctor.report.words import run as run_words
from loaderdoctor.report.words.trials import is_clear


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
    """Draw what there is to draw."""
    own = next(iter(extras.traced), None)
    steps = [(traced, step) for traced in extras.traced for step in traced.steps]
    return Charts(
        before_after=before_after(own, extras.advised),
        timelines=tuple(
            timeline(number, traced, step)
            for number, (traced, step) in enumerate(steps)
            if number or not drawn_alike(own, extras.advised)
        ),
        waits=_waits(extras.waits) if extras.waits is not None else None,
        samples=_samples(extras.samples) if extras.samples is not None else None,
        trials=tuple(_trials(report)),
        predictions=_predictions(extras.predictions) if extras.predictions else None,
        busy=_busy(report.gpu.busy) if report.gpu and report.gpu.busy else None,
        run=_run(report.run) if report.run is not None and report.run.timeline else None,
    )


def _busy(series: GpuBusy) -> Chart:
    idle_gaps = series.idle_gaps
    legend = [("compute", "a kernel runs")]
    headings, row = ["window", "mean", "lowest", "idle gaps"], []
    shares = series.shares or (0.0,)
    row = [
        fmt.seconds(series.window_ms / 1e3),
        fmt.share(sum(shares) / len(shares)),
        fmt.share(min(shares)),
        f"{idle_gaps.n:,}" if idle_gaps is not None else "0",
    ]
    if idle_gaps is not None:
        legend.append(("input", "falls idle"))
        headings += ["each", "period", "in steps", "busy otherwise", "in the gaps", "waiting"]
        row += [
            fmt.seconds(idle_gaps.mean_ms / 1e3),
            fmt.seconds(idle_gaps.period_ms / 1e3) if idle_gaps.period_ms is not None else "–",
            f"{idle_gaps.period_steps:g}" if idle_gaps.period_steps is not None else "–",
            fmt.share(idle_gaps.usual_share),
            fmt.share(idle_gaps.low_share),
            fmt.share(idle_gaps.waiting_share),
        ]
    chart = Chart(
        name="gpu-busy",
        title="GPU-busy over time",
        note=f"{series.summary} Each value is of {fmt.seconds(series.over_ms / 1e3)}.",
        legend=tuple(legend),
        table=Table(headings=tuple(headings), rows=(tuple(row),)),
    )
    return drawn(chart, series)


def _run(run: Run) -> Chart:
    shown = list(run_words.parts(run.time))
    legend = tuple((colour, words) for words, colour, _ in shown)
    if run.alerts:
        legend = (*legend, ("ink", "something was told"))
    chart = Chart(
        name="run-line",
        title="Where the time went",
        note=f"{fmt.count(len(run.timeline), 'stretch', 'stretches')} of the run, in order.",
        legend=legend,
        table=Table(
            headings=run_words.EPOCH_HEADINGS, rows=tuple(run_words.epoch_rows(run.epochs))
        ),
    )
    subject = RunLine(
        stretches=tuple(
            (
                stretch.start_s,
                stretch.end_s,
                tuple((colour, share) for _, colour, share in run_words.parts(stretch.time)),
            )
            for stretch in run.timeline
        ),
        alerts=tuple(alert.at_s for alert in run.alerts),
    )
    return drawn(chart, subject)


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
    table = Table(
        headings=(
            "batches",
            "mean wait",
            "median",
            "95 % of them below",
            "longest",
            "epochs begun",
        ),
        rows=(
            (
                f"{n:,}",
                fmt.ms(series.mean_ms),
                fmt.ms(series.quantile_ms(0.5)),
                fmt.ms(series.quantile_ms(0.95)),
                fmt.ms(max(series.waits_ms)),
                f"{len(series.epochs):,}",
            ),
        ),
    )
    chart = Chart(
        name="waits", title="Wait for each batch", note=note, legend=tuple(legend), table=table
    )
    return drawn(chart, series)


def _samples(samples: SampleTimes) -> Chart:
    table = Table(
        headings=("samples", "median", "95 % of them below", "slowest"),
        rows=(
            (
                f"{samples.n:,}",
                fmt.ms(samples.median_ms),
                fmt.ms(samples.p95_ms),
                fmt.ms(samples.max_ms),
            ),
        ),
    )
    chart = Chart(
        name="samples",
        title="Time to load a sample",
        note=f"{fmt.count(samples.n, 'sample')}. Line: the median, {fmt.ms(samples.median_ms)}. "
        f"Dashes: 95 % are below {fmt.ms(samples.p95_ms)}.",
        table=table,
    )
    return drawn(chart, samples)


def _trials(report: Report) -> Iterator[Chart]:
    """Charts of trials that ran, fastest first; each only where two trials can be compared."""
    alike = report.by_hardware[0][2] if report.trials else ()  # unlike machines are not compared
    ran = [(i, t) for i, t in enumerate(report.trials) if t.status == "ok" and t.step_ms]
    ran = [(i, t) for i, t in ran if i in alike]
    ran.sort(key=lambda item: (not is_clear(item[1]), item[1].compared_ms or 0.0))
    if len(ran) < 2:
        return
    rows = [(f"#{i} · {trial.label}", i) for i, trial in ran]
    chart = Chart(
        name="trial-times",
        title="Step time by settings",
        note=time_note(report),
        legend=tuple(time_legend(report)),
    )
    yield drawn(chart, Bars(bars=step_bars(report, rows)))
    shared = [row for row in rows if report.trials[row[1]].shares is not None]
    if len(shared) > 1:
        stacks = share_stacks(report, shared)
        chart = Chart(
            name="trial-shares",
            title="Where the step goes, by settings",
            note="Percent of each trial's step, in the same order; trials that were not traced "
            "have no bar.",
            legend=tuple((name, name) for name in stacks.parts),
        )
        yield drawn(chart, stacks)
    own: Mapping[str, Any] = report.loaders[0].settings if report.loaders else {}
    cells = workers_by_prefetch([t for _, t in ran], own)
    if cells is not None:
        yield _grid(cells)
    yield from _memory(report, rows)


def _grid(cells: Grid) -> Chart:
    table = Table(
        headings=("", *(_prefetch(factor) for factor in cells.prefetch)),
        rows=tuple(
            (
                fmt.count(workers, "worker"),
                *(
                    fmt.number(cells.step_ms[row, column])
                    if (row, column) in cells.step_ms
                    else "–"
                    for column in range(len(cells.prefetch))
                ),
            )
            for row, workers in enumerate(cells.workers)
        ),
    )
    chart = Chart(
        name="grid",
        title="Workers × prefetch",
        note="Milliseconds a step; the darker, the slower. Of trials that differ in other settings "
        "too, the fastest.",
        table=table,
    )
    return drawn(chart, cells)


def _prefetch(factor: str) -> str:
    return factor if factor == NO_PREFETCH else f"prefetch {factor}"


def _memory(report: Report, rows: Labelled) -> Iterator[Chart]:
    trials = report.trials
    on_gpu = [row for row in rows if trials[row[1]].gpu_peak_allocated_bytes is not None]
    if on_gpu:
        chart = Chart(
            name="gpu-memory",
            title="GPU memory",
            note="Peaks of the training process.",
            legend=(("plain", "allocated"), ("ink", "reserved (line)")),
        )
        yield drawn(chart, Bars(bars=gpu_memory_bars(report, on_gpu)))
    on_host = [row for row in rows if trials[row[1]].host_bytes is not None]
    if on_host:
        chart = Chart(
            name="host-memory",
            title="Host memory",
            note="Of the training process and its workers together.",
        )
        yield drawn(chart, Bars(bars=host_memory_bars(report, on_host)))


def _predictions(pairs: Sequence[Prediction]) -> Chart:
    pairs = [replace(pair, label=fmt.plain(pair.label)) for pair in pairs]
    table = Table(
        headings=("settings", "predicted", "measured"),
        rows=tuple(
            (
                pair.label,
                fmt.ms(pair.predicted_ms),
                fmt.ms(pair.measured_ms, pair.measured_ci_ms),
            )
            for pair in pairs
        ),
    )
    chart = Chart(
        name="predictions",
        title="Predicted against measured",
        note="Milliseconds a step. Ring: predicted from the diagnosis. Dot: measured in this run.",
        table=table,
    )
    return drawn(chart, Predictions(pairs=tuple(pairs)))
