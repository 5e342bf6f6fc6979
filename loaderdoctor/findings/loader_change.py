"""Other settings of the loop's loaders, as the table of hazards is asked about them."""

from __future__ import annotations

from loaderdoctor.facts import Facts
from loaderdoctor.hazards import Change, FeedBatch, Hazard, Room, container_words, hazard
from loaderdoctor.instrument.wire.records import LoaderRecord
from loaderdoctor.settings import DEFAULT_PREFETCH_FACTOR, Settings


def change_of(facts: Facts, loader: LoaderRecord, changes: Settings) -> Change:
    """What these settings would change for all loaders that feed the step, `loader` the first."""
    whole, feeding = changes.over(loader.settings), facts.feeding or (loader,)
    machine = facts.machine
    n = whole.num_workers or 0
    seen = facts.worker_memory
    return Change(
        settings=changes,
        whole=whole,
        had=loader.settings.num_workers or 0,
        had_queue=loader.settings.prefetch_factor or DEFAULT_PREFETCH_FACTOR,
        alongside=False,
        dataset=loader.dataset,
        iterable=loader.kind == "iterable",
        safety=loader.safety,
        start_method=start_method(facts, whole),
        room=Room()
        if machine is None
        else Room(
            shm_free_bytes=machine.shm_free_bytes,
            available_bytes=machine.memory_available_bytes,
            open_files_limit=machine.open_files_limit,
            device_memory_bytes=machine.device_memory_bytes,
            n_ranks=machine.ranks_here,
        ),
        batches=tuple(_batch(x) for x in feeding),
        n_new=sum(max(0, n - (x.settings.num_workers or 0)) for x in feeding),
        dataset_bytes=dataset_bytes(facts),
        shared_bytes=loader.safety.shared_bytes,
        pickled_bytes=loader.safety.pickled_bytes,
        container_bytes=container_bytes(loader),
        container=container_words(loader.containers[0]) if loader.containers else None,
        worker_bytes=seen.worker_bytes if seen is not None else None,
    )


def workers_forecast_bytes(facts: Facts, changes: Settings) -> int | None:
    """What all workers may come to have to themselves with these settings, batches left out.

    Once each has read the whole dataset. None without a loader that was seen, or without workers.
    """
    loader = facts.main_loader
    if loader is None:
        return None
    change = change_of(facts, loader, changes)
    return change.n_all * change.worker_needs_bytes or None


def container_bytes(loader: LoaderRecord) -> int:
    """What a forked worker copies of the dataset's Python objects once it has read them all."""
    return sum(x.n_bytes for x in loader.containers)


def dataset_bytes(facts: Facts) -> int | None:
    """What the whole dataset takes as the loop gets it; None where not known."""
    loader = facts.main_loader
    if loader is None or not loader.n_samples or not loader.batch_size or not loader.batch:
        return None
    return sum(t.n_bytes for t in loader.batch) * loader.n_samples // loader.batch_size


def start_method(facts: Facts, whole: Settings) -> str | None:
    """How workers would start: the loader's own setting, else the process's default."""
    if whole.start_method is not None:
        return whole.start_method
    return facts.machine.start_method if facts.machine is not None else None


def _batch(loader: LoaderRecord) -> FeedBatch:
    return FeedBatch(
        cpu_bytes=sum(t.n_bytes for t in loader.batch if t.device == "cpu"),
        n_tensors=len(loader.batch),
    )


def why_unsafe(facts: Facts, changes: Settings) -> Hazard | None:
    """The setting that must not be advised and the reason; None where nothing speaks against it.

    What was not checked counts as safe: it is the trial's business to fail without harm.
    """
    loader = facts.main_loader
    return hazard(change_of(facts, loader, changes)) if loader is not None else None
