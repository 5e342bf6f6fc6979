"""Advice that would break a user's run: what speaks against settings, before anyone tries them."""

from __future__ import annotations

import math
from collections.abc import Callable

from loaderdoctor import format as fmt
from loaderdoctor.facts.whole import Facts
from loaderdoctor.findings.capacity import in_flight_bytes
from loaderdoctor.findings.rules.storage import MIN_AVAILABLE_BYTES
from loaderdoctor.instrument.wire.records import LoaderRecord
from loaderdoctor.settings import DEFAULT_PREFETCH_FACTOR, Settings

# Batches in flight are not all of it: one more in the making per worker, and the allocator rounds.
SHM_MARGIN = 1.25
# A process that imports torch itself holds about 300 MB (unique set size, torch 2.14 on
# Linux); a forked one shares that with its parent and adds what it touches, taken as 50 MB.
SPAWNED_WORKER_BYTES = 300 * 1000**2
FORKED_WORKER_BYTES = 50 * 1000**2
# Files, sockets and libraries a training process has open besides its batches.
OTHER_DESCRIPTORS = 128
# Pipes and semaphores of each worker's queues.
DESCRIPTORS_PER_WORKER = 8
GIB = 1024**3

Unsafe = tuple[str, str]  # (setting, reason)
Check = Callable[[Facts, LoaderRecord, Settings, Settings], "Unsafe | None"]


def why_unsafe(facts: Facts, changes: Settings) -> Unsafe | None:
    """The setting that must not be advised and the reason; None where nothing speaks against it.

    What was not checked counts as safe: it is the trial's business to fail without harm.
    """
    loader = facts.main_loader
    if loader is None:
        return None
    whole = changes.over(loader.settings)
    for check in CHECKS:
        unsafe = check(facts, loader, changes, whole)
        if unsafe is not None:
            return unsafe
    return None


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


def _unsharded(
    facts: Facts, loader: LoaderRecord, changes: Settings, whole: Settings
) -> Unsafe | None:
    n = changes.num_workers or 0
    if n > max(1, loader.settings.num_workers or 0) and loader.safety.unsharded_iterable:
        return "num_workers", (
            f"{loader.dataset or 'the dataset'} is an IterableDataset that does not split its data "
            f"between workers: {n} workers would deliver every sample {n} times. Use "
            "get_worker_info() in __iter__ first."
        )
    return None


def _one_pass(
    facts: Facts, loader: LoaderRecord, changes: Settings, whole: Settings
) -> Unsafe | None:
    if changes.num_workers and loader.safety.one_pass and loader.kind == "iterable":
        why = loader.safety.one_pass_reason or "it can be read only once"
        return "num_workers", f"the dataset is a one-pass stream ({why}); workers would tear it up."
    return None


def _device_tensors(
    facts: Facts, loader: LoaderRecord, changes: Settings, whole: Settings
) -> Unsafe | None:
    if _first_workers(loader, changes) and loader.safety.cuda_tensors:
        return "num_workers", (
            "the dataset makes CUDA tensors: a forked worker can't use CUDA, and device tensors do "
            "not pass between processes. Return CPU tensors first."
        )
    return None


def _shared_handles(
    facts: Facts, loader: LoaderRecord, changes: Settings, whole: Settings
) -> Unsafe | None:
    handles = loader.safety.open_handles
    forked = start_method(facts, whole) in (None, "fork")
    grows = (changes.num_workers or 0) > (loader.settings.num_workers or 0)
    if handles and forked and grows and (loader.settings.num_workers or 0) < 2:
        return "num_workers", (
            f"the dataset holds open files ({', '.join(handles[:3])}) that forked workers would "
            "share, so their reads would mix. Open them in the worker, at the first __getitem__."
        )
    return None


def _unpicklable(
    facts: Facts, loader: LoaderRecord, changes: Settings, whole: Settings
) -> Unsafe | None:
    method = start_method(facts, whole)
    new = _first_workers(loader, changes) or changes.start_method is not None
    if new and loader.safety.pickles is False and method in ("spawn", "forkserver"):
        setting = "start_method" if changes.start_method is not None else "num_workers"
        return setting, (
            f"workers start by {method} here, and the dataset or collate function does not pickle: "
            f"{loader.safety.pickle_error or 'no reason recorded'}."
        )
    return None


