"""One subject -> its chart: SVG for the page in both widths, PNG for papers and slides.

SVG takes fonts and colours from the page it stands in. Text stays text there: it is set in the
page's font, searched and escaped. Which pictures a sweep leaves as files is in `pictures_of`.
"""

from __future__ import annotations

import io
import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import matplotlib as mpl
from markupsafe import Markup, escape
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from loaderdoctor import format as fmt
from loaderdoctor.facts.step import SampleTimes, StepTimeline, WaitSeries
from loaderdoctor.report import RunFolder, make_folder, write_bytes
from loaderdoctor.report.charts import (
    Bar,
    Bars,
    BarsAndLine,
    Grid,
    Grouped,
    Labelled,
    Predictions,
    RunLine,
    Stacked,
    Subject,
    gpu_memory_bars,
    host_memory_bars,
    plots,
    share_stacks,
    step_bars,
    time_legend,
    workers_by_prefetch,
)
from loaderdoctor.report.charts.sheet import NARROW, WIDE, Sheet, in_css, paper
from loaderdoctor.report.model import Report
from loaderdoctor.report.run_model import GpuBusy

_DPI = 144  # of a PNG: two of its pixels for one of the page
_TITLE, _LEGEND = 30, 22  # heights above the chart, in pixels of the page


def svg_pair(subject: Subject, *, name: str, description: str) -> tuple[Markup, Markup]:
    """The chart for wide pages, and for phones. `name` is unique within the page."""
    drawn = []
    for sheet in (WIDE, NARROW):
        with _settings(f"{name}-{sheet.width}"):
            drawn.append(_svg(_figure(sheet, subject), description=description))
    return drawn[0], drawn[1]


def png(subject: Subject, *, title: str, legend: Sequence[tuple[str, str]] = ()) -> bytes:
    """The chart as its own file, under its title. `legend`: (colour of the page, words)."""
    sheet = paper(_TITLE + (_LEGEND if legend else 0))
    with _settings(title):
        figure = _figure(sheet, subject)
        height = figure.get_figheight() * 72
        ink = sheet.colour("ink")
        figure.text(10 / sheet.width, 1 - 10 / height, title, color=ink, fontsize=14, va="top")
        if legend:
            figure.legend(
                handles=[Patch(color=sheet.colour(fill), label=words) for fill, words in legend],
                loc="upper left",
                bbox_to_anchor=(4 / sheet.width, 1 - _TITLE / height),
                ncols=len(legend),
                frameon=False,
                fontsize=sheet.size - 1,
                labelcolor=ink,
                handlelength=1.0,
                borderpad=0.2,
            )
        out = io.BytesIO()
        FigureCanvasAgg(figure)
        figure.savefig(out, format="png", dpi=_DPI)
    return out.getvalue()


def _figure(sheet: Sheet, subject: Subject) -> Figure:
    match subject:
        case StepTimeline():
            return plots.timeline(sheet, subject)
        case WaitSeries():
            return plots.waits(sheet, subject)
        case SampleTimes():
            return plots.sample_histogram(sheet, subject)
        case GpuBusy():
            return plots.busy(sheet, subject)
        case Bars():
            return plots.bars(sheet, subject)
        case BarsAndLine():
            return plots.bars_and_line(sheet, subject)
        case Grouped():
            return plots.grouped(sheet, subject)
        case Stacked():
            return plots.stacked(sheet, subject)
        case Grid():
            return plots.grid(sheet, subject)
        case Predictions():
            return plots.predictions(sheet, subject.pairs)
        case RunLine():
            return plots.run_line(sheet, subject)


@contextmanager
def _settings(name: str) -> Iterator[None]:
    """Matplotlib as it comes, whatever the user's own matplotlibrc says; ids made from `name`."""
    logger = logging.getLogger("matplotlib")  # notes on its font cache are no news of ours
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with mpl.rc_context(), warnings.catch_warnings():
            # "Glyph missing from font": on the page the browser sets the text, not matplotlib.
            warnings.simplefilter("ignore", UserWarning)
            mpl.rcdefaults()
            mpl.rcParams.update(
                {
                    "svg.fonttype": "none",
                    "svg.hashsalt": name,
                    "text.parse_math": False,
                    "axes.unicode_minus": True,
                    "path.simplify": False,
                }
            )
            yield
    finally:
        logger.setLevel(level)


