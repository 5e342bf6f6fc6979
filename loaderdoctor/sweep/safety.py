"""Trials that would harm or falsify the run, and why: they are rows, but are not run."""

from __future__ import annotations

from loaderdoctor.instrument.protocol import Observed
from loaderdoctor.settings import DEFAULT_PREFETCH_FACTOR, Settings
from loaderdoctor.sweep.grid import meaning, own_settings

# Batches of ours may fill at most this part of what is free in /dev/shm: the loop's own paused
# pool and other programs need the rest.
SHM_SHARE = 0.8
# Each worker keeps some files open for every batch in flight (one per tensor with the
# file_descriptor sharing strategy), beside what the script has open.
FILES_SHARE = 0.5


def withheld_reason(settings: Settings, observed: Observed) -> str | None:
    """Why this trial must not run on this loop; None where nothing speaks against it."""
    loader = next((x for x in observed.loaders if x.role == "train"), None)
    if loader is None or not settings.changed():
        return None
    own = own_settings(observed)
    full = meaning(settings, own)
    workers = full.num_workers or 0
    safety = loader.safety
    if safety.one_pass:
        why = safety.one_pass_reason or "its batches can be taken only once"
        return f"the loader can't be opened a second time: {why}"
    if workers and workers != own.num_workers:
        if safety.unsharded_iterable and workers > 1:
            return (
                "the IterableDataset does not split its data between workers: each would repeat it"
            )
        if safety.cuda_tensors:
            return "the dataset makes CUDA tensors, which fails in worker processes"
        if safety.open_handles:
            names = ", ".join(safety.open_handles)
            return f"workers would share the dataset's open file ({names})"
    method = full.start_method or observed.environment.start_method
    if workers and method != "fork" and safety.pickles is False:
        why = safety.pickle_error or "no reason given"
        return f"the dataset can't be sent to workers started by {method}: {why}"
    return _too_big(full, observed) if workers else None


def _too_big(full: Settings, observed: Observed) -> str | None:
    """Whether the batches in flight exceed /dev/shm or the open-file limit."""
    loader = next(x for x in observed.loaders if x.role == "train")
    environment = observed.environment
    in_flight = (full.num_workers or 0) * (full.prefetch_factor or DEFAULT_PREFETCH_FACTOR)
    needed = in_flight * sum(tensor.n_bytes for tensor in loader.batch)
    free = environment.shm_free_bytes
    if free is not None and needed > SHM_SHARE * free:
        return (
            f"{in_flight} batches in flight need {needed / 2**20:,.0f} MiB of /dev/shm, "
            f"{free / 2**20:,.0f} MiB are free"
        )
    limit = environment.open_files_limit
    n_files = in_flight * len(loader.batch)
    if limit is not None and n_files > FILES_SHARE * limit:
        return f"{in_flight} batches in flight keep {n_files} files open; the limit is {limit}"
    return None
