"""What was tried and found -> the rows of the report: recommendations, trials, advice not given."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from loaderdoctor.advice import IDEAS, MUCH_FASTER, Candidate, CodeAdvice, Prescription
from loaderdoctor.advice.code import Written, written_together
from loaderdoctor.advice.writing import changes_training
from loaderdoctor.advice.writing import written as written_for
from loaderdoctor.attribution.verdict import judge_run
from loaderdoctor.diagnosis.verify import Verification, within_reach
from loaderdoctor.estimate import Estimate
from loaderdoctor.facts import Facts, own_settings_known
from loaderdoctor.facts.step import MODERATE_SHARE
from loaderdoctor.findings import Kind, Severity
from loaderdoctor.findings.capacity import rest_ms
from loaderdoctor.findings.exposure import cold_ms, input_cost, needs_guard
from loaderdoctor.report import model
from loaderdoctor.report.build import shares_of
from loaderdoctor.setting_words import capitalised
from loaderdoctor.settings import Settings, Value
from loaderdoctor.tryout.answers import (
    advice_row,
    basis_of,
    host_causes,
    recommendations,
    trial_row,
    written_of,
)
from loaderdoctor.tryout.comparing import WORTH_DECIDING, Compared, in_new_processes

# What is written for these fits only where their trial ran.
_LOOKED_AT = ("device_decode", "uint8")
# A trial that refused one of these found that the code would do something else, or not run.
_NEVER_ONCE_REFUSED = frozenset({"cache", "device_decode"})


def prescribed_rows(
    facts: Facts, prescription: Prescription, verification: Verification | None
) -> tuple[model.Recommendation, ...]:
    """The combination that measurably helps; where nothing was tried, the best prediction.

    A candidate that was tried and did not help is not recommended, however good it looked. One
    that was seen too seldom to tell stays a prediction, unless what little was seen speaks
    against it.
    """
    rows: list[model.Recommendation] = []
    if verification is not None and verification.best is not None:
        best = verification.best
        match = _prediction(best.settings, prescription)
        rows += _rows(facts, best.settings, match, best, _cautions(best, prescription))
    seen = verification.tried if verification is not None else ()
    inconclusive = {t.settings: t for t in seen if not t.decided and not _worse(t)}
    tried = {t.settings for t in seen if t.settings not in inconclusive}
    untried = [
        c
        for c in prescription.candidates
        if c.settings not in tried and not c.in_code and not _slower(c, facts)
    ]
    settings_help, ahead = bool(rows), 0
    for helpful in _in_code(verification):
        match = _prediction(helpful.settings, prescription)
        caution = match.caution if match is not None else None
        way = next((w for w in prescription.routes if w.axes == _of_data(helpful.settings)), None)
        of_code = list(_rows(facts, helpful.settings, match, helpful, caution, way=way))
        if verification is not None and _worth_its_lines(helpful, verification.best):
            rows, ahead = [*rows[:ahead], *of_code, *rows[ahead:]], ahead + len(of_code)
        else:
            rows += of_code
    if not settings_help and untried and not any(t.decided for t in seen if not t.in_code):
        first = min(untried, key=lambda c: c.settings not in inconclusive)
        rows += _rows(
            facts, first.settings, first, None, first.caution, inconclusive.get(first.settings)
        )
    for candidate in untried:
        if not candidate.live and candidate.settings.changed() and not _covered(candidate, rows):
            rows += _rows(facts, candidate.settings, candidate, None, candidate.caution)
    advice = _unanswered(_advice(facts, prescription, verification), rows, seen)
    worth_ms = MODERATE_SHARE * (facts.step_ms or 0.0)
    quick = {a.title for a in advice if a.one_line and (a.bound_ms or 0.0) >= worth_ms}
    of_wall = Kind.TIME_OUTSIDE_STEPS
    outside = [advice_row(way, facts.step_ms) for way in advice if way.kind is of_wall]
    rows += [advice_row(way, facts.step_ms) for way in advice if way.kind is not of_wall]
    # What the verdict speaks of comes first, and what can be written before mere ideas.
    if judge_run(facts)[0] == "outside":
        return (*outside, *sorted(rows, key=lambda row: _rank(row, quick)))
    ms = host_causes(facts, prescription, advice, leading(verification))
    rows = sorted([*rows, *outside], key=lambda x: (-ms.get(x.setting, 0.0), _rank(x, quick)))
    return tuple(rows)


def _rank(row: model.Recommendation, quick: Collection[str]) -> int:
    """What was measured, one line of code, settings and what else can be written, mere ideas.

    Settings of which only a trial can tell anything, and that none has tried, come behind what is
    predicted, and before ideas of which nothing is known either.
    """
    if row.measured_step_ms is not None:
        return -1  # never below a prediction for the same cause
    if row.from_ is not None or row.to is not None:
        return 1 if row.predicted_step_ms is not None or row.seen_step_ms is not None else 3
    if not (row.code or row.command):
        return 2 if row.predicted_step_ms is not None else 4
    return 0 if row.setting in quick else 1


def leading(verification: Verification | None) -> Compared | None:
    """What was tried and is advised first of all that was tried; None where nothing helps."""
    best = verification.best if verification is not None else None
    ahead = [one for one in _in_code(verification) if _worth_its_lines(one, best)]
    return next(iter(ahead), best)


def _in_code(verification: Verification | None) -> list[Compared]:
    """What was tried in the dataset, helps, and took less than the best settings; fastest first."""
    if verification is None:
        return []
    best = verification.best.part if verification.best is not None else None
    better = [
        (t.part, i)
        for i, t in enumerate(verification.tried)
        if t.in_code and t.helps and not IDEAS & set(t.settings.changed())
        if best is None or t.part < (1.0 - MODERATE_SHARE) * best
    ]
    return [verification.tried[i] for _, i in sorted(better)]


def _worth_its_lines(code: Compared, settings: Compared | None) -> bool:
    """Whether a change of code goes before the best settings, though these are easier to write."""
    if code.settings.device_decode:  # which changes numerics
        return False
    return settings is not None and code.part <= MUCH_FASTER * settings.part


def _advice(
    facts: Facts, prescription: Prescription, verification: Verification | None
) -> list[CodeAdvice]:
    """Changes of code: those of the findings, and where the loop still waits the routes too.

    Then what one line undoes comes first, and what saves most. A route that was tried is no advice
    any more.
    """
    best = verification.best if verification is not None else None
    rest, step_ms = rest_ms(facts), facts.step_ms
    if rest is None or step_ms is None:
        return list(prescription.advice)
    now_ms = best.part * step_ms if best is not None and best.step is not None else step_ms
    cost = input_cost(facts)
    if cost is None or cost.severity is Severity.UNCERTAIN:  # no reason to rewrite a dataset
        return list(prescription.advice)
    if now_ms - rest < MODERATE_SHARE * step_ms:
        return list(prescription.advice)
    # What looked better and was not shown to be is still advice, with its bound. A dataset that
    # refused to be cached must not be; other changes may still be made by hand.
    tried = verification.tried if verification is not None else ()
    decided = {
        _of_data(t.settings)
        for t in tried
        if t.in_code and t.decided and not t.promising
        if not t.refused or _NEVER_ONCE_REFUSED & set(t.settings.changed())
    }
    ran = {_of_data(t.settings) for t in tried if t.steps}
    varies = samples_vary(prescription, verification)
    ways = [
        # Which files there are, and what reads them, or whether pictures are made of bytes, only
        # its trial looks at.
        replace(way, code=None) if way.axis in _LOOKED_AT and way.axes not in ran else way
        for way in prescription.routes
        if way.axes not in decided and not (way.keeps_samples and varies)
    ]
    replaced = {way.kind for way in ways}
    both = [*ways, *(a for a in prescription.advice if a.one_line or a.kind not in replaced)]
    worth_ms = MODERATE_SHARE * step_ms
    return sorted(
        both,
        key=lambda a: (
            not a.one_line or (a.bound_ms or 0.0) < worth_ms,
            -(a.bound_ms or 0.0),
        ),
    )


def _unanswered(
    advice: Sequence[CodeAdvice], rows: Sequence[model.Recommendation], tried: Sequence[Compared]
) -> list[CodeAdvice]:
    """Advice without what a setting says already, or a trial has decided.

    Of what was refused the idea stays: the code would not have done what was meant.
    """
    said = {row.setting for row in rows}
    said |= {
        n
        for t in tried
        if t.decided and not t.refused
        for n in t.settings.changed()
        if not (t.helps and n in IDEAS)
    }
    refused = {n for t in tried if t.refused and not t.in_code for n in t.settings.changed()}
    return [
        replace(a, code=None) if a.axis in refused else a
        for a in advice
        if a.kind is None or a.axis is None or a.axis not in said
    ]


def samples_vary(prescription: Prescription, verification: Verification | None) -> bool:
    """Whether samples differ each time: by a trial that compared some, else by the code."""
    tried = verification.tried if verification is not None else ()
    cached = [t for t in tried if t.in_code and _of_data(t.settings) == {"cache"}]
    cached = cached or [t for t in tried if t.in_code and t.settings.cache]
    if any(t.refused for t in cached):
        return True
    return bool(prescription.randomness) and not any(t.steps for t in cached)


def _of_data(settings: Settings) -> frozenset[str]:
    """The axes of a change of the dataset; batches in memory are made without workers."""
    return frozenset(settings.changed()) - {"num_workers"}


def _drawn_once(randomness: tuple[str, ...]) -> str:
    does = "draws" if len(randomness) == 1 else "draw"
    return (
        f"{' and '.join(randomness)} {does} at random: samples kept in memory would be the same in "
        "every epoch, which changes training. Whether they differ was not seen in this run."
    )


def trial_rows(facts: Facts, verification: Verification | None) -> tuple[model.Trial, ...]:
    """The loop as it is, then everything tried, in the order tried."""
    if verification is None or not verification.tried:
        return ()
    samples = facts.step.samples_per_step if facts.step is not None else None
    # What was refused is said once, with the advice that is not given.
    tried = [t for t in verification.tried if not (t.in_code and t.refused)]
    return tuple(_trial_rows(facts, tried, samples))


def not_advised_rows(
    prescription: Prescription, verification: Verification | None = None
) -> tuple[model.NotAdvised, ...]:
    """Advice not given, each reason once; a change of the dataset that its trial refused too."""
    refused = [
        (next(iter(t.settings.changed())), t.trial.reason)
        for t in (verification.tried if verification is not None else ())
        if t.in_code and t.refused and t.trial.reason is not None
    ]
    told = [(w.setting, w.reason) for w in prescription.not_advised]
    keeps = any(way.keeps_samples for way in prescription.routes)
    if (
        keeps
        and samples_vary(prescription, verification)
        and "cache" not in dict([*told, *refused])
    ):
        told.append(("cache", _drawn_once(prescription.randomness)))
    seen = dict.fromkeys([*told, *refused])
    return tuple(model.NotAdvised(setting=setting, reason=reason) for setting, reason in seen)


def _rows(
    facts: Facts,
    settings: Settings,
    candidate: Candidate | None,
    tried: Compared | None,
    caution: str | None,
    inconclusive: Compared | None = None,
    way: CodeAdvice | None = None,
) -> Iterator[model.Recommendation]:
    """One row for each setting changed, of shared figures; `way`: what to write, if no edit."""
    measured, windows_ms = within_reach(tried, facts)
    seen = inconclusive.step if inconclusive is not None else None
    paired = tried or inconclusive
    own_ms = paired.own_ms if paired is not None else None
    plain = facts.step.wall_ms if facts.step is not None else None
    first = next(iter(settings.changed()))

    def written(name: str) -> Written:
        if way is not None:
            return written_of(way)
        return written_for(facts, written_together(settings, name))

    return recommendations(
        settings,
        own=own_settings_known(facts).as_dict(),
        written=written,
        caution=lambda name, value: _cautioned(
            facts, name, value, caution if name == first else None
        ),
        trains=lambda name, value: changes_training(facts, name, value),
        summary=basis_of(candidate, inconclusive) if candidate and measured is None else None,
        measured=measured,
        windows_step_ms=windows_ms,
        own_step_ms=own_ms,
        speed_up=in_new_processes(own_ms, measured, first=plain, cold_ms=cold_ms(facts)),
        seen_step_ms=seen.value if seen is not None else None,
        predicted_step_ms=_in_its_rounds(candidate, paired, facts),
        predicted_from=candidate.predicted_from if candidate is not None else None,
        also=_also(facts, settings),
    )


def _cautioned(facts: Facts, name: str, value: Value, caution: str | None) -> str | None:
    """What is said once of all settings, and what one does to what is trained."""
    trains = changes_training(facts, name, value)
    own = f"{capitalised(trains)}." if trains is not None and name != "device_decode" else None
    return " ".join(filter(None, (caution, own))) or None


def _in_its_rounds(
    candidate: Candidate | None, tried: Compared | None, facts: Facts
) -> float | None:
    """Its prediction at the pace that the loop had while it was tried, milliseconds.

    Never longer than at the step's: what made the loop slower then may be what the change ends, and
    a bound has to hold.
    """
    predicted = candidate.predicted_step_ms if candidate is not None else None
    own_ms = tried.own_ms if tried is not None else None
    if predicted is None or not own_ms or not facts.step_ms:
        return predicted
    return predicted * min(1.0, own_ms / facts.step_ms)


def _also(facts: Facts, settings: Settings) -> str | None:
    """What of the script must change for these settings to do what they did in their trial."""
    needed = []
    if settings.num_workers and needs_guard(facts):
        needed.append("the main guard")
    if settings.persistent_workers and facts.step is not None and facts.step.rebuilt:
        needed.append("the loader built once, before the epochs,")
    return " and ".join(needed) or None


def _slower(candidate: Candidate, facts: Facts) -> bool:
    """Whether its prediction is no gain: nothing to recommend untried."""
    predicted, step_ms = candidate.predicted_step_ms, facts.step_ms
    return predicted is not None and step_ms is not None and predicted >= step_ms


def _worse(tried: Compared) -> bool:
    """Whether what was seen, too little to tell, speaks against a gain that is worth a change."""
    gain, own_ms = tried.gain, tried.own_ms
    return gain is not None and own_ms is not None and gain.value < WORTH_DECIDING * own_ms


def _prediction(settings: Settings, prescription: Prescription) -> Candidate | None:
    return next((c for c in prescription.candidates if c.settings == settings), None)


def _cautions(best: Compared, prescription: Prescription) -> str | None:
    """Cautions of every candidate whose changes are in the combination, each once."""
    changed = best.settings.changed().items()
    said = dict.fromkeys(
        c.caution
        for c in prescription.candidates
        if c.caution and c.settings.changed().items() <= changed
    )
    # A candidate of several changes says what those of one say.
    whole = [x for x in said if not any(x != other and x in other for other in said)]
    return " ".join(whole) or None


def _covered(candidate: Candidate, rows: Sequence[model.Recommendation]) -> bool:
    return any(row.setting in candidate.settings.changed() for row in rows)


def _trial_rows(
    facts: Facts, tried: Sequence[Compared], samples: float | None
) -> Iterator[model.Trial]:
    def per_s(step: Estimate | None) -> float | None:
        if not samples or step is None or step.value <= 0:
            return None
        return samples * 1e3 / step.value

    if facts.step is not None:
        own = facts.step.wall_ms
        yield trial_row(
            Settings(), step=own, samples_per_s=per_s(own), shares=shares_of(facts.shares)
        )
    for one in tried:
        yield trial_row(
            one.settings,
            step=one.step,
            samples_per_s=per_s(one.step),
            status=one.trial.status if one.step is None else "ok",
            reason=one.trial.reason if one.step is None else None,
            resources=one.trial.resources,
            window_ms=[x.value for _, x in one.steps],
            gain=one.gain,
        )
