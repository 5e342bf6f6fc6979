"""How fast batches are made and needed, and what other settings of the loop's loaders would take.

A pool of n workers hands out a batch every `batch cost / n`; the rest of the step takes `rest`.
It keeps up while the first is no longer than the second, by the mean over whole worker cycles:
single waits come as 255, 0, 0, 0, 140, 1, 0, 0 ms, and their median says nothing.
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from loaderdoctor.facts import Facts
from loaderdoctor.facts.host import WorkerFacts
from loaderdoctor.facts.loop import MachineFacts
from loaderdoctor.facts.step import MODERATE_SHARE
from loaderdoctor.findings.exposure import Cost, exposed, num_workers, pool_size
from loaderdoctor.hazards import (
    Change,
    FeedBatch,
    Hazard,
    Room,
    container_words,
    hazard,
    most_that_fit,
)
from loaderdoctor.instrument.wire.records import LoaderRecord
from loaderdoctor.settings import DEFAULT_PREFETCH_FACTOR, Settings

# A worker that waits for storage most of the time still burns some CPU (decoding, pickling,
# the queue's thread): it is never taken for free.
MIN_CPU_SHARE = 0.1
# More workers than this per usable CPU is a disk or network to fix, not a pool to grow: every
# worker also holds an interpreter, torch and the dataset in memory.
MAX_WORKERS_PER_CPU = 4
# Time slicing, interrupts and waits for the queue keep the counted user and system time of fully
# loaded cores below 100 %. Under this the CPU still has room for another worker.
SATURATED_CPU_SHARE = 0.85
# While making a batch a worker either burns CPU or waits for a disk, the network or a lock.
# Under a half, waiting dominates.
MAX_WAITING_CPU_SHARE = 0.5
# Ablation may find more than the time seen in making batches, within reason: the loader takes
# caches and memory from the step, and the loop pays for receiving what a worker pays for sending.
# Beyond twice of it, another cause or noise is at work.
MAX_BEYOND_SEEN = 2.0
# Workers that wait for work this much of their life have room: the pool is not what is short.
# (A pool that falls short never waits, but for its own start and the window's edges.)
MAX_IDLE_SHARE = 0.5
# Both the pool's and the step's times vary: closer than this they count as equal.
KEEPS_UP_MARGIN = 1.05


def by_ablation(facts: Facts) -> bool:
    """Whether what is said of the step rests on windows with ready batches; else on its trace.

    Where they have no interval they decide nothing.
    """
    ablation = facts.ablation
    return ablation is not None and ablation.input_ms is not None and ablation.input_ms.bounded


def rest_ms(facts: Facts) -> float | None:
    """The step without its loader: measured by ablation, else the step less its input share."""
    ablation = facts.ablation
    if by_ablation(facts) and ablation is not None and ablation.no_input_ms is not None:
        return ablation.no_input_ms.value
    cost = exposed(facts, "input")
    return max(cost.step_ms - cost.ms, 0.0) if cost is not None else None


def batch_ms(facts: Facts) -> float | None:
    """What making one batch takes one worker (or the loop itself); None where not recorded.

    Without workers the loop's wait for a batch is the cost of making it.
    """
    if facts.workers is not None and facts.workers.n_batches > 0:
        return facts.workers.batch_ms
    if num_workers(facts) == 0:
        if facts.step is not None:
            return facts.step.raw_wait_ms
        return facts.trace.fetching.raw_wait_ms if facts.trace is not None else None
    return None


def may_explain(seen_ms: float, cost: Cost) -> bool:
    """Whether batches seen to take so long can be what a cost worth naming comes from."""
    return MAX_BEYOND_SEEN * seen_ms >= MODERATE_SHARE * cost.step_ms


def main_cpu_ms(facts: Facts) -> float | None:
    """CPU time of the training process for one step without its loader; None if not recorded.

    Measured with ready batches; else what it uses, less what its own batches cost it.
    """
    if facts.ablation is not None and facts.ablation.main_cpu_ms is not None:
        return facts.ablation.main_cpu_ms
    step = facts.step
    if step is None or step.main_cpu_cores is None:
        return None
    own_ms = 0.0
    if num_workers(facts) == 0:
        made = batch_cpu_ms(facts)
        if made is None:
            return None
        own_ms = made
    return max(0.0, step.main_cpu_cores * step.wall_ms.value - own_ms)


def batch_cpu_ms(facts: Facts) -> float | None:
    """CPU time of making one batch of each loader that feeds the step; None where not recorded."""
    workers = facts.workers
    if workers is None or workers.cpu_share is None:
        return None
    others = (w.batch_ms * w.cpu_share for w in _also_feeding(facts) if w.cpu_share is not None)
    return workers.batch_ms * workers.cpu_share + math.fsum(others)


def all_batches_ms(facts: Facts, *, at_best: bool = False) -> float | None:
    """What one process would take for a step's batches of all loaders; None where not recorded.

    Less what their workers queued for a CPU meanwhile, which one process alone need not. How much
    they did while they made batches is not told apart: as in all of their lives, or `at_best` all.
    """
    if facts.workers is None or not facts.workers.n_batches:
        return None
    made = (facts.workers, *_also_feeding(facts))
    if len(made) < len(facts.feeding):
        return None
    queued = [(w.most_queued_share if at_best else w.run_wait_share) or 0.0 for w in made]
    return math.fsum(w.batch_ms * (1.0 - q) for w, q in zip(made, queued, strict=True))


def all_receiving_ms(facts: Facts) -> float | None:
    """What receiving ready batches takes the loop a step, of all loaders; None: not recorded."""
    if facts.workers is None or facts.workers.receive_ms is None:
        return None
    return math.fsum(w.receive_ms or 0.0 for w in (facts.workers, *_also_feeding(facts)))


def _also_feeding(facts: Facts) -> list[WorkerFacts]:
    """Of the loaders that feed the step, those but the dearest."""
    names = {x.id for x in facts.feeding}
    return [w for w in facts.other_workers if w.loader in names]


def cpu_bound_ms(facts: Facts) -> float | None:
    """The shortest step that the CPUs allow, however many workers: all CPU time / usable CPUs.

    Of several ranks on one machine each has its part of the CPUs. None where it is not recorded.
    """
    of_step, of_batch = main_cpu_ms(facts), batch_cpu_ms(facts)
    if of_step is None or of_batch is None or facts.machine is None:
        return None
    return (of_step + of_batch) / facts.machine.cpus_per_rank


def reachable_ms(facts: Facts) -> float | None:
    """The step that workers can bring it to: its rest, or what the CPUs allow if that is longer."""
    rest, bound = rest_ms(facts), cpu_bound_ms(facts)
    return rest if rest is None or bound is None else max(rest, bound)


def workers_needed(facts: Facts) -> int | None:
    """Workers so that the loop no longer waits: batch cost / rest of the step, rounded up.

    Not capped by the machine: see `worker_limit`. None where either figure is missing.
    """
    batch, rest = batch_ms(facts), rest_ms(facts)
    if batch is None or rest is None or batch <= 0:
        return None
    return max(1, math.ceil(batch / rest)) if rest > 0 else None


def worker_limit(facts: Facts) -> int | None:
    """The most workers, for each loader, that this machine feeds and has memory for.

    None where the machine is not known (a trace from elsewhere).
    """
    fed = fed_workers(facts)
    if fed is None:
        return None
    return max(1, min(fed, most_workers(facts, fed)))


def most_workers(facts: Facts, n: int) -> int:
    """The most of `n` workers for each loader that memory, /dev/shm and open files suffice for.

    No fewer than there are now: those are the user's own.
    """
    loader = facts.main_loader
    have = num_workers(facts) or 0
    if loader is None or n <= have:
        return n
    return max(have, most_that_fit(change_of(facts, loader, Settings(num_workers=n))))


def fed_workers(facts: Facts) -> int | None:
    """The most workers this machine feeds next to the training process itself, for each loader.

    Usable CPUs less what that process keeps busy at the step within reach; more workers where they
    wait instead of burn. Of several ranks on the machine each has its part. None where the machine
    is not known (a trace from elsewhere).
    """
    if facts.machine is None:
        return None
    cpus = facts.machine.cpus_per_rank
    cpu_share = wanted_cpu_share(facts)
    if cpu_share is None or cpu_saturated(facts):
        # A saturated CPU makes workers wait for it, which looks like a low share.
        cpu_share = 1.0
    share = min(1.0, max(cpu_share, MIN_CPU_SHARE))
    of_step, reach = main_cpu_ms(facts), reachable_ms(facts)
    if of_step is not None and reach:
        # Rounded up: the step leaves no whole number of CPUs, and the last worker idles at times.
        left = math.ceil(max(0.0, cpus - of_step / reach) / share)
    else:
        left = math.floor(cpus / share)
    limit = min(left, math.floor(cpus * MAX_WORKERS_PER_CPU))
    n, used = pool_size(facts), cpu_cores_used(facts)
    if n and used:
        # A pool that leaves CPUs unused may grow until it fills them; what it queues for is
        # not room: other programs have it.
        wanted = used + n * run_wait_share(facts)
        limit = max(limit, math.floor(n * SATURATED_CPU_SHARE * cpus / wanted))
    limit = min(limit, math.floor(cpus * MAX_WORKERS_PER_CPU))
    return max(1, limit // max(1, len(facts.feeding)))


def wanted_cpu_share(facts: Facts) -> float | None:
    """What of its time a worker would burn CPU if one were free: it does, or queues for one.

    None where it is not recorded. On CPUs that other programs keep busy, what it burns alone looks
    like waiting for storage.
    """
    workers = facts.workers
    if workers is None or workers.cpu_share is None:
        return None
    return workers.cpu_share + run_wait_share(facts)


def run_wait_share(facts: Facts) -> float:
    """What of their time workers stood ready with no CPU free; 0 where it is not recorded."""
    return (facts.workers.run_wait_share or 0.0) if facts.workers is not None else 0.0


def supply_ms(facts: Facts, n_workers: int) -> float | None:
    """Time between batches from a pool of this size, by the mean; 0 workers: the batch itself."""
    batch = batch_ms(facts)
    return batch / max(1, n_workers) if batch is not None else None


def pool_falls_short_ms(facts: Facts) -> float | None:
    """How much longer the pool takes per batch than the rest of the step, ms; 0 if it keeps up.

    A pool whose workers mostly wait for work keeps up, whatever a batch takes: what the loop waits
    for then is their start, or receiving batches. None where a figure is missing or there are no
    workers.
    """
    n = num_workers(facts)
    if not n:
        return None
    n_idle = facts.workers.n_idle_workers if facts.workers is not None else 0
    if not n_idle and mostly_idle(facts):
        return 0.0
    supply, rest = supply_ms(facts, n - n_idle), rest_ms(facts)
    if supply is None or rest is None:
        return None
    return supply - rest if supply > rest * KEEPS_UP_MARGIN else 0.0


def mostly_idle(facts: Facts) -> bool:
    """Whether all workers were seen to wait for work most of their life."""
    idle = facts.workers.all_idle_share if facts.workers is not None else None
    return idle is not None and idle > MAX_IDLE_SHARE


def in_flight_bytes(facts: Facts, n_workers: int, prefetch_factor: int | None) -> int | None:
    """Bytes of batches that such a pool of each loader of the step keeps ready at once.

    None where the main loader's batch was not seen.
    """
    loader = facts.main_loader
    if loader is None or not loader.batch:
        return None
    n_bytes = sum(t.n_bytes for x in facts.feeding for t in x.batch if t.device == "cpu")
    return n_bytes * max(1, n_workers * (prefetch_factor or DEFAULT_PREFETCH_FACTOR))


def cpu_cores_used(facts: Facts) -> float | None:
    """CPUs kept busy by the training process and its workers together, over the plain windows."""
    step = facts.step
    if step is None or step.worker_cpu_cores is None:
        return None
    return step.worker_cpu_cores + (step.main_cpu_cores or 0.0)


def cpu_saturated(facts: Facts) -> bool | None:
    """Whether the usable CPUs are all busy; None where CPU time was not recorded."""
    if facts.machine is None:
        return None
    used = cpu_cores_used(facts)
    if used is None:
        return None
    return used >= SATURATED_CPU_SHARE * facts.machine.cpus_per_rank


def cpus_words(machine: MachineFacts) -> str:
    """`8 usable CPUs`; of several ranks on the machine each one's part."""
    if machine.ranks_here == 1:
        return f"{machine.usable_cpus:g} usable CPUs"
    return (
        f"{machine.cpus_per_rank:.3g} of {machine.usable_cpus:g} usable CPUs "
        f"({machine.ranks_here} ranks share them)"
    )


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
        safety=replace(loader.safety, changed=facts.step.changed if facts.step else None),
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
    if facts.main_loader is None:
        return None
    change = change_of(facts, facts.main_loader, changes)
    return change.n_all * change.worker_needs_bytes or None


def container_bytes(loader: LoaderRecord) -> int:
    """What a forked worker copies of the dataset's Python objects once it has read them all."""
    return sum(x.n_bytes for x in loader.containers)


def dataset_bytes(facts: Facts) -> int | None:
    """What all datasets of the step take as the loop gets them; None where not known."""
    n_bytes = 0
    for x in facts.feeding or facts.loaders[:1]:
        if not x.n_samples or not x.batch_size or not x.batch:
            return None
        n_bytes += sum(t.n_bytes for t in x.batch) * x.n_samples // x.batch_size
    return n_bytes or None


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
    main = facts.main_loader
    return hazard(change_of(facts, main, changes)) if main is not None else None
