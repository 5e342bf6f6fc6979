"""Time paid per iterator, not per batch: workers started each epoch, or each step.

And what stands between a loop and any worker: a script that workers would run again.
"""

from __future__ import annotations

from loaderdoctor import format as fmt
from loaderdoctor.facts import Facts
from loaderdoctor.facts.step import MODERATE_SHARE
from loaderdoctor.findings import Finding, Kind, Prediction
from loaderdoctor.findings.capacity import all_batches_ms
from loaderdoctor.findings.exposure import (
    Cost,
    input_cost,
    loader_id,
    num_workers,
    pool_size,
    spawned_by,
    started_anew,
)
from loaderdoctor.findings.input_parts import boundary_of_loader_ms, startup_ms_per_step
from loaderdoctor.findings.rules.starved import loader_in_main_process

# An epoch of one or two steps may rightly need an iterator every other step; from one in two
# steps on, a longer epoch means that the loop drops its iterator.
MIN_CREATIONS_PER_STEP = 0.5
# In a trace, start-up is inferred from gaps: it must also be the better part of the input time
# before it is named as its cause.
MIN_PART_OF_INPUT = 0.5


def iterator_recreated(facts: Facts) -> Finding | None:
    """The loop builds a new iterator for (nearly) every step and drops it after a batch.

    Decides on: iterators that one loader of the step made per step, the length of its epoch, and
    exposed input time. Several loaders read side by side make one each per epoch, which is right.
    Abstains: creations not recorded, or an epoch is one or two steps long by its own length.
    Fooled by: a trace that begins and ends within two steps, where one epoch boundary looks like
    a habit; at least 4 steps are asked for.
    """
    cost, counts = input_cost(facts), _creations(facts)
    if cost is None or counts is None:
        return None
    n_created, n_steps = counts
    if n_steps < 4 or n_created / n_steps < MIN_CREATIONS_PER_STEP:
        return None
    most = facts.step.most_iterators_of if facts.step is not None else None
    loader = next((x for x in facts.feeding if x.id == most), facts.main_loader)
    if loader is not None and loader.steps_per_epoch is not None and loader.steps_per_epoch <= 2:
        return None
    n = loader.settings.num_workers if loader is not None else num_workers(facts)
    paid = f", and {fmt.count(n, 'worker')} are started for it" if n else ""
    return Finding(
        kind=Kind.ITERATOR_RECREATED,
        severity=cost.severity,
        share=cost.share,
        loader=loader.id if loader is not None else None,
        summary=(
            f"The loop makes a new iterator {n_created} times in {n_steps} steps "
            f"(next(iter(loader))){paid}: {cost.of_step}. Make the iterator once per epoch and "
            "call next() on it."
        ),
        evidence={
            "n_iterators_created": n_created,
            "n_steps": n_steps,
            "num_workers": n,
            "input_ms_per_step": cost.ms,
            "step_ms": cost.step_ms,
        },
        advice="Loop with `for batch in loader:`, or keep `batches = iter(loader)` outside it.",
    )


def worker_startup_each_epoch(facts: Facts) -> Finding | None:
    """Workers start again each epoch, and epochs are short enough for that to matter.

    Decides on: the cost of one epoch boundary, of all loaders that feed the step, spread over the
    steps of an epoch; in a trace alone, the start-ups inside it, where they are most of its input
    time.
    Abstains: no loader of the step has workers that end with the epoch, or no boundary measured.
    Fooled by: a trace that holds one boundary of a much longer epoch: its share is of the trace's
    own steps, and the evidence says how many.
    """
    if facts.feeding and not started_anew(facts):
        return None
    if num_workers(facts) == 0 and not pool_size(facts):
        return None
    if facts.step is not None:
        return _startup_of_run(facts)
    return _startup_of_trace(facts)


def _startup_of_run(facts: Facts) -> Finding | None:
    again = started_anew(facts)
    n = sum(x.settings.num_workers or 0 for x in again) or num_workers(facts)
    step, per_step = facts.step, startup_ms_per_step(facts)
    cost, boundary_ms = input_cost(facts), boundary_of_loader_ms(facts)
    if step is None or boundary_ms is None or per_step is None or not n or cost is None:
        return None
    explained = cost.part(per_step)
    if explained.share < MODERATE_SHARE:
        return None
    of = f" of {len(again)} loaders" if len(again) > 1 else ""
    anew = any(x.id in step.rebuilt for x in again)
    built = " The loader is built again for each, in the loop over the epochs." if anew else ""
    without = _without_workers(facts, cost, explained)
    return Finding(
        kind=Kind.WORKER_STARTUP_EACH_EPOCH,
        severity=explained.severity,
        share=explained.share,
        loader=again[0].id if again else loader_id(facts),
        summary=(
            f"Starting {fmt.count(n, 'worker')}{of} again costs "
            f"{fmt.seconds(boundary_ms / 1000)} each epoch of {step.steps_per_epoch} steps, "
            f"{fmt.share(explained.share)} of the run.{built}"
        ),
        predictions=(
            _kept(cost.step_ms - explained.ms, anew=anew),
            *([without] if without else []),
        ),
        evidence={
            "boundary_ms": boundary_ms,
            "startup_s_per_epoch": boundary_ms / 1000,
            "steps_per_epoch": step.steps_per_epoch,
            "startup_ms_per_step": per_step,
            "step_ms": cost.step_ms,
            "num_workers": n,
            "loader_built_each_epoch": anew or None,
            "loaders": ", ".join(x.id for x in again) if len(again) > 1 else None,
        },
    )


