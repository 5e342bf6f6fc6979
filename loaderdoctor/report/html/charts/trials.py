"""Charts of trials: times, shares, the workers × prefetch grid, memory, predictions."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from matplotlib.figure import Figure

from loaderdoctor.estimate import Interval
from loaderdoctor.report.console.bars import ORDER
from loaderdoctor.report.console.tables import UNCLEAR, is_clear
from loaderdoctor.report.html.charts.canvas import (
    Line,
    Rectangle,
    Rows,
    Sheet,
    colour,
    labelled_rows,
    rectangles,
    strokes,
)
from loaderdoctor.report.html.extras import Prediction
from loaderdoctor.report.html.subjects import NO_PREFETCH, Bar, Grid
from loaderdoctor.report.words import format as fmt

GIB = 2**30


def times(sheet: Sheet, bars: Sequence[Bar]) -> Figure:
    """Step time of each trial, with its 95 % interval."""
    values = [
        (fmt.ms(b.trial.step_ms, b.trial.step_ms_ci) if is_clear(b.trial) else UNCLEAR)
        + (f"  {b.mark}" if b.mark else "")
        for b in bars
    ]
    rows = labelled_rows(sheet, [b.label for b in bars], right=12, axis=False)
    steps = [(b.trial.step_ms or 0.0, b.trial.step_ms_ci) for b in bars]
    ends = [_high(step_ms, ci) for step_ms, ci in steps]
    _leave_room(sheet, rows, max(ends), values)
    by_fill: defaultdict[str, list[Rectangle]] = defaultdict(list)
    for i, bar in enumerate(bars):
        by_fill[bar.fill].append(rows.box(i, 0.0, steps[i][0]))
    for fill, boxes in by_fill.items():
        rectangles(rows.axes, boxes, fill=fill)
    _intervals(rows, [ci for _, ci in steps])
    for i, (end, value) in enumerate(zip(ends, values, strict=True)):
        _value(sheet, rows, rows.at(i), end, value)
    return rows.figure


def shares(sheet: Sheet, bars: Sequence[Bar]) -> Figure:
    """Where each traced trial's step goes, in percent."""
    rows = labelled_rows(sheet, [b.label for b in bars], right=16)
    rows.axes.set_xlim(0, 100)
    rows.axes.set_xticks([0, 25, 50, 75, 100], ["0", "25", "50", "75", "100 %"])
    reached = [0.0] * len(bars)
    for name in ORDER:
        parts = [100 * (getattr(b.trial.shares, name) or 0.0) for b in bars]
        boxes = [rows.box(i, reached[i], part) for i, part in enumerate(parts) if part]
        rectangles(rows.axes, boxes, fill=name)
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
        rectangles(axes, [box], fill="track")
        rectangles(axes, [box], fill="input", opacity=0.06 + 0.74 * depth)
        best = step_ms == fastest
        axes.text(
            column + 0.5,
            row + 0.5,
            fmt.number(step_ms),
            ha="center",
            va="center",
            fontsize=sheet.size + (1 if best else 0),
            fontweight="bold" if best else "normal",
            color=colour("ink"),
        )
    axes.set_yticks(
        [row + 0.5 for row in range(n_rows)], [fmt.count(w, "worker") for w in cells.workers]
    )
    axes.set_xticks(
        [column + 0.5 for column in range(n_columns)],
        [c if c == NO_PREFETCH else f"prefetch {c}" for c in cells.prefetch],
    )
    return figure


def memory(sheet: Sheet, bars: Sequence[Bar], *, gpu: bool) -> Figure:
    """Bars: GPU memory allocated with a tick for what is reserved, or the process tree's memory."""
    trials = [b.trial for b in bars]
    used = [(t.gpu_peak_allocated_bytes if gpu else t.host_bytes) or 0 for t in trials]
    kept = [(t.gpu_peak_reserved_bytes if gpu else None) or 0 for t in trials]
    values = [
        fmt.n_bytes(a) + (f", {fmt.n_bytes(b)} reserved" if b and not sheet.narrow else "")
        for a, b in zip(used, kept, strict=True)
    ]
    rows = labelled_rows(sheet, [b.label for b in bars], right=12, axis=False)
    _leave_room(sheet, rows, max(*used, *kept) / GIB, values)
    boxes = [rows.box(i, 0.0, size / GIB) for i, size in enumerate(used)]
    rectangles(rows.axes, boxes, fill="plain")
    half = rows.bar / 2
    ticks = [
        ((size / GIB, rows.at(i) - half), (size / GIB, rows.at(i) + half))
        for i, size in enumerate(kept)
        if size
    ]
    strokes(rows.axes, ticks, ink="ink", width=2)
    for i, value in enumerate(values):
        _value(sheet, rows, rows.at(i), max(used[i], kept[i]) / GIB, value)
    return rows.figure


def predictions(sheet: Sheet, pairs: Sequence[Prediction]) -> Figure:
    """A ring for what was predicted, a bar's end for what was measured, joined by a line."""
    rows = labelled_rows(sheet, [p.label for p in pairs], right=12, axis=False)
    values = [f"{fmt.ms(p.measured_ms, p.measured_ci_ms)}" for p in pairs]
    longest = max(max(p.predicted_ms, _high(p.measured_ms, p.measured_ci_ms)) for p in pairs)
    _leave_room(sheet, rows, longest, values)
    rectangles(rows.axes, [rows.box(i, 0.0, longest) for i in range(len(pairs))], fill="track")
    middle = [rows.at(i) for i in range(len(pairs))]
    joined = [((p.predicted_ms, y), (p.measured_ms, y)) for p, y in zip(pairs, middle, strict=True)]
    strokes(rows.axes, joined, ink="muted", width=2)
    _intervals(rows, [p.measured_ci_ms for p in pairs])
    for at, fill in (
        ([p.predicted_ms for p in pairs], "none"),
        ([p.measured_ms for p in pairs], colour("good")),
    ):
        rows.axes.plot(
            at,
            middle,
            color=colour("ink"),
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
    """Room at the right for the longest value, beside the longest bar."""
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
        color=colour("muted"),
        annotation_clip=False,
    )


def _intervals(rows: Rows, intervals: Sequence[Interval | None]) -> None:
    """Whiskers, one for each row that has an interval."""
    cap = rows.bar / 5
    lines: list[Line] = []
    for i, ci in enumerate(intervals):
        if ci is None:
            continue
        low, high, y = max(0.0, ci[0]), ci[1], rows.at(i)
        lines += [
            ((low, y), (high, y)),
            ((low, y - cap), (low, y + cap)),
            ((high, y - cap), (high, y + cap)),
        ]
    strokes(rows.axes, lines, ink="ink", width=1.2)


def _high(value: float, ci: Interval | None) -> float:
    return value if ci is None else max(value, ci[1])
