"""Predictions against what was tried: what a finding says of settings gives way to measurement.

A rule says what it measured in its summary, and what it expects of a setting as a `Prediction`.
Here the two meet the trials of the run: where the setting was tried, the finding says what was
measured, and nothing else of it; where it was not, the expectation, marked as one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from loaderdoctor.findings.model import Finding, Outcome, Prediction, Tested
from loaderdoctor.settings import Settings, Value

UNSAFE = "predicted, and not advised here, for the reason given under “Not advised”"


def check_predictions(
    findings: Iterable[Finding],
    outcomes: Sequence[Outcome],
    *,
    own: Settings,
    tried: str = "Tried in this run",
    untried: str = "predicted, not tried in this run",
    unsafe: Collection[str] = (),
) -> tuple[Finding, ...]:
    """The findings with each of their predictions answered, in their order.

    `own` are the settings of the loop as it is. `tried` begins what was measured, `untried` marks
    an expectation that nothing has tested; `unsafe` are settings that would break this run.
    """
    marks = dict.fromkeys(unsafe, UNSAFE)
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
            advice = None
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
