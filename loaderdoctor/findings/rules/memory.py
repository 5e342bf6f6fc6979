"""Memory that Python keeps: what looking for garbage costs, and workers whose memory will not stay.

Python's garbage collector stops the loop while it looks at every object there is. A forked worker
shares the dataset until it reads it: reading a Python object writes its reference count and so
copies its page, up to all of them; a leak or a cache in the worker goes on from there.
"""

from __future__ import annotations

from loaderdoctor import format as fmt
from loaderdoctor.facts import Facts
from loaderdoctor.facts.host import GrowthFacts
from loaderdoctor.facts.loop import CollectionFacts
from loaderdoctor.facts.step import MODERATE_SHARE
from loaderdoctor.findings import Finding, Kind, Prediction, Severity
from loaderdoctor.findings.capacity import change_of, container_bytes
from loaderdoctor.findings.exposure import (
    has_accelerator,
    host_share,
    input_cost,
    loader_id,
    severity,
)
from loaderdoctor.findings.input_parts import making_cost
from loaderdoctor.hazards import MAX_SHARE_OF_ROOM, MIN_AVAILABLE_BYTES, container_words
from loaderdoctor.instrument.wire.records import LoaderRecord
from loaderdoctor.settings import Settings

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
            **cost.as_input,
        },
        advice="gc.freeze() in a worker_init_fn: what the dataset holds is never looked at again. "
        "Or gc.set_threshold(50_000, 20, 50) there too, so that collections are rare.",
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
        often = "at the end of an epoch, not in the steps"
        if seen.n_full <= seen.n_epoch_ends:  # it is there already
            often = "after several of these short epochs, not after each"
        return (
            f"Call gc.collect(){where} {often}. Memory that only "
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


# Of the memory that is free, what is worth a word.
MIN_PART_OF_FREE = 0.1
# What allocators, imports in the first batches and the queue's thread add to a worker that keeps
# nothing: 10 MiB at most in runs of this repository's recipes.
MIN_GROWTH_BYTES = 32 * 2**20
# Beyond this many times what reading can have copied, something else is kept.
BEYOND_COPIES = 1.5
# A cache of the allocator's fills early; of what goes on, half comes in the later half.
MIN_LATE_PART = 0.3
PAGE_BYTES = 4096
# Workers that keep nothing come to hold free memory, one sample more with each batch until some 130
# were made: 33 MiB of samples of 256 KiB, 550 MiB of 4 MiB (torch 2.14, glibc). They tell of it
# when they have made 4, 8, 16, … batches: up to twice as much may be free by the last look.
FREED_SINCE = 2.0


def workers_copy_dataset(facts: Facts) -> Finding | None:
    """Each forked worker comes to have a copy of the dataset's Python objects.

    Decides on: the size of the objects in the dataset's containers, without what arrays and tensors
    hold, times the workers, against the memory that is free.
    Abstains: no workers, workers that are not forked, or the size of free memory not known.
    Fooled by: objects that the workers never read; then it is less than was forecast.
    """
    loader, machine = facts.main_loader, facts.machine
    if loader is None or machine is None or machine.memory_available_bytes is None:
        return None
    change = change_of(facts, loader, Settings())
    n = sum(x.settings.num_workers or 0 for x in facts.feeding)
    if not n or not change.forks or not loader.containers:
        return None
    free, ranks = machine.memory_available_bytes, machine.ranks_here
    in_all = container_bytes(loader) * n * ranks
    if in_all < MIN_PART_OF_FREE * free:
        return None
    left = change.still_grows_bytes * ranks
    fits = left <= min(free - MIN_AVAILABLE_BYTES, MAX_SHARE_OF_ROOM * free)
    largest = loader.containers[0]
    seen = facts.worker_memory
    so_far = f" (up to {fmt.n_bytes(seen.worker_bytes)} so far)" if seen is not None else ""
    end = (
        f"{fmt.n_bytes(free)} are free."
        if fits
        else f"only {fmt.n_bytes(free)} are free: the run would swap, or be killed within an epoch."
    )
    return Finding(
        kind=Kind.WORKERS_COPY_DATASET,
        severity=Severity.LOW if fits else Severity.HIGH,
        share=None,  # of memory, not of the step
        loader=loader.id,
        summary=(
            f"Each of {fmt.count(n * ranks, 'worker')} copies the dataset's Python objects as it "
            f"reads them, since reading one changes its reference count: "
            f"{fmt.n_bytes(container_bytes(loader))} each{so_far}, most of it "
            f"{container_words(largest)}. That makes {fmt.n_bytes(in_all)} in all, and {end}"
        ),
        evidence={
            "num_workers": n,
            "container": largest.path,
            "container_entries": largest.n,
            "container_bytes": largest.n_bytes,
            "copied_bytes_per_worker": container_bytes(loader),
            "copied_bytes": in_all,
            "worker_bytes_so_far": seen.worker_bytes if seen is not None else None,
            "memory_available_bytes": free,
        },
        advice=_instead(largest.entry) + " Arrays, tensors and Arrow tables are shared by all "
        "workers however often they are read.",
    )


def _instead(entry: str) -> str:
    """What would hold such entries without a reference count for each."""
    if entry.startswith("str"):
        return "Keep strings as one array: numpy.array(strings) or pyarrow.array(strings)."
    if entry in ("int", "float"):
        return "Keep numbers as one array: numpy.array(numbers)."
    if entry.startswith("tuple of") and "dict" not in entry and "list" not in entry:
        return (
            "Keep each column of the tuples as one array: numpy.array([s[0] for s in samples]), "
            "numpy.array([s[1] for s in samples])."
        )
    if entry.startswith("list of"):
        return "Keep the lists as one array, with where each begins if their lengths differ."
    return (
        "Keep the entries as bytes in one array, with where each begins: numpy.frombuffer(b''.join("
        "map(pickle.dumps, entries)), dtype=numpy.uint8), and pickle.loads of a slice in "
        "__getitem__."
    )


def worker_memory_grows(facts: Facts) -> Finding | None:
    """Workers keep more and more memory, more than reading the dataset can have copied.

    Decides on: pages that only one worker has, at the ends of plain windows, and the samples it
    made meanwhile; what the dataset's Python objects can account for is left out, and what malloc
    holds free.
    Abstains: fewer than four readings of the same workers, or growth that came mostly at first.
    Fooled by: a cache that will be full soon; its container and length are named. An allocator that
    does not tell what it holds free, or a library's own: then it is low at most.
    """
    loader, memory = facts.main_loader, facts.worker_memory
    growth = memory.growth if memory is not None else None
    if loader is None or growth is None or growth.n_samples <= 0:
        return None
    copied = _copied_bytes(loader, growth)
    beyond = growth.grew_bytes - copied - FREED_SINCE * max(0.0, growth.heap_freed_bytes or 0.0)
    if beyond < MIN_GROWTH_BYTES or growth.grew_bytes < BEYOND_COPIES * copied:
        return None
    if growth.late_part < MIN_LATE_PART:
        return None
    per_sample = beyond / growth.n_samples
    free = facts.machine.memory_available_bytes if facts.machine is not None else None
    ahead, when = _ahead(loader, growth, per_sample)
    held = growth.grown[0] if growth.grown else None
    told = held is not None or growth.heap_freed_bytes is not None
    kills = free is not None and ahead > free and told
    what = (
        f" {held[0]} of the dataset grew from {held[1]:,} to {held[2]:,} entries meanwhile."
        if held is not None
        else " No container among the dataset's attributes grew with it."
    )
    return Finding(
        kind=Kind.WORKER_MEMORY_GROWS,
        severity=Severity.HIGH if kills else Severity.LOW,
        share=None,
        loader=loader_id(facts),
        summary=(
            f"Each of {fmt.count(growth.n_workers, 'worker')} grew by "
            f"{fmt.n_bytes(growth.grew_bytes)} while it made {growth.n_samples:,.0f} samples, and "
            f"reading the dataset accounts for {fmt.n_bytes(copied)} of that at most: "
            f"{fmt.n_bytes(per_sample)} a sample are kept, {fmt.n_bytes(ahead)} {when} in all "
            f"workers.{what}"
        ),
        evidence={
            "num_workers": growth.n_workers,
            "grew_bytes": growth.grew_bytes,
            "copied_bytes_at_most": float(copied),
            "samples": growth.n_samples,
            "kept_bytes_per_sample": per_sample,
            "ahead_bytes": ahead,
            "container": held[0] if held is not None else None,
            "memory_available_bytes": free,
        },
        advice="Empty or bound it: each worker has its own, so a cache there is filled once by "
        "each. Before the workers start, or on disk, there is one for all."
        if held is not None
        else "Look for what a sample leaves behind in a worker: open files, plots, tensors with "
        "a gradient history, a library's cache. Workers that are started again each epoch "
        "(persistent_workers=False) give it back.",
    )


def _copied_bytes(loader: LoaderRecord, growth: GrowthFacts) -> int:
    """The most that reading so many samples can have copied, a page for each object."""
    touched = (
        min(x.n_bytes, growth.n_samples * x.n_objects * PAGE_BYTES) for x in loader.containers
    )
    return int(sum(touched))


def _ahead(loader: LoaderRecord, growth: GrowthFacts, per_sample: float) -> tuple[float, str]:
    """Bytes that all workers will have kept, and by when: an epoch, where its length is known."""
    if loader.n_samples:
        return per_sample * loader.n_samples, "an epoch"
    rate = per_sample * growth.n_samples * growth.n_workers / max(growth.took_s, 1e-9)
    return rate * 3600.0, "an hour"
