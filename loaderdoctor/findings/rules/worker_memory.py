"""Memory of worker processes that will not stay what it is: copied by reading, or kept for good.

A forked worker shares the dataset until it reads it. Reading a Python object writes its reference
count and so copies its page, up to all of them; a leak or a cache in the worker goes on from there.
"""

from __future__ import annotations

from loaderdoctor import format as fmt
from loaderdoctor.facts import Facts
from loaderdoctor.facts.host import GrowthFacts
from loaderdoctor.findings import Finding, Kind, Severity
from loaderdoctor.findings.exposure import loader_id
from loaderdoctor.findings.loader_change import change_of, container_bytes
from loaderdoctor.hazards import MAX_SHARE_OF_ROOM, MIN_AVAILABLE_BYTES, container_words
from loaderdoctor.instrument.wire.records import LoaderRecord
from loaderdoctor.settings import Settings

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
