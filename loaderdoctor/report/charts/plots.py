"""How each subject is drawn: over time (steps, waits, a whole run), and trials side by side."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from loaderdoctor import format as fmt
from loaderdoctor.estimate import Interval
from loaderdoctor.facts.step import SampleTimes, StepTimeline, WaitSeries
from loaderdoctor.report.charts import (
    NO_PREFETCH,
    Bars,
    BarsAndLine,
    Grid,
    Grouped,
    Prediction,
    RunLine,
    Stacked,
)
from loaderdoctor.report.charts.sheet import Line, Rectangle, Rows, Sheet, labelled_rows
from loaderdoctor.report.run_model import GpuBusy

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


_GROUPED_BAR = 12  # height of one of several bars in a row, in pixels


def bars(sheet: Sheet, subject: Bars) -> Figure:
    """Each row's bar with its interval, or its tick, and its value."""
    drawn = subject.bars
    rows = labelled_rows(sheet, [bar.label for bar in drawn], axis=False)
    texts = [bar.text + ("" if sheet.narrow else bar.tick_text) for bar in drawn]
    _leave_room(sheet, rows, max(bar.end for bar in drawn), texts)
    by_fill: defaultdict[str, list[Rectangle]] = defaultdict(list)
    for i, bar in enumerate(drawn):
        by_fill[bar.fill].append(rows.box(i, 0.0, bar.value))
    for fill, boxes in by_fill.items():
        sheet.rectangles(rows.axes, boxes, fill=fill)
    whiskers = [line for i, bar in enumerate(drawn) for line in _whiskers(rows, i, bar.interval)]
    sheet.strokes(rows.axes, whiskers, ink="ink", width=1.2)
    half = rows.bar / 2
    ticks = [
        ((bar.tick, rows.at(i) - half), (bar.tick, rows.at(i) + half))
        for i, bar in enumerate(drawn)
        if bar.tick is not None
    ]
    sheet.strokes(rows.axes, ticks, ink="ink", width=2)
    for i, (bar, text) in enumerate(zip(drawn, texts, strict=True)):
        _value(sheet, rows, rows.at(i), bar.end, text)
    return rows.figure


def bars_and_line(sheet: Sheet, subject: BarsAndLine) -> Figure:
    """Bars by the axis below, their ticks joined to a line by their own axis above."""
    drawn = subject.bars
    rows = labelled_rows(sheet, [bar.label for bar in drawn], right=20, top=46)
    boxes = [rows.box(i, 0.0, bar.value) for i, bar in enumerate(drawn)]
    sheet.rectangles(rows.axes, boxes, fill="plain")
    rows.axes.set_xlim(0, max(max(bar.value for bar in drawn), 1e-9) * 1.05)
    sheet.name_x(rows.axes, subject.names[0])
    above = rows.axes.twiny()
    for side in ("left", "right", "bottom"):
        above.spines[side].set_visible(False)
    above.spines["top"].set_color(sheet.colour("line"))
    sheet.quiet_ticks(above)
    known = [(bar.tick, rows.at(i)) for i, bar in enumerate(drawn) if bar.tick is not None]
    above.plot(*zip(*known, strict=True), color=sheet.colour("ink"), marker="o", linewidth=1.5)
    above.set_xlim(0, max(tick for tick, _ in known) * 1.05)
    sheet.name_x(above, subject.names[1])
    return rows.figure


def grouped(sheet: Sheet, subject: Grouped) -> Figure:
    """The bars of several groups side by side, a colour each."""
    labels = list(dict.fromkeys(bar.label for _, group in subject.groups for bar in group))
    n = len(subject.groups)
    rows = labelled_rows(sheet, labels, height=_GROUPED_BAR * (n + 1))
    ends = [bar.end for _, group in subject.groups for bar in group]
    rows.axes.set_xlim(0, max(*ends, 1e-9) * 1.05)
    rows.axes.grid(axis="x", color=sheet.colour("line"), linewidth=1)
    height = 1.0 / (n + 1)
    for place, (fill, group) in enumerate(subject.groups):
        tops = [labels.index(bar.label) + height * (place + 0.5) for bar in group]
        boxes = [(0.0, at, bar.value, 0.9 * height) for bar, at in zip(group, tops, strict=True)]
        sheet.rectangles(rows.axes, boxes, fill=fill)
        whiskers = [
            ((max(0.0, bar.interval[0]), at + 0.45 * height), (bar.interval[1], at + 0.45 * height))
            for bar, at in zip(group, tops, strict=True)
            if bar.interval is not None
        ]
        sheet.strokes(rows.axes, whiskers, ink="ink", width=1.2)
    sheet.name_x(rows.axes, subject.unit)
    return rows.figure


