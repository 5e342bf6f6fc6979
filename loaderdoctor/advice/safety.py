"""Advice that would break a user's run: what speaks against settings, before anyone tries them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from loaderdoctor import format as fmt
from loaderdoctor.facts.whole import Facts
from loaderdoctor.findings.capacity import in_flight_bytes
from loaderdoctor.findings.rules.storage import MIN_AVAILABLE_BYTES
from loaderdoctor.instrument.wire.records import LoaderRecord
from loaderdoctor.settings import (
    DEFAULT_PREFETCH_FACTOR,
    FILES_PER_WORKER,
    FORKED_WORKER_BYTES,
    SPAWNED_WORKER_BYTES,
    Settings,
)

# Batches in flight are not all of it: one more in the making per worker, and the allocator rounds.
SHM_MARGIN = 1.25
# Files, sockets and libraries a training process has open next to its batches.
OTHER_DESCRIPTORS = 128
GIB = 1024**3

Unsafe = tuple[str, str]  # (setting, reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """Settings that may be advised, against the loop as it is."""

    facts: Facts
    loader: LoaderRecord
    settings: Settings  # what changes
    whole: Settings  # the loader's settings with it

    @property
    def n(self) -> int:
        """Workers then."""
        return self.whole.num_workers or 0

    @property
    def had(self) -> int:
        """Workers now."""
        return self.loader.settings.num_workers or 0

    @property
    def n_all(self) -> int:
        """Workers then, of all loaders that feed the step: what changes, changes for each."""
        return self.n * max(1, len(self.facts.feeding))

    @property
    def n_new(self) -> int:
        """Of those, how many more than now."""
        feeding = self.facts.feeding or (self.loader,)
        return sum(max(0, self.n - (x.settings.num_workers or 0)) for x in feeding)

    @property
    def wanted(self) -> int:
        """Workers that the change itself names; 0 where it leaves them as they are."""
        return self.settings.num_workers or 0

    @property
    def method(self) -> str | None:
        """How workers then start."""
        return start_method(self.facts, self.whole)

    @property
    def first_workers(self) -> bool:
        return bool(self.wanted) and not self.had

    @property
    def pool_grows(self) -> bool:
        """Whether more batches are kept ready: more workers, or a longer queue for each."""
        queue = self.loader.settings.prefetch_factor or DEFAULT_PREFETCH_FACTOR
        return self.wanted > self.had or (self.settings.prefetch_factor or 0) > queue

    @property
    def grown(self) -> str:
        """The setting that makes the pool grow."""
        return "num_workers" if self.wanted else "prefetch_factor"


def why_unsafe(facts: Facts, changes: Settings) -> Unsafe | None:
    """The setting that must not be advised and the reason; None where nothing speaks against it.

    What was not checked counts as safe: it is the trial's business to fail without harm.
    """
    loader = facts.main_loader
    if loader is None:
        return None
    change = _Change(
        facts=facts, loader=loader, settings=changes, whole=changes.over(loader.settings)
    )
    return next((unsafe for check in CHECKS if (unsafe := check(change)) is not None), None)


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


def _unsharded(change: _Change) -> Unsafe | None:
    n, loader = change.wanted, change.loader
    if n > max(1, change.had) and loader.safety.unsharded_iterable:
        return "num_workers", (
            f"{loader.dataset or 'the dataset'} is an IterableDataset that does not split its data "
            f"between workers: {n} workers would deliver every sample {n} times. Use "
            "get_worker_info() in __iter__ first."
        )
    return None


def _one_pass(change: _Change) -> Unsafe | None:
    safety = change.loader.safety
    if change.wanted and safety.one_pass and change.loader.kind == "iterable":
        why = safety.one_pass_reason or "it can be read only once"
        return "num_workers", f"the dataset is a one-pass stream ({why}); workers would tear it up."
    return None


def _device_tensors(change: _Change) -> Unsafe | None:
    if change.first_workers and change.loader.safety.cuda_tensors:
        return "num_workers", (
            "the dataset makes CUDA tensors: a forked worker can't use CUDA, and device tensors do "
            "not pass between processes. Return CPU tensors first."
        )
    return None


def _shared_handles(change: _Change) -> Unsafe | None:
    handles, forked = change.loader.safety.open_handles, change.method in (None, "fork")
    if handles and forked and change.wanted > change.had and change.had < 2:
        return "num_workers", (
            f"the dataset holds open files ({', '.join(handles[:3])}) that forked workers would "
            "share, so their reads would mix. Open them in the worker, at the first __getitem__."
        )
    return None


def _unpicklable(change: _Change) -> Unsafe | None:
    method, safety = change.method, change.loader.safety
    other = change.settings.start_method is not None
    if (
        (change.first_workers or other)
        and safety.pickles is False
        and method in ("spawn", "forkserver")
    ):
        setting = "start_method" if other else "num_workers"
        return setting, (
            f"workers start by {method} here, and the dataset or collate function does not pickle: "
            f"{safety.pickle_error or 'no reason recorded'}."
        )
    return None


def _shared_memory(change: _Change) -> Unsafe | None:
    """Workers hand over their batches in /dev/shm; a full one kills them with SIGBUS."""
    machine = change.facts.machine
    free = machine.shm_free_bytes if machine is not None else None
    if free is None or not change.n or not change.pool_grows:
        return None
    held = in_flight_bytes(change.facts, change.n, change.whole.prefetch_factor)
    if held is None or held * SHM_MARGIN <= free:
        return None
    gib = math.ceil(held * SHM_MARGIN / GIB) + 1
    return change.grown, (
        f"{fmt.count(change.n_all, 'worker')} keep {fmt.n_bytes(held)} of batches in "
        f"/dev/shm, which has {fmt.n_bytes(free)} free: workers would die with a bus error. In a "
        f"container: docker run --shm-size={gib}g …"
    )


def _memory(change: _Change) -> Unsafe | None:
    """RAM for the batches in flight (twice if pinned) and for the workers themselves."""
    machine, n, had = change.facts.machine, change.n, change.had
    available = machine.memory_available_bytes if machine is not None else None
    if available is None:
        return None
    grows = n > had or change.pool_grows
    if not grows and not change.settings.pin_memory:
        return None
    held = in_flight_bytes(change.facts, n, change.whole.prefetch_factor) or 0
    per_worker = FORKED_WORKER_BYTES if change.method in (None, "fork") else SPAWNED_WORKER_BYTES
    needed = held * (2 if change.whole.pin_memory else 1) + change.n_new * per_worker
    if needed + MIN_AVAILABLE_BYTES <= available:
        return None
    setting = change.grown if grows else "pin_memory"
    return setting, (
        f"it takes about {fmt.n_bytes(needed)} of host memory and {fmt.n_bytes(available)} are "
        "available: the run would swap or be killed."
    )


def _descriptors(change: _Change) -> Unsafe | None:
    """Each tensor in flight between processes holds a file descriptor (torch's Linux default)."""
    machine, n = change.facts.machine, change.n
    limit = machine.open_files_limit if machine is not None else None
    if limit is None or not n or not change.pool_grows:
        return None
    needed = (
        change.whole.queue_length * sum(max(1, len(x.batch)) for x in change.facts.feeding)
        + change.n_all * FILES_PER_WORKER
        + OTHER_DESCRIPTORS
    )
    if needed <= limit:
        return None
    return change.grown, (
        f"it needs about {needed} open files and the limit is {limit}: raise it with "
        f"`ulimit -n {2 ** math.ceil(math.log2(needed))}`."
    )


def _device_memory(change: _Change) -> Unsafe | None:
    machine, held = change.facts.machine, dataset_bytes(change.facts)
    memory = machine.device_memory_bytes if machine is not None else None
    if not change.settings.resident or memory is None or held is None or held <= memory / 2:
        return None
    return "resident", (
        f"the dataset takes {fmt.n_bytes(held)}, more than half of the device's "
        f"{fmt.n_bytes(memory)}."
    )


CHECKS: tuple[Callable[[_Change], Unsafe | None], ...] = (
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
