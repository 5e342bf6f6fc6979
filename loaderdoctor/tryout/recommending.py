"""Trials and the settings to change as the report holds them. Converts only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from loaderdoctor.advice import CodeAdvice, PredictedFrom
from loaderdoctor.advice.code import Written
from loaderdoctor.advice.writing import trains_by_code
from loaderdoctor.estimate import Estimate, interval
from loaderdoctor.report import model
from loaderdoctor.settings import Settings, Value
from loaderdoctor.tryout import Resources


def trial_row(
    settings: Settings,
    *,
    step: Estimate | None,
    samples_per_s: float | None,
    status: Literal["ok", "failed", "skipped"] = "ok",
    reason: str | None = None,
    resources: Resources | None = None,
    window_ms: Sequence[float] = (),
    shares: model.Shares | None = None,
    gain: Estimate | None = None,
) -> model.Trial:
    """One trial; `window_ms` are the windows that its step time is of."""
    return model.Trial(
        settings=settings.as_dict(),
        label=settings.label(),
        changes_numerics=bool(settings.numerics),
        status=status,
        reason=reason,
        step_ms=step.value if step is not None else None,
        step_ms_ci=interval(step),
        samples_per_s=samples_per_s,
        shares=shares,
        n_windows=len(window_ms),
        window_ms=tuple(window_ms),
        gain_ms=gain.value if gain is not None else None,
        gain_ms_ci=interval(gain),
        **(resources.as_dict() if resources is not None else {}),
    )


def recommendations(
    settings: Settings,
    *,
    own: dict[str, Any],
    written: Callable[[str], Written],
    caution: Callable[[str, Value], str | None],
    summary: str | None,
    measured: Estimate | None,
    windows_step_ms: float | None = None,
    own_step_ms: float | None = None,
    speed_up: Estimate | None = None,
    seen_step_ms: float | None = None,
    predicted_step_ms: float | None = None,
    predicted_from: PredictedFrom | None = None,
    also: str | None = None,
    trains: Callable[[str, Value], str | None] = lambda name, value: None,
) -> Iterator[model.Recommendation]:
    """One row for each setting changed; they share one prediction and one measurement.

    `windows_step_ms` is what its windows took where less is claimed (`measured`).
    `written`, `caution` and `trains` are of one setting; `summary` is said once, of all together,
    and so is `also`, what the code needs besides. `speed_up` is that of new processes.
    """
    for name, value in settings.changed().items():
        lines = written(name)
        yield model.Recommendation(
            setting=name,
            from_=own.get(name),
            to=value,
            code=lines.code,
            idea=lines.idea,
            command=lines.command,
            predicted_step_ms=predicted_step_ms,
            predicted_from=predicted_from if predicted_step_ms is not None else None,
            measured_step_ms=measured.value if measured is not None else None,
            measured_ci_ms=interval(measured),
            caution=caution(name, value),
            summary=summary,
            windows_step_ms=windows_step_ms,
            own_step_ms=own_step_ms,
            speed_up_ci=interval(speed_up),
            seen_step_ms=seen_step_ms,
            also=also,
            trains=trains(name, value),
        )
        summary = also = None


def advice_row(
    advice: CodeAdvice, step_ms: float | None, *, untested: str | None = None
) -> model.Recommendation:
    """A change of code, with what the step of `step_ms` comes to at best."""
    best_ms = None
    if advice.bound_ms is not None and step_ms is not None:
        best_ms = max(0.0, step_ms - advice.bound_ms)
    written = written_of(advice)
    return model.Recommendation(
        setting=advice.title,
        from_=None,
        to=None,
        code=written.code,
        predicted_step_ms=best_ms,
        measured_step_ms=None,
        measured_ci_ms=None,
        caution=advice.caution,
        predicted_from=advice.predicted_from if best_ms is not None else None,
        summary=advice.evidence,
        idea=written.idea,
        command=written.command,
        untested=untested,
        trains=trains_by_code(advice),
    )


def written_of(advice: CodeAdvice) -> Written:
    """The lines to write, else what to type, and where neither is known to fit the idea."""
    return Written(
        code=advice.code or "",
        idea=None if advice.code or advice.command else advice.idea,
        command=advice.command if not advice.code else None,
    )
