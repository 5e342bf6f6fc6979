"""Charts of trials: times, shares, memory, the workers × prefetch grid, predictions."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from matplotlib.figure import Figure

from loaderdoctor import format as fmt
from loaderdoctor.estimate import Interval
from loaderdoctor.report.charts.sheet import Line, Rectangle, Rows, Sheet, labelled_rows
from loaderdoctor.report.charts.subjects import (
    NO_PREFETCH,
    Bars,
    BarsAndLine,
    Grid,
    Grouped,
    Prediction,
    Stacked,
)

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
