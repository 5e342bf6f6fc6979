"""Findings -> what to do about them: settings to try, in the order of what they should gain.

A prediction is arithmetic on what was measured (`max(rest of the step, batch cost / workers)`), to
order the trials; what is recommended in the end is what the trials measure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from loaderdoctor.advice.candidates import Candidate, Case, CodeAdvice, NotAdvised, Prescription
from loaderdoctor.advice.code import edits_for
from loaderdoctor.advice.code_advice import code_advice
from loaderdoctor.advice.propose_data import (
    batched,
    copying,
    in_code,
    not_advised_in_code,
    packed,
    resident,
)
from loaderdoctor.advice.propose_pool import (
    all_cpus,
    background_thread,
    collector,
    fewer_threads,
    fewer_workers,
    kept_workers,
    loading_threads,
    more_workers,
    no_workers,
    other_order,
)
from loaderdoctor.advice.routes import one_liners, routes
from loaderdoctor.combinations import invalid_reason
from loaderdoctor.facts.whole import Facts
from loaderdoctor.findings.exposure import has_accelerator
from loaderdoctor.findings.input_parts import least_batch_ms, least_rest_ms
from loaderdoctor.findings.loader_change import why_unsafe
from loaderdoctor.findings.model import Finding, Kind
from loaderdoctor.settings import Settings

# More are not tried within a budget anyway: each costs several windows.
MAX_CANDIDATES = 8
# Settings that make no other kind of change of one.
_VARIATIONS = frozenset({"persistent_workers"})


def prescribe(facts: Facts, findings: Iterable[Finding]) -> Prescription:
    """The whole prescription: safe candidates, what is not advised, and advice on code."""
    found = tuple(findings)
    tried = candidates(facts, found)
    unsafe = not_advised(facts, tried)
    bad = {w.settings for w in unsafe}
    loader = facts.main_loader
    ways: tuple[CodeAdvice, ...] = ()
    code: list[Candidate] = []
    lines: tuple[CodeAdvice, ...] = ()
    if loader is not None and loader.kind != "foreign" and found:
        case = Case(facts=facts, loader=loader, found={f.kind: f for f in found})
        ways = routes(facts)
        lines = one_liners(facts)
        code = in_code(case, ways)
        unsafe = (*unsafe, *not_advised_in_code(case))
    answered = {advice.kind for advice in lines}
    if lines:  # each is a conversion too
        answered.add(Kind.DATASET_FORMAT_BOUND)
    return Prescription(
        candidates=(*(c for c in tried if c.settings not in bad), *code),
        not_advised=unsafe,
        advice=(*lines, *(a for a in code_advice(facts, found) if a.kind not in answered)),
        routes=ways,
        randomness=loader.randomness if loader is not None else (),
    )


def candidates(facts: Facts, findings: Iterable[Finding]) -> tuple[Candidate, ...]:
    """Settings worth trying, best prediction first; empty where nothing is worth changing.

    Variants of one kind of change (another number of workers) come after the best of each kind.

    Only for loaders that were seen in a run: a trace alone has no settings to change. Never what
    the user has already. Safety is not looked at here: see `not_advised`.
    """
    loader = facts.main_loader
    if loader is None:
        return ()
    case = Case(facts=facts, loader=loader, found={f.kind: f for f in findings})
    process = [*fewer_threads(case), *collector(case)]
    if loader.kind == "foreign" or not case.found:
        return tuple(process)  # what needs nothing of the loader
    pool, sent = more_workers(case), copying(case)
    everything = [
        *_both(pool, sent, facts),
        *pool,
        *sent,
        *kept_workers(case),
        *no_workers(case),
        *other_order(case),
        *batched(case),
        *packed(case),
        *resident(case),
        *background_thread(case),
        *all_cpus(case),
        *loading_threads(case),
        *fewer_workers(case),
        *process,
    ]
    unique: dict[Settings, Candidate] = {}
    for candidate in everything:
        whole = _whole(candidate.settings, loader.settings)
        on_device = has_accelerator(facts)
        if not on_device and not candidate.settings.pin_memory:
            whole = replace(whole, pin_memory=None)  # the loader's own, which does nothing then
        if invalid_reason(whole, has_accelerator=on_device) is None:
            unique.setdefault(candidate.settings, candidate)
    ranked = sorted(
        unique.values(),
        key=lambda c: math.inf if c.predicted_step_ms is None else c.predicted_step_ms,
    )
    return tuple(_each_kind_first(ranked)[:MAX_CANDIDATES])


def _each_kind_first(ranked: list[Candidate]) -> list[Candidate]:
    """The best of each kind of change before variants of it: time may not suffice for all."""
    seen: set[frozenset[str]] = set()
    first: list[Candidate] = []
    others: list[Candidate] = []
    for candidate in ranked:
        kind = frozenset(candidate.settings.changed()) - _VARIATIONS
        (others if kind in seen else first).append(candidate)
        seen.add(kind)
    return first + others


def not_advised(facts: Facts, proposed: Iterable[Candidate]) -> tuple[NotAdvised, ...]:
    """Those of the candidates that would break the user's run, each with the reason."""
    out: list[NotAdvised] = []
    for candidate in proposed:
        unsafe = why_unsafe(facts, candidate.settings)
        if unsafe is not None:
            out.append(
                NotAdvised(
                    setting=unsafe.setting, settings=candidate.settings, reason=unsafe.reason
                )
            )
    return tuple(out)


def _whole(changes: Settings, have: Settings) -> Settings:
    """The complete settings of a trial: at 0 workers the user's worker-only axes fall away."""
    whole = changes.over(have)
    if whole.num_workers:
        return whole
    return replace(whole, prefetch_factor=None, persistent_workers=None, start_method=None)


def _both(pool: list[Candidate], sent: list[Candidate], facts: Facts) -> list[Candidate]:
    """The best pool with the best copy, where both cost something."""
    step_ms = facts.step_ms
    if not pool or not sent or step_ms is None:
        return []
    workers = min(pool, key=lambda c: (c.predicted_step_ms or math.inf, -_count(c)))
    copy = min(sent, key=lambda c: c.predicted_step_ms or math.inf)
    rest, saved = least_rest_ms(facts), step_ms - (copy.predicted_step_ms or step_ms)
    predicted = None
    if rest is not None and workers.predicted_step_ms is not None:
        batch = least_batch_ms(facts) or 0.0
        predicted = max(rest - saved, batch / max(1, _count(workers)))
    return [
        replace(
            workers,
            settings=copy.settings.over(workers.settings),
            kinds=(*workers.kinds, *copy.kinds),
            predicted_step_ms=predicted,
            prediction=f"{workers.prediction}, and {copy.prediction}",
            edits=edits_for(facts, copy.settings.over(workers.settings)),
            caution=" ".join(x for x in (workers.caution, copy.caution) if x) or None,
            live=workers.live and copy.live,
        )
    ]


def _count(candidate: Candidate) -> int:
    return candidate.settings.num_workers or 0
