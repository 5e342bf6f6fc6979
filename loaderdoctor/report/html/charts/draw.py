"""One subject -> its chart, for both widths of page."""

from __future__ import annotations

from markupsafe import Markup
from matplotlib.figure import Figure

from loaderdoctor.facts.pictures import SampleTimes, StepTimeline, WaitSeries
from loaderdoctor.report.html.charts import gpu, steps, trials
from loaderdoctor.report.html.charts.canvas import NARROW, WIDE, Sheet, settings, svg
from loaderdoctor.report.html.subjects import Grid, Predictions, Subject, TrialBars
from loaderdoctor.report.model import GpuBusy


def pictures(subject: Subject, *, name: str, description: str) -> tuple[Markup, Markup]:
    """The chart as SVG for wide pages, and for phones. `name` is unique within the page."""
    drawn = []
    for sheet in (WIDE, NARROW):
        with settings(f"{name}-{sheet.width}"):
            drawn.append(svg(_figure(sheet, subject), description=description))
    return drawn[0], drawn[1]


def _figure(sheet: Sheet, subject: Subject) -> Figure:
    match subject:
        case StepTimeline():
            return steps.timeline(sheet, subject)
        case WaitSeries():
            return steps.waits(sheet, subject)
        case SampleTimes():
            return steps.sample_histogram(sheet, subject)
        case GpuBusy():
            return gpu.busy(sheet, subject)
        case Grid():
            return trials.grid(sheet, subject)
        case Predictions():
            return trials.predictions(sheet, subject.pairs)
        case TrialBars(figure="times"):
            return trials.times(sheet, subject.bars)
        case TrialBars(figure="shares"):
            return trials.shares(sheet, subject.bars)
        case TrialBars():
            return trials.memory(sheet, subject.bars, gpu=subject.figure == "gpu-memory")
