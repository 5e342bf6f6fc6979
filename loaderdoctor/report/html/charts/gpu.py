"""The chart of GPU-busy over wall time."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter

from loaderdoctor.report.html.charts.canvas import Sheet, colour, rectangles
from loaderdoctor.report.model import GpuBusy

_IDLE_GAP_OPACITY = 0.22
_IDLE_GAP_EDGE = 3.0  # percent of the height: the mark above a dip, seen in print too
_LEAST_WIDTH = 0.003  # of the window: no dip is thinner than can be seen


def busy(sheet: Sheet, series: GpuBusy) -> Figure:
    """Percent busy over the window, a band behind each dip."""
    figure, axes = sheet.axes(170 if sheet.narrow else 190, left=40, top=18, bottom=38)
    axes.set_xlim(0, series.window_ms)
    axes.set_ylim(0, 100 + _IDLE_GAP_EDGE)
    axes.yaxis.set_major_locator(FixedLocator([0, 25, 50, 75, 100]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,g}"))
    axes.grid(axis="y", color=colour("line"), linewidth=1)
    spans = series.idle_gaps.spans_ms if series.idle_gaps is not None else ()
    least = _LEAST_WIDTH * series.window_ms
    bands = [(a, max(b - a, least)) for a, b in spans]
    rectangles(
        axes,
        [(a, 0.0, width, 100.0) for a, width in bands],
        fill="input",
        opacity=_IDLE_GAP_OPACITY,
    )
    rectangles(axes, [(a, 100.0, width, _IDLE_GAP_EDGE) for a, width in bands], fill="input")
    bars = [
        (i * series.every_ms, 0.0, series.every_ms, 100 * share)
        for i, share in enumerate(series.shares)
        if share
    ]
    rectangles(axes, bars, fill="compute")
    axes.set_title(
        "% of the time busy", loc="left", fontsize=sheet.size - 1, color=colour("muted"), pad=4
    )
    axes.set_xlabel(
        "ms since the first measured step began",
        loc="right",
        fontsize=sheet.size - 1,
        color=colour("muted"),
        labelpad=1,
    )
    return figure
