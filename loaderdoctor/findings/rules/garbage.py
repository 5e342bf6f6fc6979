"""Python's garbage collector, which stops the loop while it looks at every object there is."""

from __future__ import annotations

from loaderdoctor import format as fmt
from loaderdoctor.facts.loop import CollectionFacts
from loaderdoctor.facts.shares import MODERATE_SHARE
from loaderdoctor.facts.whole import Facts
from loaderdoctor.findings.exposure import (
    has_accelerator,
    host_share,
    input_cost,
    loader_id,
    severity,
)
from loaderdoctor.findings.input_parts import making_cost
from loaderdoctor.findings.model import Finding, Kind, Prediction

# Below a moderate share, pauses count where they make steps twice as long: several of them, and no
# less than this of all time (one step in a hundred doubled).
MIN_DOUBLED_SHARE = 0.01
MIN_DOUBLED = 3
# What a line asks for is the cause where it is most of what collecting takes.
MOSTLY = 0.5
# Of making a batch: less is what any Python that makes objects pays.
MIN_BATCH_SHARE = 0.1
# The first step of an optimizer loads 900 more modules of torch (2.14): of 316,000 objects there
# are then, 135,000 would be missed by freezing before it.
_FREEZE = (
    "gc.collect(); gc.freeze() once, behind the first step: what lives until the end is then never "
    "looked at again."
)
_RARELY = (
    "gc.disable() before the loop and gc.collect() at the end of each epoch, or "
    "gc.set_threshold(50_000, 20, 50): fewer, at a moment that costs no step."
)
_RANKS = (
    " Ranks collect at different steps, and each holds up all the others: with gc.disable(), let "
    "all of them collect in the same step."
)


def gc_pauses(facts: Facts) -> Finding | None:
    """Python's garbage collector stops the loop, and some steps take twice as long for it.

    Decides on: time in collections, told by the collector itself in plain windows / step time.
    With an accelerator no more than the host's and the input's share: what it computes meanwhile
    costs nothing.
    Abstains: nothing was collected in them, or only a trace is known.
    Fooled by: one long collection that few steps were timed around, which may come once an hour:
    the severity is then uncertain.
    """
    seen, step_ms = _collecting(facts), facts.step_ms
    if seen is None or not step_ms:
        return None
    share = min(_most(facts), seen.ms_per_step / step_ms)
    doubled = seen.n_longer_than_step >= MIN_DOUBLED and share >= MIN_DOUBLED_SHARE
    if share < MODERATE_SHARE and not doubled:
        return None
    n_ranks = len(facts.ranks)
    return Finding(
        kind=Kind.GC_PAUSES,
        severity=severity(share, min(share, seen.low_ms_per_step / step_ms)),
        share=share,
        summary=(
            f"{_what(seen)}: {fmt.ms(share * step_ms)} of {fmt.ms(step_ms)} a step.{_steps(seen)}"
        ),
        evidence={
            "collections_per_step": seen.n / seen.n_steps,
            "full_collections": seen.n_full,
            "collection_ms_per_step": seen.ms_per_step,
            "full_ms_per_step": seen.full_ms_per_step,
            "asked_ms_per_step": seen.asked_ms_per_step,
            "longest_ms": seen.longest_ms,
            "longer_than_a_step": seen.n_longer_than_step,
            "asked_at": seen.site,
            "asked_by": seen.code,
            "step_ms": step_ms,
        },
        advice=_advice(seen) + (_RANKS if n_ranks > 1 else ""),
        predictions=() if asked_for(seen) else (_manual(share, step_ms),),
    )


