"""What report.html shows beyond report.json: pictures of steps, waits, samples, predictions.

Commands fill it from attribution; the report computes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from loaderdoctor.estimate import Interval
from loaderdoctor.facts.pictures import SampleTimes, StepTimeline, WaitSeries


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedSteps:
    """Steps of one capture; `label` says under which settings, None where there is one capture."""

    label: str | None
    steps: tuple[StepTimeline, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What settings were expected to give, beside what they gave (ms a step)."""

    label: str
    predicted_ms: float
    measured_ms: float
    measured_ci_ms: Interval | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HtmlExtras:
    """Empty where nothing of the kind was recorded."""

    made_at: float | None = None  # seconds since the epoch
    traced: tuple[TracedSteps, ...] = ()
    waits: WaitSeries | None = None
    samples: SampleTimes | None = None
    predictions: tuple[Prediction, ...] = ()