def _svg(figure: Figure, *, description: str) -> Markup:
    """The figure as an element of the page. Text in it was escaped by matplotlib."""
    out = io.StringIO()
    FigureCanvasSVG(figure)
    figure.savefig(
        out,
        format="svg",
        transparent=True,
        metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
    )
    text = out.getvalue()
    head, body = text[text.index("<svg") :].split(">", 1)
    box = re.search(r'viewBox="([^"]+)"', head)
    assert box is not None
    width = box[1].split()[2]
    return Markup(
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="{box[1]}" width="{width}" role="img" aria-label="{escape(description)}">'
        + _lean(body)
    )


def _lean(body: str) -> str:
    """Without what the page gives, and without digits below a hundredth of a pixel.

    Only attributes and tags are touched: text between tags holds no `<` or `"` that we write.
    """
    body = re.sub(r"<style.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    return re.sub(r"<[^>]+>", _lean_tag, re.sub(r">\s+<", "><", body))


def _lean_tag(match: re.Match[str]) -> str:
    tag = match[0]
    if tag.startswith("<g "):
        tag = re.sub(r' id="[^"]*"', "", tag)
    tag = re.sub(r"font-family: [^;\"]*(; )?", "", tag)
    tag = re.sub(r' transform="rotate\(-0 [^"]*\)"', "", tag)
    tag = re.sub(r"(\.\d\d)\d+", r"\1", in_css(tag))
    return re.sub(r"\s*\n\s*", " ", tag)


FOLDER = "plots"
# Of groups in one picture: neighbours differ in hue and lightness.
_GROUP_FILLS = ("communication", "input", "compute", "copy", "host", "other")

Legend = tuple[tuple[str, str], ...]
Groups = Mapping[str, Sequence[int]]  # indexes of trials by their group; "" where there are none


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One file: its name without the ending, and what is in it."""

    name: str
    title: str
    subject: Subject
    legend: Legend = ()


def write_plots(report: Report, folder: RunFolder) -> None:
    """Write every picture the report has figures for into plots/. Raises RunError."""
    target = folder.path / FOLDER
    for picture in pictures_of(report):
        make_folder(target)
        data = png(picture.subject, title=fmt.plain(picture.title), legend=picture.legend)
        write_bytes(target / f"{picture.name}.png", data)


def pictures_of(report: Report) -> Iterator[Picture]:
    """Which pictures a sweep's report has figures for."""
    alike = report.by_hardware[0][2] if report.trials else ()  # unlike machines are not compared
    trials = report.trials
    ran = [i for i in alike if trials[i].status == "ok" and trials[i].step_ms is not None]
    if not ran:
        return
    groups = _groups(report, ran)
    if len(groups) > 1:
        yield _times_overview(report, groups)
    for group, members in groups.items():
        bars, unit = _times(report, members)
        title = f"{_title('Time', group)}: {unit}"
        legend = () if trials[members[0]].row is not None else tuple(time_legend(report))
        yield Picture(
            name=_name("times", group), title=title, subject=Bars(bars=bars), legend=legend
        )
    shared = [i for i in ran if trials[i].shares is not None and trials[i].same_as is None]
    if shared:
        stacks = share_stacks(report, _labelled(report, shared))
        legend = tuple((name, name) for name in stacks.parts)
        yield Picture(name="shares", title="Where the step goes", subject=stacks, legend=legend)
    own = report.loaders[0].settings if report.loaders else {}
    if grid := workers_by_prefetch([trials[i] for i in ran], own):
        title = "Milliseconds a step by workers and prefetch factor"
        yield Picture(name="workers-prefetch", title=title, subject=grid)
    yield from _memory(report, groups)


def _groups(report: Report, ran: Sequence[int]) -> dict[str, list[int]]:
    """Trials by their group in a preset; all together where there are none."""
    rows = [i for i in ran if report.trials[i].row is not None]
    found: dict[str, list[int]] = {}
    for i in rows or ran:
        found.setdefault(report.trials[i].group or "", []).append(i)
    return found


def _times_overview(report: Report, groups: Groups) -> Picture:
    fills = [_GROUP_FILLS[n % len(_GROUP_FILLS)] for n in range(len(groups))]
    of_groups = [_times(report, members) for members in groups.values()]
    return Picture(
        name="times-overview",
        title="Time",
        subject=Grouped(
            groups=tuple((fill, bars) for fill, (bars, _) in zip(fills, of_groups, strict=True)),
            unit=of_groups[0][1],
        ),
        legend=tuple(zip(fills, map(fmt.plain, groups), strict=True)),
    )


def _times(report: Report, members: Sequence[int]) -> tuple[tuple[Bar, ...], str]:
    """Epochs where all have them (start-up included, as published figures are), else steps."""
    trials = [report.trials[i] for i in members]
    bars = step_bars(report, _labelled(report, members))
    if trials[0].row is None or any(trial.epoch_s is None for trial in trials):
        return bars, "ms a step"
    epochs = []
    for bar, trial in zip(bars, trials, strict=True):
        epoch_s, ci = trial.epoch_s or 0.0, bar.interval
        scale = epoch_s / (trial.compared_ms or 1.0)  # bars are for as many samples
        interval = (ci[0] * scale, ci[1] * scale) if ci is not None else None
        text = fmt.seconds(epoch_s)
        epochs.append(replace(bar, value=epoch_s, interval=interval, text=text, fill="plain"))
    return tuple(epochs), "s an epoch, start-up included"


def _memory(report: Report, groups: Groups) -> Iterator[Picture]:
    trials = report.trials
    on_gpu = _where_any(
        groups, {i for i, t in enumerate(trials) if t.gpu_peak_allocated_bytes is not None}
    )
    for group, members in on_gpu.items():
        yield _gpu_memory(report, "gpu-memory", "GPU memory", group, members)
        others = [i for i in members if not trials[i].settings.get("resident")]
        if others and len(others) < len(members):
            name, what = "gpu-memory-without-resident", "GPU memory without resident"
            yield _gpu_memory(report, name, what, group, others)
    on_host = _where_any(groups, {i for i, t in enumerate(trials) if t.host_bytes is not None})
    for group, members in on_host.items():
        bars = host_memory_bars(report, _labelled(report, members))
        title = _title("Host memory of the whole process tree", group)
        yield Picture(name=_name("host-memory", group), title=title, subject=Bars(bars=bars))


def _gpu_memory(
    report: Report, name: str, what: str, group: str, members: Sequence[int]
) -> Picture:
    bars = gpu_memory_bars(report, _labelled(report, members))
    subject: Subject = Bars(bars=bars)
    if any(bar.tick is not None for bar in bars):
        subject = BarsAndLine(bars=bars, names=("allocated, GiB", "reserved, GiB"))
    legend = (("plain", "allocated"), ("ink", "reserved (line)"))
    return Picture(
        name=_name(name, group), title=_title(what, group), subject=subject, legend=legend
    )


def _where_any(groups: Groups, known: set[int]) -> dict[str, list[int]]:
    """The groups' trials that are known; before several groups, all of them as an overview."""
    found = {
        g: kept for g, members in groups.items() if (kept := [i for i in members if i in known])
    }
    if len(found) < 2:
        return found
    return {"overview": [i for members in found.values() for i in members], **found}


def _labelled(report: Report, members: Sequence[int]) -> Labelled:
    """Short names; the group stands with them where there are several."""
    trials = [report.trials[i] for i in members]
    several = len({trial.group for trial in trials}) > 1
    return [
        (f"{trial.group}: {trial.label}" if several and trial.group else trial.label, i)
        for i, trial in zip(members, trials, strict=True)
    ]


def _name(what: str, group: str) -> str:
    words = re.sub(r"[\W_]+", "-", group).strip("-")
    return f"{what}-{words}" if words else what


def _title(what: str, group: str) -> str:
    return f"{what}, {group}" if group else what