def gc_in_workers(facts: Facts) -> Finding | None:
    """Python's garbage collector takes a good part of the workers' time for making batches.

    Decides on: time in collections as each worker's collector tells it / time of making a batch,
    and the exposed input time that making batches explains.
    Abstains: no workers, not recorded, or the pool keeps up with the step.
    Fooled by: collections while a worker waits for its next index, which cost nothing: few, since
    nothing is made then.
    """
    workers, cost = facts.workers, making_cost(facts)
    if workers is None or cost is None or not workers.collecting_ms or workers.batch_ms <= 0:
        return None
    of_batch = min(1.0, workers.collecting_ms / workers.batch_ms)
    part = cost.part(cost.ms * of_batch)
    if of_batch < MIN_BATCH_SHARE or part.share < MODERATE_SHARE:
        return None
    full = workers.full_collections or 0.0
    every = f", a full collection every {fmt.number(1 / full)} batches" if 0 < full < 1 else ""
    return Finding(
        kind=Kind.GC_IN_WORKERS,
        severity=part.severity,
        share=part.share,
        loader=loader_id(facts),
        summary=(
            f"Python's garbage collector takes {fmt.ms(workers.collecting_ms)} of the "
            f"{fmt.ms(workers.batch_ms)} that a worker needs for a batch{every}, while the loop "
            f"waits {cost.of_step}. It looks at every list, dict and object of the dataset again "
            "and again, and in forked workers copies their memory by that."
        ),
        evidence={
            "collecting_ms_per_batch": workers.collecting_ms,
            "full_collections_per_batch": full,
            "batch_ms": workers.batch_ms,
            "collecting_share_of_batch": of_batch,
            "input_ms_per_step": cost.ms,
            "step_ms": cost.step_ms,
        },
        advice="gc.collect(); gc.freeze() once the dataset is there and before the workers start: "
        "what it holds is never looked at again. Or a worker_init_fn that calls gc.disable().",
    )


def mostly_full(seen: CollectionFacts) -> bool:
    """Whether full collections are most of it: those look at all that was ever made."""
    return seen.full_ms_per_step >= MOSTLY * seen.ms_per_step


def asked_for(seen: CollectionFacts) -> bool:
    """Whether lines of code ask for most of it, which no setting of the collector changes."""
    return seen.asked_ms_per_step >= MOSTLY * seen.ms_per_step


def _manual(share: float, step_ms: float) -> Prediction:
    left_ms = (1.0 - share) * step_ms
    return Prediction(
        sentence=f"Without collections in the steps it should take {fmt.ms(left_ms)}.",
        setting="gc",
        step_ms=left_ms,
    )


def _what(seen: CollectionFacts) -> str:
    if asked_for(seen) and seen.site is not None:
        of = f" of {fmt.plain(seen.library)}" if seen.library is not None else ""
        return (
            f"gc.collect() at {fmt.plain(seen.site)}{of} stops the loop "
            f"{fmt.count(seen.n_full, 'time')} in {fmt.count(seen.n_steps, 'step')}"
        )
    n, which = (seen.n_full, "full collection") if mostly_full(seen) else (seen.n, "collection")
    return (
        f"Python's garbage collector stops the loop: {fmt.count(n, which)} in "
        f"{fmt.count(seen.n_steps, 'step')}"
    )


def _steps(seen: CollectionFacts) -> str:
    each_step = seen.n_full >= seen.n_steps
    if seen.longest_ms is None or not seen.n_longer_than_step or each_step:
        return ""
    longer = f"{seen.n_longer_than_step} of them longer" if seen.n_full > 1 else "longer"
    return f" The longest took {fmt.ms(seen.longest_ms)}, {longer} than a whole step."


def _advice(seen: CollectionFacts) -> str:
    if asked_for(seen):
        where = f" at {fmt.plain(seen.site)}" if seen.site is not None else ""
        return (
            f"Call gc.collect(){where} at the end of an epoch, not in the steps. Memory that only "
            "it gives back is held by a cycle of references: the exception or the graph that is "
            "kept is the cause to look for."
        )
    if mostly_full(seen):
        return f"{_FREEZE} Or {_RARELY}"
    return f"Let it work more rarely: {_RARELY}"


def _most(facts: Facts) -> float:
    """Next to an accelerator, Python's standing still costs no more than the time it idles.

    Of the input's share where that is established: a few steps of a busy GPU leave it open.
    """
    if not has_accelerator(facts):
        return 1.0
    host, waits = host_share(facts), input_cost(facts)
    return 1.0 if host is None else min(1.0, host + (waits.share if waits is not None else 0.0))


def _collecting(facts: Facts) -> CollectionFacts | None:
    return facts.step.collecting if facts.step is not None else None