def _startup_of_trace(facts: Facts) -> Finding | None:
    trace, cost = facts.trace, input_cost(facts)
    if trace is None or cost is None or not trace.fetching.startup_ms or trace.n_steps < 1:
        return None
    if trace.fetching.kind not in ("multi-process", "mixed"):
        return None
    n_starts = len(trace.fetching.startup_ms)
    if (
        trace.n_steps >= 4
        and trace.fetching.n_iterators_created / trace.n_steps >= MIN_CREATIONS_PER_STEP
    ):
        return None  # the iterator is dropped each step: that is the cause, not the epoch
    explained = cost.part(trace.fetching.all_boundaries_ms / trace.n_steps)
    if explained.share < MODERATE_SHARE or explained.ms < MIN_PART_OF_INPUT * cost.ms:
        return None
    mean_ms = trace.fetching.all_boundaries_ms / n_starts
    return Finding(
        kind=Kind.WORKER_STARTUP_EACH_EPOCH,
        severity=explained.severity,
        share=explained.share,
        summary=(
            f"Workers start again {n_starts} times in {trace.n_steps} steps, {fmt.ms(mean_ms)} "
            f"until the first batch each time: {explained.of_step}."
        ),
        predictions=(_kept(None),),
        evidence={
            "n_startups": n_starts,
            "n_steps": trace.n_steps,
            "startup_ms": mean_ms,
            "startup_ms_per_step": explained.ms,
            "input_ms_per_step": cost.ms,
            "step_ms": cost.step_ms,
        },
        advice="Pass persistent_workers=True to the DataLoader.",
    )


def _kept(step_ms: float | None, *, anew: bool = False) -> Prediction:
    """That workers kept between epochs save their start; the step then expected, where known.

    `anew`: the loader itself must be kept for that.
    """
    brings = f", which would bring the step to {fmt.ms(step_ms)}" if step_ms is not None else ""
    return Prediction(
        sentence=f"persistent_workers=True {'of a loader built once ' if anew else ''}keeps them "
        f"between epochs{brings}.",
        setting="persistent_workers",
        value=True,
        step_ms=step_ms,
        advised=True,
    )


def _without_workers(facts: Facts, cost: Cost, startup: Cost) -> Prediction | None:
    """That a loop which makes its batches itself starts nothing, where they are that cheap."""
    made_ms = all_batches_ms(facts)
    if made_ms is None or made_ms >= startup.ms:
        return None
    step_ms = cost.step_ms - cost.ms + made_ms
    return Prediction(
        sentence=f"num_workers=0 starts none: making the batches in the loop takes at most "
        f"{fmt.ms(made_ms)} a step, which would bring it to {fmt.ms(step_ms)}.",
        setting="num_workers",
        which="fewer",
        value=0,
        step_ms=step_ms,
    )


def _creations(facts: Facts) -> tuple[int, int] | None:
    if facts.step is not None:
        return facts.step.n_iterators_created, facts.step.n_steps
    if facts.trace is not None and facts.trace.fetching.recorded:
        return facts.trace.fetching.n_iterators_created, facts.trace.n_steps
    return None


def main_guard_missing(facts: Facts) -> Finding | None:
    """The loop makes its batches itself, and the script has no main guard for workers to start.

    Decides on: how this process starts its workers, the statement of the script that trains, and
    what `loader-in-main-process` decides on.
    Abstains: workers are forked, the script was not read, or workers would gain nothing.
    Fooled by: a script that trains in a module it imports, with a guard of its own making.
    """
    loader, method = facts.main_loader, spawned_by(facts)
    if loader is None or method is None or loader.safety.guard_missing is None:
        return None
    waits = loader_in_main_process(facts)
    if waits is None:
        return None
    return Finding(
        kind=Kind.MAIN_GUARD_MISSING,
        severity=waits.severity,
        share=waits.share,
        loader=waits.loader,
        summary=(
            f"Workers are started by {method} here, which imports the script again in each of "
            'them, and what it runs is under no `if __name__ == "__main__":`. With num_workers '
            "above 0 it would end in a RuntimeError (bootstrapping phase); without, the loop makes "
            "its batches itself."
        ),
        evidence={"start_method": method, "num_workers": 0},
    )
