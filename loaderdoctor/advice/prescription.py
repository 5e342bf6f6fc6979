"""Findings -> what to do about them: settings to try, in the order of what they should gain.

Of findings that no setting answers: the code to change, and the most it gains.

A prediction is arithmetic on what was measured (`max(rest of the step, batch cost / workers)`), to
order the trials; what is recommended in the end is what the trials measure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from loaderdoctor.advice import (
    Candidate,
    Case,
    CodeAdvice,
    NotAdvised,
    PredictedFrom,
    Prescription,
)
from loaderdoctor.advice.fit_code import fitted
from loaderdoctor.advice.fit_wrapping import why_not_kept, why_not_made_once
from loaderdoctor.advice.ideas import (
    AHEAD,
    AT_ONCE,
    CHANGES,
    DRAWN_AS_READ,
    FEWER_BYTES,
    FORMAT_CHANGES,
    KEPT_BATCHES,
    OUTSIDE_CHANGES,
    RARELY,
    STREAMED_BATCHES,
    WORK_CHANGES,
    Change,
)
from loaderdoctor.advice.propose_data import (
    batched,
    copying,
    in_code,
    not_advised_in_code,
    packed,
    resident,
    with_fewer_bytes,
)
from loaderdoctor.advice.propose_pool import (
    all_cpus,
    background_thread,
    collector,
    collector_in_workers,
    fewer_threads,
    fewer_workers,
    kept_workers,
    loading_threads,
    more_workers,
    no_workers,
    other_order,
)
from loaderdoctor.advice.routes import fits_in_memory, one_liners, routes
from loaderdoctor.advice.writing import command_with_environment
from loaderdoctor.combinations import invalid_reason
from loaderdoctor.estimate import binomial_interval
from loaderdoctor.facts import Facts
from loaderdoctor.findings import Finding, Kind
from loaderdoctor.findings.capacity import (
    all_batches_ms,
    by_ablation,
    reachable_ms,
    why_unsafe,
)
from loaderdoctor.findings.exposure import has_accelerator
from loaderdoctor.findings.input_parts import (
    least_batch_ms,
    least_rest_ms,
    startup_ms_per_step,
)
from loaderdoctor.findings.loop_words import OWN_BATCHES, makes_batches, refills
from loaderdoctor.findings.rules.batch_making import LARGE_BATCH_BYTES
from loaderdoctor.settings import KEEPING, Settings

# More are not tried within a budget anyway: each costs several windows.
MAX_CANDIDATES = 8
# No workers are tried first where making batches takes at most this part of starting workers. It
# was 0.06 for three loaders of four steps an epoch (324 ms a step, 2.3 without workers), and 1.4
# where kept workers are the better answer.
CHEAP_TO_MAKE = 0.25
# Settings that make no other kind of change of one.
_VARIATIONS = frozenset({"persistent_workers"})
# One line undoes these: where that saves something of note, it comes before a dataset rewritten.
_ONE_LINE = (Kind.WORKERS_SHARE_A_CORE, Kind.THREAD_OVERSUBSCRIPTION)
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
# Of a loop without a DataLoader.
_DRAWN = Change(
    title="Draw batches from one tensor, or make them in the workers of a DataLoader",
    idea=OWN_BATCHES,
)


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
        why_not = why_not_made_once(facts, loader)
        every = with_fewer_bytes(case, routes(facts))
        ways = tuple(way for way in every if why_not is None or not way.keeps_samples)
        lines = one_liners(facts)
        code = in_code(case, ways)
        unsafe = (*unsafe, *not_advised_in_code(case, why_not))
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
        *collector_in_workers(case),
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
    first = [c for c in ranked if _opens_nothing(c, facts)]
    kinds = _each_kind_first([*first, *(c for c in ranked if c not in first)])
    return tuple(kinds[:MAX_CANDIDATES])


def _opens_nothing(candidate: Candidate, facts: Facts) -> bool:
    """Whether it does without workers whose start is dear next to what they make.

    Pools that are opened for the others take a trial seconds, of six loaders those of a budget.
    """
    started_ms, made_ms = startup_ms_per_step(facts), all_batches_ms(facts)
    if started_ms is None or made_ms is None or not candidate.live:
        return False
    alone = candidate.settings.changed() == {"num_workers": 0}
    return alone and made_ms <= CHEAP_TO_MAKE * started_ms


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
        kept = next((x for x in KEEPING if getattr(candidate.settings, x)), None)
        stale = why_not_kept(facts, kept) if kept is not None else None
        if kept is not None and stale is not None:
            out.append(NotAdvised(setting=kept, settings=candidate.settings, reason=stale))
            continue
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
            caution=" ".join(x for x in (workers.caution, copy.caution) if x) or None,
            live=workers.live and copy.live,
        )
    ]


def _count(candidate: Candidate) -> int:
    return candidate.settings.num_workers or 0


def _change(finding: Finding, facts: Facts) -> Change | None:
    """By the kind, and of conversions by the format that was recognised."""
    library = finding.evidence.get("collate_library")
    handed_over = finding.evidence.get("receive_ms_per_batch") is not None
    if finding.kind is Kind.OVERHEAD_BOUND_LOADER and handed_over:  # of samples of any cost
        return _whole_batches(facts) if finding.evidence.get("sample_us") is not None else None
    of_torch = finding.evidence.get("collate") == "default_collate" or library == "torch"
    if finding.kind is Kind.COLLATE_BOUND and library is not None and not of_torch:
        return KEPT_BATCHES
    if finding.kind is Kind.COLLATE_BOUND and of_torch:
        n_bytes = finding.evidence.get("batch_bytes")
        large = isinstance(n_bytes, int | float) and n_bytes >= LARGE_BATCH_BYTES
        return FEWER_BYTES if large else _whole_batches(facts)
    if finding.kind is Kind.SAMPLER_BOUND and "indices_read" in finding.evidence:
        return DRAWN_AS_READ
    if finding.kind is Kind.WORK_BETWEEN_STEPS and "what" in finding.evidence:
        return _of_work(finding, facts)
    if finding.kind is Kind.TIME_OUTSIDE_STEPS:
        return OUTSIDE_CHANGES.get(str(finding.evidence.get("what")))
    if finding.kind is not Kind.DATASET_FORMAT_BOUND:
        if finding.kind is Kind.OVERHEAD_BOUND_LOADER:
            return _whole_batches(facts)
        return CHANGES.get(finding.kind)
    return FORMAT_CHANGES.get(str(finding.evidence.get("format")))


def _whole_batches(facts: Facts) -> Change:
    """Of a stream torch asks for one sample after the other, whatever it could do."""
    loader = facts.main_loader
    streams = loader is not None and loader.kind == "iterable"
    return STREAMED_BATCHES if streams else CHANGES[Kind.OVERHEAD_BOUND_LOADER]


def _command(finding: Finding, facts: Facts) -> str | None:
    """Threads of the libraries that a worker calls are told before these are imported."""
    if finding.kind is not Kind.THREAD_OVERSUBSCRIPTION:
        return None
    return command_with_environment(facts, dict.fromkeys(_THREAD_VARIABLES, "1"))


def _of_work(finding: Finding, facts: Facts) -> Change | None:
    """By what it does and where; None where the advice says it all (a sleep)."""
    what = str(finding.evidence["what"])
    change = WORK_CHANGES.get(what)
    early = finding.evidence.get("before_forward_pass")
    if makes_batches(what) and early is not False and not facts.loaders:
        return _DRAWN
    if what in ("elements", "item") and early:
        change = AHEAD
    if change is AHEAD and early is False:
        return RARELY
    return AT_ONCE if change is AHEAD and refills(facts) else change


# Their share is of the step's own work, which no ablation touches.
_COMPUTING = (Kind.TF32_OFF, Kind.GRAD_NOT_SET_TO_NONE, Kind.PADDING_WASTE)
# Their share is that of lines of code among stack samples.
_BY_LINES = (Kind.DATASET_FORMAT_BOUND, Kind.MANY_SMALL_FILES)
_OF_STREAMS = (Kind.SAMPLES_REPEATED, Kind.IDLE_WORKERS)


def code_advice(facts: Facts, findings: Iterable[Finding]) -> tuple[CodeAdvice, ...]:
    """A change of code for each finding that has one, in the findings' order.

    The bound is what the finding explains of the step: from ablation where it ran, else from the
    trace. More can't be gained by it, nor more than all CPUs together can do.
    """
    measured = by_ablation(facts)
    on_device = facts.machine is not None and facts.machine.device_name is not None
    out = []
    for finding in findings:
        change = _change(finding, facts)
        if change is None:
            continue
        if finding.kind is Kind.CPU_SATURATED_WORKERS and not (measured and on_device):
            continue  # only where ready batches proved that the CPU is the limit
        if finding.evidence.get("threads_of") == "loop":
            continue  # a setting answers it
        if finding.kind in _OF_STREAMS and _of_library(facts):
            continue  # the library splits them: the finding says how, in its words
        bound_ms = _bound_ms(finding, facts)
        computing = finding.kind in _COMPUTING
        source: PredictedFrom = "ablation" if measured and not computing else "trace"
        fits = bool(fits_in_memory(facts)) if change is KEPT_BATCHES else change != STREAMED_BATCHES
        out.append(
            CodeAdvice(
                kind=finding.kind,
                title=change.title,
                idea=change.idea,
                code=fitted(facts, finding) if fits else None,
                axis=change.axis,
                command=_command(finding, facts),
                one_line=finding.kind in _ONE_LINE,
                bound_ms=bound_ms,
                predicted_from=source if bound_ms is not None else None,
                caution=change.caution,
                evidence=_spot(finding),
            )
        )
    return tuple(out)


def _spot(finding: Finding) -> str | None:
    """The line that the change is about, where stack samples told one."""
    spot, caller = finding.evidence.get("spot"), finding.evidence.get("called_from")
    if not isinstance(spot, str) or finding.evidence.get("stack_samples") is None:
        return None
    called = f", called from {caller}" if caller and str(caller) not in spot else ""
    return f"What is meant: {spot}{called}."


def _most_of_lines(finding: Finding) -> float:
    """How much more than estimated they may take: the upper end of what the hottest was seen."""
    n, of = finding.evidence.get("line_looks"), finding.evidence.get("looks")
    if not isinstance(n, int) or not isinstance(of, int) or not 0 < n <= of:
        return 1.0
    return binomial_interval(n, of)[1] * of / n


def _of_library(facts: Facts) -> bool:
    loader = facts.main_loader
    return loader is not None and loader.stream is not None


def _bound_ms(finding: Finding, facts: Facts) -> float | None:
    """The most of a step that the change may save; None where the finding has no share of it."""
    if finding.kind is Kind.TIME_OUTSIDE_STEPS:
        return None  # its share is not of the step
    if finding.share is None or facts.step_ms is None:
        return None
    bound_ms = finding.share * facts.step_ms
    if finding.kind in _BY_LINES:
        bound_ms = min(facts.step_ms, bound_ms * _most_of_lines(finding))
    reachable, machine = reachable_ms(facts), facts.machine
    if finding.kind is not Kind.WORKERS_SHARE_A_CORE or reachable is None or machine is None:
        return bound_ms
    shared = {core for one in facts.workers.cores for core in one} if facts.workers else ()
    if machine.usable_cpus > len(shared):  # else nothing tells how many CPUs there would be
        bound_ms = min(bound_ms, max(0.0, facts.step_ms - reachable))
    return bound_ms
