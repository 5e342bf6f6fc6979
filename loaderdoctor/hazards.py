"""What other settings of a loader would break: one table, asked at two moments.

Before settings are advised (`findings/capacity.py`: a run that is started again with them),
and before a trial opens a second loader next to the running one
(`instrument/trial/trial_checks.py`). Both describe what they would do as a `Change`.
What torch itself does not accept is in `combinations.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from loaderdoctor import format as fmt
from loaderdoctor.instrument.wire.records import ContainerRecord, SafetyRecord
from loaderdoctor.settings import (
    FILES_PER_WORKER,
    FORKED_WORKER_BYTES,
    KEEPING,
    SPAWNED_WORKER_BYTES,
    Settings,
)

# Of /dev/shm and of open files, what a pool may take: others live there too, allocators round.
MAX_SHARE_OF_ROOM = 0.90
# Host memory that must stay free, or a tenth of what is available where that is more: with less,
# page cache and pinned buffers push each other out.
MIN_AVAILABLE_BYTES = 512 * 1024**2
# Files, sockets and libraries a training process has open next to its batches, where not counted.
OTHER_DESCRIPTORS = 128
# Of the device's memory, what a dataset may take that is kept there.
MAX_SHARE_OF_DEVICE = 0.5
GIB = 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class Hazard:
    setting: str
    reason: str  # a sentence that says what to do, where something can be done


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What the machine has; None: not known, and then nothing is refused for it."""

    shm_free_bytes: int | None = None
    available_bytes: int | None = None  # of host memory
    open_files_limit: int | None = None
    open_files: int = OTHER_DESCRIPTORS  # of the training process
    device_memory_bytes: int | None = None
    n_ranks: int = 1  # processes on the machine that would do the same, and share its memory


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedBatch:
    """One batch of a loader that changes: what it takes to queue it."""

    cpu_bytes: int  # 0: not known, or on the device
    n_tensors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Settings of a loader (or of all alike that feed a step), against what it has now."""

    settings: Settings  # what changes
    whole: Settings  # the loader's settings with it
    had: int  # workers now
    had_queue: int  # batches that a worker of now keeps ready (prefetch_factor)
    alongside: bool  # a second loader is opened next to the running one: a trial
    dataset: str | None
    iterable: bool
    safety: SafetyRecord
    start_method: str | None  # how workers would start; None: not known, taken for fork
    main_runs_again: bool = False  # a worker not forked would run the script, which has no guard
    room: Room
    batches: tuple[FeedBatch, ...] = ()  # one a loader that changes; empty: one, not seen
    n_new: int  # workers to be started in all, beyond those of now
    shared_bytes: int = 0  # CPU tensors of the dataset, moved into /dev/shm by spawn
    pickled_bytes: int = 0  # what each spawned worker holds of the dataset
    container_bytes: int = 0  # of the dataset's Python objects, which workers copy one by one
    container: str | None = None  # the largest: "samples, a list of 2,000,000"
    worker_bytes: int | None = None  # what a worker of now has to itself; None: none was seen
    dataset_bytes: int | None = None  # all samples, as the loop gets them

    @property
    def wanted(self) -> int:
        """Workers then, where the change names them or a trial starts its own pool; else 0."""
        return (self.whole if self.alongside else self.settings).num_workers or 0

    @property
    def n(self) -> int:
        """Workers then, of one loader."""
        return self.whole.num_workers or 0

    @property
    def n_all(self) -> int:
        """Workers then, of all loaders that change alike."""
        return self.n * max(1, len(self.batches))

    @property
    def forks(self) -> bool:
        return self.start_method in (None, "fork")

    @property
    def first_workers(self) -> bool:
        return bool(self.wanted) and not self.had

    @property
    def pool_grows(self) -> bool:
        """Whether more batches are kept ready: more workers, a longer queue, or a second pool."""
        return (
            (self.alongside and bool(self.n))
            or self.wanted > self.had
            or (self.settings.prefetch_factor or 0) > self.had_queue
        )

    @property
    def worker_needs_bytes(self) -> int:
        """What one more worker takes in the end, once it has read the whole dataset.

        Forked workers share the dataset until they read it: reading a Python object writes its
        reference count, and so copies its page. Spawned ones have all of it from the start.
        """
        if not self.forks:
            return SPAWNED_WORKER_BYTES + max(self.pickled_bytes, self.container_bytes)
        return max(FORKED_WORKER_BYTES + self.container_bytes, self.worker_bytes or 0)

    @property
    def still_grows_bytes(self) -> int:
        """What workers of now will take besides, until they have read the whole dataset."""
        if self.alongside or not self.forks:
            return 0
        left = self.worker_needs_bytes - (self.worker_bytes or FORKED_WORKER_BYTES)
        return max(0, left) * self.had * max(1, len(self.batches))

    @property
    def grown(self) -> str:
        return "num_workers" if self.wanted or self.alongside else "prefetch_factor"

    @property
    def queued(self) -> int:
        """Batches of one loader that wait at once: the queue, and the one the loop holds."""
        return max(1, self.whole.queue_length) + 1

    @property
    def in_shm_bytes(self) -> int:
        """What all loaders' batches take in /dev/shm, and a spawned dataset's tensors."""
        held = self.queued * sum(batch.cpu_bytes for batch in self.batches)
        return held + (0 if self.forks else self.shared_bytes)


def hazard(change: Change) -> Hazard | None:
    """The first thing that speaks against this change; None where nothing known does."""
    return next((found for rule in RULES if (found := rule(change)) is not None), None)


def most_that_fit(change: Change) -> int:
    """The most workers, no more than asked for, that this machine has room for."""
    return next((n for n in range(change.n, 0, -1) if fits(_with_workers(change, n))), 0)


def fits(change: Change) -> bool:
    """Whether memory, /dev/shm and open files suffice, as far as they are known."""
    return all(rule(change) is None for rule in _ROOM)


def _with_workers(change: Change, n: int) -> Change:
    more = n if change.alongside else max(0, n - change.had)
    return replace(
        change,
        settings=replace(change.settings, num_workers=n),
        whole=replace(change.whole, num_workers=n),
        n_new=more * max(1, len(change.batches)),
    )


def _one_pass(change: Change) -> Hazard | None:
    """A second loader over data that comes once takes it from the running one."""
    safety = change.safety
    if not safety.one_pass:
        return None
    why = safety.one_pass_reason or "it can be read only once"
    if change.alongside:
        return Hazard(setting="num_workers", reason=why)
    if change.wanted and change.iterable:
        return Hazard(
            setting="num_workers",
            reason=f"the dataset is a one-pass stream ({why}); workers would tear it up.",
        )
    return None


def _unsharded(change: Change) -> Hazard | None:
    """As many workers as there are now repeat no more than the user's run does already."""
    n = change.wanted
    if n <= max(1, change.had) or not change.safety.unsharded_iterable:
        return None
    return Hazard(
        setting="num_workers",
        reason=f"{change.dataset or 'the dataset'} is an IterableDataset that does not split its "
        f"data between workers: {n} workers would deliver every sample {n} times. Use "
        "get_worker_info() in __iter__ first.",
    )


