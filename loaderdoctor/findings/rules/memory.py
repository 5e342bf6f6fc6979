"""What memory costs the step: looking for garbage, and mapping pages.

Python's garbage collector stops the loop while it looks at every object there is. The training
thread maps page by page what is new to it: its batches' memory, and its own in each step.
"""

from __future__ import annotations

from loaderdoctor import format as fmt
from loaderdoctor.facts import Facts
from loaderdoctor.facts.loop import CollectionFacts
from loaderdoctor.facts.step import MODERATE_SHARE
from loaderdoctor.findings import Finding, Kind, Prediction
from loaderdoctor.findings.exposure import (
    Cost,
    has_accelerator,
    host_share,
    input_cost,
    loader_id,
    num_workers,
    severity,
)
from loaderdoctor.findings.input_parts import making_cost, mapping_cost

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
# Fewer a step are not memory of each step: 0 to 5 were left where glibc kept it
# (`benchmarks/allocator.py`).
MIN_FAULTS = 100
MAX_WAITING_SHARE = 0.9  # beyond this a step is mostly waiting, and what is left no measure
KEEP_FREED_MEMORY = (
    "Start the script with MALLOC_TRIM_THRESHOLD_=4000000000 MALLOC_MMAP_MAX_=0 in its "
    "environment: glibc then keeps what is freed and hands it out again. The process stays as "
    "large as it once was, so mind it where memory is short."
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


def batch_page_faults(facts: Facts) -> Finding | None:
    """The loop maps each batch's shared memory page by page and frees it: work that no wait shows.

    Decides on: minor page faults of the training thread, a step, with real batches against ready
    ones, times the CPU time that mapping and dropping a batch was measured to take; at most what
    the loader costs by ablation beyond the loop's wait.
    Abstains: no workers, no ablation, faults not counted (outside Linux), no batch was thrown away
    to be measured, or another thread is the first to read them.
    Fooled by: batches that something else keeps alive, which are freed elsewhere; a loop that
    writes into its batches, whose faults are more and smaller than those of reading.
    """
    part = mapping_cost(facts)
    ablation = facts.ablation
    pages = ablation.pages if ablation is not None else None
    if part is None or pages is None or ablation is None or ablation.input_ms is None:
        return None
    wait_ms = facts.step.raw_wait_ms if facts.step is not None else None
    return Finding(
        kind=Kind.BATCH_PAGE_FAULTS,
        severity=part.severity,
        share=part.share,
        loader=loader_id(facts),
        summary=(
            f"The loop waits only {fmt.ms(wait_ms)} for its loader, yet each batch of "
            f"{fmt.n_bytes(pages.batch_bytes)} comes in shared memory new to this process: reading "
            f"it first takes {pages.faults_per_batch:,} page faults ({fmt.ms(pages.touch_ms)}), "
            f"dropping it {fmt.ms(pages.release_ms)}, together {part.of_step}, on the training "
            "thread."
        ),
        predictions=_predictions(facts, part.ms),
        evidence={
            "batch_bytes": pages.batch_bytes,
            "page_faults_per_step": pages.faults_per_step,
            "extra_page_faults_per_step": pages.extra_faults_per_step,
            "page_faults_per_batch": pages.faults_per_batch,
            "touch_ms_per_batch": pages.touch_ms,
            "release_ms_per_batch": pages.release_ms,
            "input_ms_per_step": ablation.input_ms.value,
            "raw_wait_ms_per_step": wait_ms,
            "num_workers": num_workers(facts),
            "step_ms": part.step_ms,
        },
        advice="Hand over fewer bytes (half as wide a type halves the faults and the freeing), or "
        "let the workers write into shared tensors that are used again.",
    )


def allocator_page_faults(facts: Facts) -> Finding | None:
    """Each step frees memory and fetches it again: page faults on the training thread.

    Decides on: minor page faults of the training thread, a step, that are left with ready batches
    in every round (so they are not the batches', nor those of a slow start), times what a fault was
    measured to cost here, longer by what the thread waits for a CPU; with an accelerator at most
    the host's share of the step.
    Abstains: no ablation, faults not counted or not timed (outside Linux), or malloc is not glibc's
    as it comes (musl, jemalloc, tcmalloc, MALLOC_ variables).
    Fooled by: files that the loop itself maps and reads, which fault too; huge pages, whose faults
    are few and large, so that it says nothing or too little.
    """
    machine, ablation, step_ms = facts.machine, facts.ablation, facts.step_ms
    faults = ablation.synthetic_faults_per_step if ablation is not None else None
    if machine is None or machine.allocator != "glibc" or machine.fault_us is None:
        return None
    if ablation is None or faults is None or not step_ms or faults < MIN_FAULTS:
        return None
    # CPU time takes longer where the thread waits for a CPU, as all of the step does.
    cost_ms = faults * machine.fault_us / 1e3 / (1.0 - _waiting_share(facts))
    if has_accelerator(facts):
        host = facts.share("host")
        if host is None:
            return None
        cost_ms = min(cost_ms, host * step_ms)
    cost = Cost(ms=cost_ms, share=min(1.0, cost_ms / step_ms), low_share=None, step_ms=step_ms)
    if cost.share < MODERATE_SHARE:
        return None
    return Finding(
        kind=Kind.ALLOCATOR_PAGE_FAULTS,
        severity=cost.severity,
        share=cost.share,
        summary=(
            f"The loop's memory goes back to the system and is fetched again in each step: "
            f"{faults:,.0f} page faults a step on the training thread, without the loader too, at "
            f"{machine.fault_us:.1f} µs of CPU time each on this machine. Keeping it is predicted "
            f"to save {cost.of_step}; it was not tried."
        ),
        evidence={
            "page_faults_per_step": faults,
            "fault_us": machine.fault_us,
            "cost_ms_per_step": cost_ms,
            "step_ms": step_ms,
        },
        advice=KEEP_FREED_MEMORY,
    )


def _predictions(facts: Facts, mapped_ms: float) -> tuple[Prediction, ...]:
    made = []
    loader = facts.main_loader
    if has_accelerator(facts) and loader is not None and not loader.settings.pin_memory:
        made.append(
            Prediction(
                sentence="pin_memory=True would leave that to the pin-memory thread.",
                setting="pin_memory",
                value=True,
            )
        )
    # Its samples at least the loop would then have to make; collating into memory that is mapped
    # already takes far less than the workers take for it.
    if facts.workers is not None and facts.workers.fetch_ms < mapped_ms:
        made.append(
            Prediction(
                sentence="With num_workers=0 the loop would make its batches in memory that it "
                "has mapped already.",
                setting="num_workers",
                value=0,
            )
        )
    return tuple(made)


def _waiting_share(facts: Facts) -> float:
    """How much of its time the training thread stood ready without a CPU; 0 where not told."""
    cpu = facts.step.cpu if facts.step is not None else None
    share = cpu.train_wait_share if cpu is not None else None
    return min(MAX_WAITING_SHARE, max(0.0, share or 0.0))
