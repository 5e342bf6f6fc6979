"""Charts over time: single steps, waits, samples, how busy the GPU is, and a whole run."""

from __future__ import annotations

import math
from collections import defaultdict

from matplotlib.figure import Figure
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
)

from loaderdoctor.facts.pictures import SampleTimes, StepTimeline, WaitSeries
from loaderdoctor.report.charts.sheet import Line, Rectangle, Sheet, labelled_rows
from loaderdoctor.report.charts.subjects import RunLine
from loaderdoctor.report.machine_model import GpuBusy

# Steps of opacity for spans that stand for several: finer ones can't be told apart.
_SHADES = 8
# Cycle marks closer than this are a grey area, not marks (CSS pixels).
_MARK_PX = 9
# Of a period in which the GPU falls idle: the mark above it (percent of the height) is seen in
# print too, and none is thinner than can be seen (a part of the window).
_GAP_OPACITY = 0.22
_GAP_EDGE = 3.0
_GAP_LEAST = 0.003
_UNITS = ((86_400.0, "days"), (3_600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))


def timeline(sheet: Sheet, step: StepTimeline) -> Figure:
    """One step, one row for each thread, the accelerator and the workers."""
    rows = labelled_rows(sheet, [row.name for row in step.rows])
    axes = rows.axes
    axes.set_xlim(0, step.axis_ms or step.wall_ms)
    axes.grid(axis="x", color=sheet.colour("line"), linewidth=1)
    sheet.rectangles(
        axes, [rows.box(i, 0.0, step.wall_ms) for i in range(len(step.rows))], fill="track"
    )
    for i, row in enumerate(step.rows):
        for strip in row.strips:
            shades: defaultdict[int, list[Rectangle]] = defaultdict(list)
            for start, length, covered in strip.spans:
                shades[math.ceil(covered * _SHADES)].append(rows.box(i, start, length))
            for shade, boxes in shades.items():
                sheet.rectangles(axes, boxes, fill=strip.doing, opacity=shade / _SHADES)
    sheet.name_x(axes, "ms since the step began")
    return rows.figure


def waits(sheet: Sheet, series: WaitSeries) -> Figure:
    """One bar a batch; the mean of each worker cycle above it, marks where an epoch begins."""
    n = len(series.waits_ms)
    figure, axes = sheet.axes(190 if sheet.narrow else 220, left=44, top=12, bottom=38)
    top = max(max(series.waits_ms), 1e-6) * 1.08
    axes.set_xlim(0, n)
    axes.set_ylim(0, top)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axes.grid(axis="y", color=sheet.colour("line"), linewidth=1)
    thickness = 0.8 if n <= 120 else 1.0
    bars = [
        (i + (1 - thickness) / 2, 0.0, thickness, wait) for i, wait in enumerate(series.waits_ms)
    ]
    sheet.rectangles(axes, bars, fill="input")
    if series.cycle * (sheet.width - 56) / n >= _MARK_PX:
        ends = [first + series.cycle for first, _ in series.cycle_means_ms]
        sheet.strokes(axes, [_upright(at, top) for at in ends], ink="line", width=1)
    means = [((at, mean), (at + series.cycle, mean)) for at, mean in series.cycle_means_ms]
    sheet.strokes(axes, means, ink="ink", width=2)
    sheet.strokes(axes, [_upright(at, top) for at in series.windows], ink="muted", width=1)
    for at in series.epochs:
        axes.axvline(at, color=sheet.colour("good"), linewidth=2, linestyle=(0, (4, 3)))
    sheet.name_y(axes, "ms waited")
    sheet.name_x(axes, "batch")
    return figure


def sample_histogram(sheet: Sheet, samples: SampleTimes) -> Figure:
    """How many samples took how long to load."""
    figure, axes = sheet.axes(160 if sheet.narrow else 180, left=44, top=12, bottom=38)
    edges = samples.edges_ms
    if samples.logarithmic:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=20))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.tick_params(axis="x", which="minor", length=0)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.0f}"))
    axes.grid(axis="y", color=sheet.colour("line"), linewidth=1)
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(0, max(samples.counts) * 1.1)
    # Rare slow samples are the point of this chart: no bar is thinner than can be seen.
    least = max(samples.counts) * 0.015
    boxes = [
        (low, 0.0, high - low, max(float(count), least))
        for low, high, count in zip(edges, edges[1:], samples.counts, strict=False)
        if count
    ]
    sheet.rectangles(axes, boxes, fill="fetch")
    for at, style in ((samples.median_ms, "-"), (samples.p95_ms, (0, (4, 3)))):
        axes.axvline(at, color=sheet.colour("ink"), linewidth=1.5, linestyle=style)
    sheet.name_y(axes, "samples")
    sheet.name_x(axes, "ms to load one sample" + (", logarithmic" if samples.logarithmic else ""))
    return figure


def busy(sheet: Sheet, series: GpuBusy) -> Figure:
    """Percent busy over the window, a band behind each GPU idle gap."""
    figure, axes = sheet.axes(170 if sheet.narrow else 190, left=40, top=18, bottom=38)
    axes.set_xlim(0, series.window_ms)
    axes.set_ylim(0, 100 + _GAP_EDGE)
    axes.yaxis.set_major_locator(FixedLocator([0, 25, 50, 75, 100]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,g}"))
    axes.grid(axis="y", color=sheet.colour("line"), linewidth=1)
    spans = series.idle_gaps.spans_ms if series.idle_gaps is not None else ()
    least = _GAP_LEAST * series.window_ms
    bands = [(a, max(b - a, least)) for a, b in spans]
    shaded = [(a, 0.0, width, 100.0) for a, width in bands]
    sheet.rectangles(axes, shaded, fill="input", opacity=_GAP_OPACITY)
    sheet.rectangles(axes, [(a, 100.0, width, _GAP_EDGE) for a, width in bands], fill="input")
    bars = [
        (i * series.every_ms, 0.0, series.every_ms, 100 * share)
        for i, share in enumerate(series.shares)
        if share
    ]
    sheet.rectangles(axes, bars, fill="compute")
    sheet.name_y(axes, "% of the time busy")
    sheet.name_x(axes, "ms since the first measured step began")
    return figure


def _upright(at: float, top: float) -> Line:
    return (at, 0.0), (at, top)


def run_line(sheet: Sheet, line: RunLine) -> Figure:
    """Stacked shares of each stretch, bottom up; a mark where something was told."""
    figure, axes = sheet.axes(190 if sheet.narrow else 220, left=44, top=12, bottom=38)
    end_s = max((end for _, end, _ in line.stretches), default=1.0)
    per, name = next((u for u in _UNITS if end_s >= 2 * u[0]), _UNITS[-1])
    axes.set_xlim(0, end_s / per)
    axes.set_ylim(0, 100)
    axes.yaxis.set_major_locator(FixedLocator([0, 50, 100]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:.0f} %"))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    boxes: dict[str, list[Rectangle]] = {}
    for start_s, stop_s, shares in line.stretches:
        bottom = 0.0
        for colour, share in shares:
            box = (start_s / per, bottom, (stop_s - start_s) / per, 100 * share)
            boxes.setdefault(colour, []).append(box)
            bottom += 100 * share
    for colour, found in boxes.items():
        sheet.rectangles(axes, found, fill=colour)
    for at_s in line.alerts:
        axes.axvline(at_s / per, color=sheet.colour("ink"), linewidth=1.5)
    sheet.name_y(axes, "of the time")
    sheet.name_x(axes, f"{name} since the run began")
    return figure