def _device_tensors(change: Change) -> Hazard | None:
    if not change.first_workers or not change.safety.cuda_tensors:
        return None
    return Hazard(
        setting="num_workers",
        reason="the dataset makes CUDA tensors: a forked worker can't use CUDA, and device tensors "
        "do not pass between processes. Return CPU tensors first.",
    )


def _shared_handles(change: Change) -> Hazard | None:
    handles = change.safety.open_handles
    if not handles or not change.forks or change.wanted <= change.had or change.had >= 2:
        return None
    return Hazard(
        setting="num_workers",
        reason=f"the dataset holds open files ({', '.join(handles[:3])}) that forked workers would "
        "share, so their reads would mix. Open them in the worker, at the first __getitem__.",
    )


def _changed_by_loop(change: Change) -> Hazard | None:
    """What is kept from epoch to epoch stays as it was when it was made, and so do workers."""
    safety = change.safety
    what, when = safety.changed, "between epochs"
    if safety.changed_while_read is not None:
        what, when = safety.changed_while_read, "while it trains"
        if change.first_workers:
            return Hazard(
                setting="num_workers",
                reason=f"the loop changes `{what}`, which the dataset reads, {when}: workers would "
                "go on with copies of it as they were when they started.",
            )
    kept = next((name for name in KEEPING if getattr(change.settings, name)), None)
    if what is None or kept is None:
        return None
    of = f"`{what}` of the dataset" if what.isidentifier() else f"the dataset ({what})"
    stays = "workers that are kept" if kept == "persistent_workers" else "samples that are kept"
    return Hazard(
        setting=kept, reason=f"the loop changes {of} {when}: {stays} would stay as they were."
    )


def _threads(change: Change) -> Hazard | None:
    """Threads share what a dataset has open, and one stream can't be cut between them."""
    if not change.settings.threads:
        return None
    if change.iterable:
        return Hazard(
            setting="threads",
            reason=f"{change.dataset or 'the dataset'} is an iterable one: it is one stream, which "
            "threads can't share.",
        )
    handles = change.safety.open_handles
    if not handles:
        return None
    return Hazard(
        setting="threads",
        reason=f"the dataset holds open files ({', '.join(handles[:3])}) that threads would share, "
        "so their reads would mix.",
    )


