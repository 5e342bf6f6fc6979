"""The time line of a whole run: where its time went, stretch by stretch, and when what was told."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter

from loaderdoctor.report.charts.sheet import Rectangle, Sheet
from loaderdoctor.report.charts.subjects import RunLine

_UNITS = ((86_400.0, "days"), (3_600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))


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
