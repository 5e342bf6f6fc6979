"""The kinds of picture, each from plain numbers to the bytes of a PNG."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from loaderdoctor.report.words import format as fmt

DPI = 120
_ROW = 0.3  # inches of height for one bar
# Okabe and Ito's colours: told apart with any kind of colour vision.
_COLOURS = {
    "input": "#E69F00",
    "copy": "#56B4E9",
    "communication": "#CC79A7",
    "host": "#999999",
    "compute": "#009E73",
    "other": "#F0E442",
}
_BAR, _LINE = "#0072B2", "#D55E00"


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Bars of one picture; `errors` are half intervals, 0 where there is none."""

    labels: tuple[str, ...]
    values: tuple[float, ...]
    unit: str
    errors: tuple[float, ...] = ()

    @property
    def whiskers(self) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """Lengths to the left and right; a wide interval is cut at 0, where no time can lie."""
        if not self.errors:
            return None
        left = tuple(min(v, e) for v, e in zip(self.values, self.errors, strict=True))
        return left, self.errors


def bars(title: str, series: Series) -> bytes:
    """One bar a trial, from the top, with its interval and its value."""
    figure, axes = _sheet(title, len(series.labels))
    places = range(len(series.labels))
    axes.barh(places, series.values, xerr=series.whiskers, color=_BAR, height=0.7, capsize=2)
    errors = series.errors or (0.0,) * len(series.values)
    for at, value, error in zip(places, series.values, errors, strict=True):
        axes.annotate(f" {fmt.number(value)}", (value + error, at), va="center", fontsize=8)
    _rows(axes, series.labels)
    axes.set_xlabel(series.unit)
    axes.margins(x=0.12)
    return _png(figure)


def grouped_bars(title: str, groups: Mapping[str, Series]) -> bytes:
    """The bars of several groups side by side, a colour each."""
    labels = list(dict.fromkeys(label for s in groups.values() for label in s.labels))
    figure, axes = _sheet(title, len(labels) * max(1.0, 0.55 * len(groups)))
    height = 0.8 / len(groups)
    for n, (group, series) in enumerate(groups.items()):
        places = [labels.index(x) - 0.4 + height * (n + 0.5) for x in series.labels]
        shade = tuple(_COLOURS.values())[n % len(_COLOURS)]
        axes.barh(
            places,
            series.values,
            xerr=series.whiskers,
            height=0.92 * height,
            color=shade,
            label=_words(group),
            capsize=1,
        )
    _rows(axes, labels)
    axes.set_xlabel(next(iter(groups.values())).unit)
    axes.legend(fontsize=8)
    return _png(figure)


def stacked(title: str, labels: Sequence[str], parts: Mapping[str, Sequence[float]]) -> bytes:
    """Shares of each trial's step, in percent."""
    figure, axes = _sheet(title, len(labels))
    reached = [0.0] * len(labels)
    for name, values in parts.items():
        axes.barh(
            range(len(labels)), values, left=reached, color=_COLOURS[name], label=name, height=0.7
        )
        reached = [a + b for a, b in zip(reached, values, strict=True)]
    _rows(axes, labels)
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of the step")
    axes.legend(fontsize=8, ncols=len(parts), loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return _png(figure)


def heat_map(
    title: str,
    workers: Sequence[int],
    prefetch: Sequence[str],
    step_ms: Mapping[tuple[int, int], float],
) -> bytes:
    """Step time by workers (rows) and prefetch factor (columns); cells not tried stay empty."""
    figure, axes = _sheet(title, 1.6 * len(workers))
    cells = [
        [step_ms.get((row, column), float("nan")) for column in range(len(prefetch))]
        for row in range(len(workers))
    ]
    image = axes.imshow(cells, cmap="cividis_r", aspect="auto")
    middle = (min(step_ms.values()) + max(step_ms.values())) / 2
    for (row, column), value in step_ms.items():
        shade = "white" if value > middle else "black"
        axes.text(column, row, fmt.number(value), ha="center", va="center", color=shade)
    axes.set_yticks(range(len(workers)), [fmt.count(n, "worker") for n in workers])
    axes.set_xticks(range(len(prefetch)), list(prefetch))
    axes.set_xlabel("prefetch_factor")
    figure.colorbar(image, ax=axes, label="ms a step")
    return _png(figure)


def bars_and_line(
    title: str,
    labels: Sequence[str],
    bar_values: Sequence[float],
    line_values: Sequence[float],
    *,
    names: tuple[str, str],
) -> bytes:
    """Bars on the left axis, a line on a second axis of its own."""
    figure = Figure(figsize=(max(6.0, 0.45 * len(labels) + 2), 4.5), layout="constrained", dpi=DPI)
    axes = figure.add_subplot()
    axes.set_title(_words(title), fontsize=10)
    places = range(len(labels))
    axes.bar(places, bar_values, color=_BAR, label=names[0])
    axes.set_ylabel(names[0], color=_BAR)
    axes.set_xticks(places, [_words(x) for x in labels], rotation=60, ha="right", fontsize=8)
    second = axes.twinx()
    second.plot(places, line_values, color=_LINE, marker="o", label=names[1])
    second.set_ylabel(names[1], color=_LINE)
    second.set_ylim(bottom=0)
    return _png(figure)


def _sheet(title: str, n_rows: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(9, max(2.2, _ROW * n_rows + 1.2)), layout="constrained", dpi=DPI)
    axes = figure.add_subplot()
    axes.set_title(_words(title), fontsize=10, loc="left")
    return figure, axes


def _rows(axes: Axes, labels: Sequence[str]) -> None:
    axes.set_yticks(range(len(labels)), [_words(label) for label in labels], fontsize=8)
    axes.invert_yaxis()


def _words(text: str) -> str:
    """Text of the user's: `$` would start a formula, control characters would be boxes."""
    return fmt.plain(text).replace("$", r"\$")


def _png(figure: Figure) -> bytes:
    FigureCanvasAgg(figure)
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()