def _unpicklable(change: Change) -> Hazard | None:
    other = change.settings.start_method is not None
    asked = change.alongside or change.first_workers or other
    if change.safety.pickles is not False or not change.n or not asked or change.forks:
        return None
    return Hazard(
        setting="start_method" if other else "num_workers",
        reason=f"workers start by {change.start_method} here, and the dataset or collate function "
        f"does not pickle: {change.safety.pickle_error or 'no reason recorded'}.",
    )


def _main_runs_again(change: Change) -> Hazard | None:
    """Where advice says the guard to write, none of this is asked."""
    if not change.n or change.forks or not change.main_runs_again:
        return None
    return Hazard(
        setting="start_method",
        reason=f"a worker started by {change.start_method} would run the script again: it has no "
        'if __name__ == "__main__" guard',
    )


def _shared_memory(change: Change) -> Hazard | None:
    """Workers hand over their batches in /dev/shm; a full one kills them with SIGBUS."""
    n_ranks = change.room.n_ranks
    free, needed = change.room.shm_free_bytes, n_ranks * change.in_shm_bytes
    if free is None or not change.n or not change.pool_grows or needed <= MAX_SHARE_OF_ROOM * free:
        return None
    gib = math.ceil(needed / MAX_SHARE_OF_ROOM / GIB) + 1
    return Hazard(
        setting=change.grown,
        reason=f"{fmt.count(n_ranks * change.n_all, 'worker')}{_of_ranks(change)} keep "
        f"{fmt.n_bytes(needed)} of batches in /dev/shm, which has {fmt.n_bytes(free)} free: "
        "workers would die with a bus error. In a "
        f"container: docker run --shm-size={gib}g …",
    )


def _of_ranks(change: Change) -> str:
    n_ranks = change.room.n_ranks
    return f" of {n_ranks} ranks" if n_ranks > 1 else ""


def _memory(change: Change) -> Hazard | None:
    """RAM for the batches in flight (twice if pinned) and for the workers themselves."""
    available = change.room.available_bytes
    if available is None or not (change.pool_grows or change.settings.pin_memory):
        return None
    needed = change.in_shm_bytes * (2 if change.whole.pin_memory else 1)
    needed += change.n_new * change.worker_needs_bytes + change.still_grows_bytes
    needed *= change.room.n_ranks
    if needed + max(MIN_AVAILABLE_BYTES, (1 - MAX_SHARE_OF_ROOM) * available) <= available:
        return None
    return Hazard(
        setting=change.grown if change.pool_grows else "pin_memory",
        reason=f"it takes about {fmt.n_bytes(needed)} of host memory{_of_ranks(change)} and "
        f"{fmt.n_bytes(available)} are available: the run would swap or be killed."
        f"{_copied(change)}",
    )


def _copied(change: Change) -> str:
    """What most of it is, where that can be changed."""
    if change.container is None or 2 * change.container_bytes < change.worker_needs_bytes:
        return ""
    how = "copies as it reads them" if change.forks else "gets a copy of"
    return (
        f" Each worker {how} the dataset's Python objects, {fmt.n_bytes(change.container_bytes)} "
        f"({change.container}): arrays, tensors or Arrow tables in their place would be shared."
    )


def container_words(container: ContainerRecord) -> str:
    """`samples, a list of 2,000,000 (tuple of str, int)`."""
    name = f"{container.path}, a" if container.path else "the dataset itself, a"
    entry = f" ({container.entry})" if container.entry else ""
    return f"{name} {container.kind} of {container.n:,}{entry}"


def _descriptors(change: Change) -> Hazard | None:
    """Each tensor in flight between processes holds a file descriptor (torch's Linux default)."""
    limit = change.room.open_files_limit
    if limit is None or not change.n or not change.pool_grows:
        return None
    n_tensors = sum(max(1, batch.n_tensors) for batch in change.batches) or 1
    needed = change.room.open_files + change.n_all * FILES_PER_WORKER + change.queued * n_tensors
    if needed <= limit:
        return None
    return Hazard(
        setting=change.grown,
        reason=f"it needs about {needed} open files and the limit is {limit}: raise it with "
        f"`ulimit -n {2 ** math.ceil(math.log2(needed))}`.",
    )


def _device_memory(change: Change) -> Hazard | None:
    memory, held = change.room.device_memory_bytes, change.dataset_bytes
    if not change.settings.resident or memory is None or held is None:
        return None
    if held <= MAX_SHARE_OF_DEVICE * memory:
        return None
    return Hazard(
        setting="resident",
        reason=f"the dataset takes {fmt.n_bytes(held)}, more than half of the device's "
        f"{fmt.n_bytes(memory)}.",
    )


RULES: tuple[Callable[[Change], Hazard | None], ...] = (
    _one_pass,
    _unsharded,
    _device_tensors,
    _shared_handles,
    _changed_by_loop,
    _threads,
    _unpicklable,
    _main_runs_again,
    _shared_memory,
    _memory,
    _descriptors,
    _device_memory,
)
_ROOM = (_shared_memory, _memory, _descriptors)
