"""Predictions against what was tried, wherever that was: a finding's words give way to measurement.

A rule says what it measured in its summary, and what it expects of a setting as a `Prediction`.
Here the two meet the trials: where the setting was tried, the finding says what was measured, and
nothing else of it; where it was not, the expectation, marked as one.

Behind it: trials and the settings to change as the report holds them. That converts only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import msgspec

from loaderdoctor.advice import Candidate, CodeAdvice, PredictedFrom, Prescription
from loaderdoctor.advice.code import Written
from loaderdoctor.advice.writing import trains_by_code
from loaderdoctor.attribution.verdict import judge_run
from loaderdoctor.estimate import Estimate, interval
from loaderdoctor.facts import Facts, own_settings_known
from loaderdoctor.findings import CAUSE_PART, PARTS, Finding, Outcome, Prediction, Tested
from loaderdoctor.report import model
from loaderdoctor.settings import AXES_BY_NAME, Settings, Value
from loaderdoctor.tryout import Resources
from loaderdoctor.tryout.comparing import Compared

UNSAFE = "predicted, and not advised here, for the reason given under “Not advised”"
NOTHING: Mapping[str, str] = {}


class Elsewhere(msgspec.Struct, frozen=True, kw_only=True):
    """Trials of the run that an analysed trace was recorded in."""

    trials: tuple[model.Trial, ...]
    recorded: int  # which of them the trace is of: 0, the loop as it is
    own: dict[str, Any]  # settings of the loop's loader
    command: str  # "diagnose" | "sweep"
    target: str  # what was run


def answered(
    findings: Iterable[Finding],
    facts: Facts,
    trials: Sequence[model.Trial] = (),
    *,
    not_advised: Collection[model.NotAdvised] = (),
    elsewhere: Elsewhere | None = None,
) -> tuple[Finding, ...]:
    """The findings with their predictions checked against what was tried, here or `elsewhere`.

    `not_advised` are settings that would break the run.
    """
    untested = not_tested(elsewhere)
    if elsewhere is not None and len(elsewhere.trials) > 1:
        return check_predictions(
            findings,
            outcomes(elsewhere.trials, elsewhere.own, elsewhere.command, base=elsewhere.recorded),
            own=_settings(_of(elsewhere.trials, elsewhere.recorded, elsewhere.own)),
            tried="Tried in the run that this trace belongs to",
            untried=f"{untested}; the run that this trace belongs to did not",
        )
    own = own_settings_known(facts)
    if facts.command == "analyze":
        return check_predictions(findings, (), own=own, untried=untested)
    tried = outcomes(trials, own.as_dict(), facts.command)
    unsafe = {row.setting: UNSAFE for row in not_advised}
    return check_predictions(findings, tried, own=own, marks=unsafe)


def not_tested(elsewhere: Elsewhere | None, *, tries: bool = True) -> str:
    """That nothing has tested a change that a trace suggests, and the command that does.

    Where `diagnose` has no such trial (`tries`), it still measures what there is to gain.
    """
    target = elsewhere.target if elsewhere is not None else "train.py"
    what = "tries it in the running loop" if tries else "measures what it can gain"
    return f"not tested: `loaderdoctor diagnose {target}` {what}"


def outcomes(
    trials: Sequence[model.Trial], own: Mapping[str, Any], command: str, *, base: int = 0
) -> tuple[Outcome, ...]:
    """What each trial that may be compared with trial `base` came to, in order.

    Left out are trials on other machines, of other work (another portion, ready batches), and
    those that failed. `own` are the loader's settings, `command` what ran them.
    """
    if base >= len(trials) or trials[base].compared_ms is None:
        return ()
    of_base = trials[base]
    before = _of(trials, base, own)
    found = []
    for index, trial in enumerate(trials):
        if index == base or trial.status != "ok" or trial.compared_ms is None:
            continue
        if (trial.hardware, trial.group) != (of_base.hardware, of_base.group):
            continue
        after = _of(trials, index, own)
        changed = _settings({k: v for k, v in after.items() if v != before.get(k)})
        other_work = trial.changes_numerics and changed.numerics != ("num_threads",)
        if not changed.changed() or changed.probes or other_work:
            continue
        swept = command == "sweep"
        found.append(_outcome(changed, trial, of_base, paired=base == 0, swept=swept))
    return tuple(found)


def _outcome(
    changed: Settings, trial: model.Trial, of_base: model.Trial, *, paired: bool, swept: bool
) -> Outcome:
    assert trial.compared_ms is not None
    assert of_base.compared_ms is not None
    own_ms, gain_ms = of_base.compared_ms, of_base.compared_ms - trial.compared_ms
    interval = trial.gain_ms_ci
    confirmed = False if swept else None
    if paired and trial.gain_ms is not None:
        gain_ms = trial.gain_ms
        if swept:
            confirmed = trial.gain_confirmed
        # Of the same rounds: but a trial that was confirmed won a comparison of many noisy ones.
        own_ms = own_ms if swept else trial.compared_ms + gain_ms
    else:
        # Independent means: their margins add up in squares.
        margins = [_margin(trial), _margin(of_base)]
        if any(m is None for m in margins):
            interval = None
        else:
            margin = math.hypot(*(m for m in margins if m is not None))
            interval = (gain_ms - margin, gain_ms + margin)
    return Outcome(
        settings=changed,
        step_ms=own_ms - gain_ms,
        own_ms=own_ms,
        gain_low_ms=interval[0] if interval is not None else None,
        gain_high_ms=interval[1] if interval is not None else None,
        confirmed=confirmed,
    )


def _margin(trial: model.Trial) -> float | None:
    if trial.step_ms_ci is None or not trial.step_ms or trial.compared_ms is None:
        return None
    low, high = trial.step_ms_ci
    return (high - low) / 2 * trial.compared_ms / trial.step_ms


def _of(trials: Sequence[model.Trial], index: int, own: Mapping[str, Any]) -> dict[str, Any]:
    """The whole settings of a trial: what it changes over the loop's own."""
    changed = trials[index].settings if index < len(trials) else {}
    return {**own, **{k: v for k, v in changed.items() if v is not None}}