def stacked(sheet: Sheet, subject: Stacked) -> Figure:
    """Where each traced trial's step goes, in percent."""
    rows = labelled_rows(sheet, subject.labels, right=16 if sheet.narrow else 24)
    rows.axes.set_xlim(0, 100)
    rows.axes.set_xticks([0, 25, 50, 75, 100], ["0", "25", "50", "75", "100 %"])
    reached = [0.0] * len(subject.labels)
    for name, parts in subject.parts.items():
        boxes = [rows.box(i, reached[i], part) for i, part in enumerate(parts) if part]
        sheet.rectangles(rows.axes, boxes, fill=name)
        reached = [a + b for a, b in zip(reached, parts, strict=True)]
    return rows.figure


def grid(sheet: Sheet, cells: Grid) -> Figure:
    """Step time by workers (rows) and prefetch factor (columns): the darker, the slower."""
    n_rows, n_columns = len(cells.workers), len(cells.prefetch)
    height = 32 * n_rows + 32
    widest = 110 * n_columns + 84
    right = max(10, sheet.width - widest)
    figure, axes = sheet.axes(height, left=74, right=right, top=8, bottom=24)
    axes.set_xlim(0, n_columns)
    axes.set_ylim(n_rows, 0)
    axes.spines["bottom"].set_visible(False)
    fastest, slowest = min(cells.values()), max(cells.values())
    spread = slowest > fastest > 0
    for (row, column), step_ms in cells.step_ms.items():
        # By ratios: one very slow cell must not make all others look alike.
        depth = math.log(step_ms / fastest) / math.log(slowest / fastest) if spread else 0.0
        box = (column + 0.02, row + 0.04, 0.96, 0.92)
        sheet.rectangles(axes, [box], fill="track")
        sheet.rectangles(axes, [box], fill="input", opacity=0.06 + 0.74 * depth)
        best = step_ms == fastest
        axes.text(
            column + 0.5,
            row + 0.5,
            fmt.number(step_ms),
            ha="center",
            va="center",
            fontsize=sheet.size + (1 if best else 0),
            fontweight="bold" if best else "normal",
            color=sheet.colour("ink"),
        )
    axes.set_yticks(
        [row + 0.5 for row in range(n_rows)], [fmt.count(w, "worker") for w in cells.workers]
    )
    axes.set_xticks(
        [column + 0.5 for column in range(n_columns)],
        [c if c == NO_PREFETCH else f"prefetch {c}" for c in cells.prefetch],
    )
    return figure


def predictions(sheet: Sheet, pairs: Sequence[Prediction]) -> Figure:
    """A ring for what was predicted, a dot for what was measured, joined by a line."""
    rows = labelled_rows(sheet, [p.label for p in pairs], axis=False)
    values = [f"{fmt.ms(p.measured_ms, p.measured_ci_ms)}" for p in pairs]
    ends = [(p.predicted_ms, p.measured_ms, *(p.measured_ci_ms or ())) for p in pairs]
    longest = max(map(max, ends))
    _leave_room(sheet, rows, longest, values)
    track = [rows.box(i, 0.0, longest) for i in range(len(pairs))]
    sheet.rectangles(rows.axes, track, fill="track")
    middle = [rows.at(i) for i in range(len(pairs))]
    joined = [((p.predicted_ms, y), (p.measured_ms, y)) for p, y in zip(pairs, middle, strict=True)]
    sheet.strokes(rows.axes, joined, ink="muted", width=2)
    whiskers = [x for i, p in enumerate(pairs) for x in _whiskers(rows, i, p.measured_ci_ms)]
    sheet.strokes(rows.axes, whiskers, ink="ink", width=1.2)
    for at, fill in (
        ([p.predicted_ms for p in pairs], "none"),
        ([p.measured_ms for p in pairs], sheet.colour("good")),
    ):
        rows.axes.plot(
            at,
            middle,
            color=sheet.colour("ink"),
            linestyle="none",
            marker="o",
            markersize=9,
            markerfacecolor=fill,
            markeredgewidth=1.5,
            clip_on=False,
        )
    for y, value in zip(middle, values, strict=True):
        _value(sheet, rows, y, longest, value)
    return rows.figure


def _leave_room(sheet: Sheet, rows: Rows, longest: float, values: Sequence[str]) -> None:
    """Room at the right for the longest value, next to the longest bar."""
    width = rows.axes.bbox.width
    text = max(sheet.text_width(value) for value in values) + 10
    rows.axes.set_xlim(0, max(longest, 1e-9) / max(0.2, 1 - text / width))


def _value(sheet: Sheet, rows: Rows, y: float, after: float, text: str) -> None:
    rows.axes.annotate(
        text,
        (after, y),
        xytext=(6, 0),
        textcoords="offset points",
        va="center_baseline",
        fontsize=sheet.size,
        color=sheet.colour("muted"),
        annotation_clip=False,
    )


def _whiskers(rows: Rows, row: int, interval: Interval | None) -> tuple[Line, ...]:
    """A row's interval, cut at 0, where no time can lie."""
    if interval is None:
        return ()
    low, high, y, cap = max(0.0, interval[0]), interval[1], rows.at(row), rows.bar / 5
    return (
        ((low, y), (high, y)),
        ((low, y - cap), (low, y + cap)),
        ((high, y - cap), (high, y + cap)),
    )