def _shared_memory(
    facts: Facts, loader: LoaderRecord, changes: Settings, whole: Settings
) -> Unsafe | None:
    """Workers hand over their batches in /dev/shm; a full one kills them with SIGBUS."""
    free = facts.machine.shm_free_bytes if facts.machine is not None else None
    if free is None or not whole.num_workers or not _pool_grows(loader, changes):
        return None
    held = in_flight_bytes(facts, whole.num_workers, whole.prefetch_factor)
    if held is None or held * SHM_MARGIN <= free:
        return None
    gib = math.ceil(held * SHM_MARGIN / GIB) + 1
    return _grown(changes), (
        f"{fmt.count(whole.num_workers, 'worker')} keep {fmt.n_bytes(held)} of batches in "
        f"/dev/shm, which has {fmt.n_bytes(free)} free: workers would die with a bus error. In a "
        f"container: docker run --shm-size={gib}g …"
    )


def _memory(
    facts: Facts, loader: LoaderRecord, changes: Settings, whole: Settings
) -> Unsafe | None:
    """RAM for the batches in flight (twice if pinned) and for the workers themselves."""
    available = facts.machine.memory_available_bytes if facts.machine is not None else None
    if available is None:
        return None
    n, had = whole.num_workers or 0, loader.settings.num_workers or 0
    grows = n > had or _pool_grows(loader, changes)
    if not grows and not changes.pin_memory:
        return None
    held = in_flight_bytes(facts, n, whole.prefetch_factor) or 0
    forked = start_method(facts, whole) in (None, "fork")
    per_worker = FORKED_WORKER_BYTES if forked else SPAWNED_WORKER_BYTES
    needed = held * (2 if whole.pin_memory else 1) + max(0, n - had) * per_worker
    if needed + MIN_AVAILABLE_BYTES <= available:
        return None
    setting = _grown(changes) if grows else "pin_memory"
    return setting, (
        f"it takes about {fmt.n_bytes(needed)} of host memory and {fmt.n_bytes(available)} are "
        "available: the run would swap or be killed."
    )


def _descriptors(
    facts: Facts, loader: LoaderRecord, changes: Settings, whole: Settings
) -> Unsafe | None:
    """Each tensor in flight between processes holds a file descriptor (torch's Linux default)."""
    limit = facts.machine.open_files_limit if facts.machine is not None else None
    n = whole.num_workers or 0
    if limit is None or not n or not _pool_grows(loader, changes):
        return None
    in_flight = n * (whole.prefetch_factor or DEFAULT_PREFETCH_FACTOR)
    needed = in_flight * max(1, len(loader.batch)) + n * DESCRIPTORS_PER_WORKER + OTHER_DESCRIPTORS
    if needed <= limit:
        return None
    return _grown(changes), (
        f"it needs about {needed} open files and the limit is {limit}: raise it with "
        f"`ulimit -n {2 ** math.ceil(math.log2(needed))}`."
    )


def _device_memory(
    facts: Facts, loader: LoaderRecord, changes: Settings, whole: Settings
) -> Unsafe | None:
    memory = facts.machine.device_memory_bytes if facts.machine is not None else None
    held = dataset_bytes(facts)
    if not changes.resident or memory is None or held is None or held <= memory / 2:
        return None
    return "resident", (
        f"the dataset takes {fmt.n_bytes(held)}, more than half of the device's "
        f"{fmt.n_bytes(memory)}."
    )


CHECKS: tuple[Check, ...] = (
    _unsharded,
    _one_pass,
    _device_tensors,
    _shared_handles,
    _unpicklable,
    _shared_memory,
    _memory,
    _descriptors,
    _device_memory,
)


def _first_workers(loader: LoaderRecord, changes: Settings) -> bool:
    return bool(changes.num_workers) and not loader.settings.num_workers


def _pool_grows(loader: LoaderRecord, changes: Settings) -> bool:
    more_workers = (changes.num_workers or 0) > (loader.settings.num_workers or 0)
    longer_queue = (changes.prefetch_factor or 0) > (
        loader.settings.prefetch_factor or DEFAULT_PREFETCH_FACTOR
    )
    return more_workers or longer_queue


def _grown(changes: Settings) -> str:
    return "num_workers" if changes.num_workers else "prefetch_factor"