def _settings(values: Mapping[str, Any]) -> Settings:
    return Settings(**{k: v for k, v in values.items() if k in AXES_BY_NAME})


def check_predictions(
    findings: Iterable[Finding],
    outcomes: Sequence[Outcome],
    *,
    own: Settings,
    tried: str = "Tried in this run",
    untried: str = "predicted, not tried in this run",
    marks: Mapping[str, str] = NOTHING,
) -> tuple[Finding, ...]:
    """The findings with each of their predictions answered, in their order.

    `own` are the settings of the loop as it is. `tried` begins what was measured, `untried` marks
    an expectation that nothing has tested; `marks` do so instead, of settings that have one.
    """
    return tuple(_checked(finding, outcomes, own, tried, untried, marks) for finding in findings)


def tests_of(finding: Finding, outcomes: Sequence[Outcome], own: Settings) -> tuple[Tested, ...]:
    """Which of its predictions were tested, each by the trial that says most of it."""
    found = ((p, _closest(p, outcomes, own)) for p in finding.predictions)
    return tuple(Tested(prediction=p, outcome=o) for p, o in found if o is not None)


def _checked(
    finding: Finding,
    outcomes: Sequence[Outcome],
    own: Settings,
    tried: str,
    untried: str,
    marks: Mapping[str, str],
) -> Finding:
    if not finding.predictions:
        return finding
    tests = {t.prediction: t for t in tests_of(finding, outcomes, own)}
    said = [finding.summary]
    advice = finding.advice
    for prediction in finding.predictions:
        test = tests.get(prediction)
        if test is None:
            # Where the advice says the same, how to test it is said there.
            mark = untried.partition(":")[0] if prediction.advised and advice else untried
            mark = marks.get(prediction.setting, mark)
            said.append(f"{prediction.sentence.removesuffix('.')} ({mark}).")
            continue
        measured = f"{tried} {test.sentence}"
        if measured not in said:
            said.append(measured)
        if test.refuted and prediction.advised:
            advice = prediction.instead
    if advice is not None and any(p.advised and p not in tests for p in finding.predictions):
        advice = f"{advice.removesuffix('.')} ({untried})."
    return replace(finding, summary=" ".join(said), advice=advice, tested=tuple(tests.values()))


def _closest(prediction: Prediction, outcomes: Sequence[Outcome], own: Settings) -> Outcome | None:
    """The trial of exactly what was predicted, else the best of those it speaks about.

    Of several, those that change nothing else first, then the fastest: what else they change may
    be what helps.
    """
    about = [o for o in outcomes if _speaks_of(prediction, o.settings, own)]
    name = prediction.setting
    exact = [o for o in about if o.settings.as_dict()[name] == prediction.value]
    return min(exact or about, key=lambda o: (_others(o.settings, name), o.step_ms), default=None)


def _speaks_of(prediction: Prediction, changed: Settings, own: Settings) -> bool:
    value, before = changed.as_dict()[prediction.setting], own.as_dict()[prediction.setting]
    if value is None or value == before:
        return False
    if prediction.which == "other":
        return prediction.value is None or value == prediction.value
    return _more(value, before) if prediction.which == "more" else not _more(value, before)


def _more(value: Value, before: Value) -> bool:
    return isinstance(value, int) and value > (before if isinstance(before, int) else 0)


def _others(settings: Settings, name: str) -> int:
    """Settings changed next to this one; how workers start and last belongs to their number."""
    together = ("persistent_workers", "prefetch_factor") if name == "num_workers" else ()
    return sum(1 for other in settings.changed() if other != name and other not in together)


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


def basis_of(candidate: Candidate, inconclusive: Compared | None) -> str:
    """What an untried recommendation rests on."""
    how = candidate.prediction
    known = candidate.predicted_step_ms is not None
    text = f"That is {how}." if known else f"{how[:1].upper()}{how[1:]}."
    if inconclusive is not None and inconclusive.step is not None:
        text += (
            f" The few windows that there was time for ({inconclusive.n_rounds}) took "
            f"{inconclusive.step.value:.3g} ms a step next to "
            f"{inconclusive.own_ms:.3g} as is: too few to show a gain."
        )
    return text


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


def host_causes(
    facts: Facts,
    prescription: Prescription,
    advice: Iterable[CodeAdvice],
    best: Compared | None,
) -> dict[str, float]:
    """Titles of what answers a host verdict, with the milliseconds that it saves at most.

    No setting of the loader touches the loop's own work, however well it was measured: such advice
    goes first, unless `best`, what was measured, answers the host too, or gains more than it can.
    """
    (bound, severity), step_ms = judge_run(facts), facts.step_ms
    if bound != "host" or severity not in ("high", "moderate") or step_ms is None:
        return {}
    kinds = set(PARTS["host"])
    if best is not None:
        changed = best.settings.changed().items()
        answers = [c for c in prescription.candidates if kinds & set(c.kinds)]
        if any(c.settings.changed().items() <= changed for c in answers):
            return {}
    gained_ms = (1.0 - best.part) * step_ms if best is not None else 0.0
    least_ms = max(gained_ms, CAUSE_PART * (facts.share("host") or 0.0) * step_ms)
    saves = {a.title: a.bound_ms or 0.0 for a in advice if a.kind in kinds}
    return {title: ms for title, ms in saves.items() if ms > least_ms}
