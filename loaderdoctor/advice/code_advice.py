"""Findings that no setting answers -> the code to change, and the most it gains."""

from __future__ import annotations

from collections.abc import Iterable

from loaderdoctor.advice import loop_snippets
from loaderdoctor.advice.candidates import CodeAdvice, PredictedFrom
from loaderdoctor.advice.command_line import command_with_environment
from loaderdoctor.advice.fit_code import fitted
from loaderdoctor.advice.ideas import (
    AHEAD,
    CHANGES,
    FEWER_BYTES,
    FORMAT_CHANGES,
    KEPT_BATCHES,
    OUTSIDE_CHANGES,
    RARELY,
    WORK_CHANGES,
    Change,
)
from loaderdoctor.estimate import binomial_interval
from loaderdoctor.facts.whole import Facts
from loaderdoctor.findings.capacity import by_ablation, reachable_ms
from loaderdoctor.findings.loop_words import OWN_BATCHES, makes_batches
from loaderdoctor.findings.model import Finding, Kind
from loaderdoctor.findings.rules.batch_making import LARGE_BATCH_BYTES

# One line undoes these: where that saves something of note, it comes before a dataset rewritten.
_ONE_LINE = (Kind.WORKERS_SHARE_A_CORE, Kind.THREAD_OVERSUBSCRIPTION)
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
# Of a loop without a DataLoader.
_DRAWN = Change(
    title="Draw batches from one tensor, or make them in the workers of a DataLoader",
    idea=OWN_BATCHES,
    example=loop_snippets.DRAWN,
)
# The axes that try a change, by its title.
_TRIED_BY = {
    CHANGES[Kind.OVERHEAD_BOUND_LOADER].title: "batched",
    CHANGES[Kind.WORKERS_SHARE_A_CORE].title: "worker_cpus",
    CHANGES[Kind.MANY_SMALL_COPIES].title: "packed",
    CHANGES[Kind.BATCH_PAGE_FAULTS].title: "reuse_buffers",
}


def _change(finding: Finding, facts: Facts) -> Change | None:
    """By the kind, and of conversions by the format that was recognised."""
    library = finding.evidence.get("collate_library")
    handed_over = finding.evidence.get("receive_ms_per_batch") is not None
    if finding.kind is Kind.OVERHEAD_BOUND_LOADER and handed_over:  # of samples of any cost
        return CHANGES[finding.kind] if finding.evidence.get("sample_us") is not None else None
    of_torch = finding.evidence.get("collate") == "default_collate" or library == "torch"
    if finding.kind is Kind.COLLATE_BOUND and library is not None and not of_torch:
        return KEPT_BATCHES
    if finding.kind is Kind.COLLATE_BOUND and of_torch:
        n_bytes = finding.evidence.get("batch_bytes")
        large = isinstance(n_bytes, int | float) and n_bytes >= LARGE_BATCH_BYTES
        return FEWER_BYTES if large else CHANGES[Kind.OVERHEAD_BOUND_LOADER]
    if finding.kind is Kind.WORK_BETWEEN_STEPS and "what" in finding.evidence:
        return _of_work(finding, facts)
    if finding.kind is Kind.TIME_OUTSIDE_STEPS:
        return OUTSIDE_CHANGES.get(str(finding.evidence.get("what")))
    if finding.kind is not Kind.DATASET_FORMAT_BOUND:
        return CHANGES.get(finding.kind)
    return FORMAT_CHANGES.get(str(finding.evidence.get("format")))


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
        return AHEAD
    return RARELY if change is AHEAD and early is False else change


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
        out.append(
            CodeAdvice(
                kind=finding.kind,
                title=change.title,
                idea=change.idea,
                code=fitted(facts, finding),
                axis=_TRIED_BY.get(change.title),
                command=_command(finding, facts),
                one_line=finding.kind in _ONE_LINE,
                bound_ms=bound_ms,
                predicted_from=source if bound_ms is not None else None,
                caution=change.caution,
            )
        )
    return tuple(out)


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
