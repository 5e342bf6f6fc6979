"""Candidates that change who works: workers and their order, background and own threads."""

from __future__ import annotations

import math

from loaderdoctor import format as fmt
from loaderdoctor.advice import Candidate, Case
from loaderdoctor.advice.fit_wrapping import why_not_kept
from loaderdoctor.advice.routes import decoding_share
from loaderdoctor.findings import Kind
from loaderdoctor.findings.capacity import (
    MAX_WAITING_CPU_SHARE,
    cpu_bound_ms,
    fed_workers,
    worker_limit,
    workers_needed,
)
from loaderdoctor.findings.exposure import has_accelerator, input_cost, num_workers
from loaderdoctor.findings.input_parts import (
    fewer_that_keep_up,
    least_without_ms,
    pace_kept,
    pool_ms,
    stall_cost,
    startup_ms_per_step,
)
from loaderdoctor.findings.rules.memory import asked_for, mostly_full
from loaderdoctor.findings.rules.threads import fewer, threads_at_work
from loaderdoctor.settings import DEFAULT_PREFETCH_FACTOR, Value

# Starting a pool of forked workers: first waits of 54-70 ms were measured on 2 cores, 116-161 ms
# with eight workers in case `respawn_each_epoch`. Spawned ones take about 3 s.
STARTUP_MS = {"fork": 150.0, "spawn": 3000.0, "forkserver": 3000.0}
# Start-up under this share of the epoch is not worth keeping workers for.
MIN_STARTUP_SHARE = 0.05

_WORKER_KINDS = (
    Kind.LOADER_IN_MAIN_PROCESS,
    Kind.TOO_FEW_WORKERS,
    Kind.STORAGE_BOUND_WORKERS,
    Kind.LATENCY_BOUND_STORAGE,
)
# What a loop that makes its own batches suffers from, and need not in a thread.
_LOOP_KINDS = (
    Kind.LOADER_IN_MAIN_PROCESS,
    Kind.OVERHEAD_BOUND_LOADER,
    Kind.COLLATE_BOUND,
    Kind.DATASET_FORMAT_BOUND,
    Kind.SAMPLER_BOUND,
    Kind.MANY_SMALL_FILES,
)
# Loading in threads is tried with one for each CPU.
MIN_THREADS, MAX_THREADS = 2, 16
# What threads may undo: the loop making its batches, and the price of processes.
_IN_THREADS = (
    Kind.LOADER_IN_MAIN_PROCESS,
    Kind.OVERHEAD_BOUND_LOADER,
    Kind.BATCH_PAGE_FAULTS,
)
# Of making a batch, what must be seen to leave the interpreter lock before a loop's own samples are
# tried in threads: a trial takes seconds of the budget.
MIN_UNLOCKED_SHARE = 0.3
_IN_THREAD_CAUTION = (
    "The dataset is then called by several threads at once: what it changes of itself must bear "
    "that."
)
_THREADS_DRAW = (
    " Random transforms draw from the training process's own generators, in no fixed order: the "
    "same distribution, not repeatable by a seed."
)
_UNCOLLECTED = (
    "Objects that refer to each other in a circle stay in memory until gc.collect() is called: "
    "watch the memory over an epoch."
)
_SELDOM_COLLECTED = (
    "Objects that refer to each other in a circle stay longer in the workers' memory: watch it "
    "over an epoch."
)
_OTHER_SUMS = (
    "With another number of threads, sums are made in another order: results may differ in their "
    "last bits. On a machine with more CPUs free, more threads may be right again."
)


def more_workers(case: Case) -> list[Candidate]:
    """The worker count the arithmetic asks for, capped by the machine, and its neighbours.

    Where memory has room for fewer than the CPUs feed, the count that would not fit comes last: it
    is refused, with the reason.
    """
    facts = case.facts
    kinds = tuple(k for k in _WORKER_KINDS if k in case.found)
    needed, limit = workers_needed(facts), worker_limit(facts)
    if not kinds or needed is None:
        return []
    cap = limit if limit is not None else needed
    target = min(needed, cap)
    # Batches vary: half as many again absorb what the mean hides. Fewer show whether less will do.
    counts = {target, min(cap, math.ceil(1.5 * target)), max(1, target // 2)}
    out = []
    for count in sorted(c for c in counts if c > (case.loader.settings.num_workers or 0)):
        predicted_ms, how = pool_ms(facts, count, at_best=True)
        changes: dict[str, Value] = {"num_workers": count}
        if _startup_matters(case, predicted_ms) and why_not_kept(facts) is None:
            changes["persistent_workers"] = True
        if limit is not None and needed > limit:
            has = "feeds about" if limit == fed_workers(facts) else "has memory for"
            how += f"; {needed} workers would keep up, this machine {has} {limit}"
        out += case.propose(
            *kinds,
            changes=changes,
            predicted_ms=predicted_ms,
            how=how,
            caution=_in_all(case, count),
        )
    fed = min(needed, fed_workers(facts) or needed)
    if cap < fed:
        predicted_ms, how = pool_ms(facts, fed)
        out += case.propose(
            *kinds, changes={"num_workers": fed}, predicted_ms=predicted_ms, how=how
        )
    return out


def _in_all(case: Case, count: int) -> str | None:
    """How many workers that is on the machine, where several ranks start as many each."""
    machine = case.facts.machine
    if machine is None or machine.ranks_here == 1:
        return None
    many = fmt.count(count, "worker")
    return (
        f"{many} per rank, {count * machine.ranks_here} in all: {machine.ranks_here} ranks share "
        "this machine's CPUs and memory."
    )


def kept_workers(case: Case) -> list[Candidate]:
    """Workers that are not started again in each epoch."""
    per_step, step_ms = startup_ms_per_step(case.facts), case.facts.step_ms
    cost = input_cost(case.facts)
    if Kind.WORKER_STARTUP_EACH_EPOCH not in case.found or per_step is None or step_ms is None:
        return []
    if cost is not None:
        per_step = cost.part(per_step).ms  # what is hidden saves nothing
    return case.propose(
        Kind.WORKER_STARTUP_EACH_EPOCH,
        changes={"persistent_workers": True},
        predicted_ms=least_without_ms(case.facts, per_step),
        how=f"the step less {fmt.ms(per_step)} of worker start-up spread over the epoch",
    )


def no_workers(case: Case) -> list[Candidate]:
    """No workers, where making batches costs less than starting workers, or receiving from them."""
    out = []
    for kind in (Kind.WORKER_STARTUP_EACH_EPOCH, Kind.OVERHEAD_BOUND_LOADER):
        finding = case.found.get(kind)
        for said in finding.predictions if finding is not None else ():
            if said.setting == "num_workers" and said.value == 0:
                out += case.propose(
                    kind,
                    changes={"num_workers": 0},
                    predicted_ms=_at_this_pace(case, said.step_ms),
                    how="the rest of the step and the making of its batches, in one process",
                )
    return out


def _at_this_pace(case: Case, step_ms: float | None) -> float | None:
    return step_ms * pace_kept(case.facts) if step_ms is not None else None


def other_order(case: Case) -> list[Candidate]:
    """Batches handed out as they come, or a longer queue, against waiting behind a slow one."""
    facts, have = case.facts, case.loader.settings
    if Kind.HEAD_OF_LINE_STALL not in case.found or not have.num_workers:
        return []
    predicted_ms, how = pool_ms(facts, have.num_workers, in_order=False, at_best=True)
    stall = stall_cost(facts)
    if predicted_ms is not None and facts.step_ms is not None and stall is not None:
        # Workers started again, an uneven pace: another order saves none of those.
        left_ms = least_without_ms(facts, stall.ms)
        if left_ms is not None and left_ms > predicted_ms:
            predicted_ms = left_ms
            how = f"the step less the {fmt.ms(stall.ms)} behind slow batches"
    return [
        *case.propose(
            Kind.HEAD_OF_LINE_STALL,
            changes={"in_order": False},
            predicted_ms=predicted_ms,
            how=how,
            caution="Batches arrive in another order each run: results are no longer reproducible "
            "bit for bit, and a sampler's order (curriculum, buckets) is lost.",
        ),
        *case.propose(
            Kind.HEAD_OF_LINE_STALL,
            changes={"prefetch_factor": 2 * (have.prefetch_factor or DEFAULT_PREFETCH_FACTOR)},
            predicted_ms=None,
            how="a longer queue absorbs slow batches; how far, only a trial tells",
            caution="Holds twice as many batches in memory.",
        ),
    ]


def background_thread(case: Case) -> list[Candidate]:
    """A background thread around a loader of the loop's own process, or none where it burns.

    It overlaps what waits or releases the interpreter lock (decoding in C does, Python does not).
    Which of it a batch is made of shows only in a trial; what waits is known to overlap.
    """
    facts, have = case.facts, case.loader.settings
    on, fights = have.background in ("host", "device"), Kind.GIL_CONTENTION in case.found
    if fights and on:
        n = min(workers_needed(facts) or 1, worker_limit(facts) or 1)
        predicted_ms, how = pool_ms(facts, n, at_best=True)
        changes: dict[str, Value] = {"background": "off", "num_workers": n}
        return case.propose(
            Kind.GIL_CONTENTION, changes=changes, predicted_ms=predicted_ms, how=how
        )
    if fights and have.pin_memory and have.num_workers:
        how = "no thread pins then; what the copies take instead, only a trial tells"
        changes = {"pin_memory": False}
        return case.propose(Kind.GIL_CONTENTION, changes=changes, predicted_ms=None, how=how)
    answered = tuple(kind for kind in _LOOP_KINDS if kind in case.found)
    if not answered or on or have.num_workers or case.loader.library is not None:
        return []
    share = facts.workers.cpu_share if facts.workers is not None else None
    if share is not None and share < MAX_WAITING_CPU_SHARE:
        predicted_ms, how = pool_ms(facts, 1, at_best=True)
    else:
        predicted_ms = None
        how = "it overlaps what releases the interpreter lock; how much that is, only a trial tells"
    return case.propose(
        *answered, changes={"background": "host"}, predicted_ms=predicted_ms, how=how
    )


def fewer_workers(case: Case) -> list[Candidate]:
    """Fewer workers where more only compete, idle, or cost more than they make."""
    n = num_workers(case.facts) or 0
    machine, workers = case.facts.machine, case.facts.workers
    wanted: list[tuple[Kind, int, str]] = []
    if Kind.CPU_SATURATED_WORKERS in case.found and machine is not None:
        cpus = max(1, math.floor(machine.cpus_per_rank))
        wanted.append((Kind.CPU_SATURATED_WORKERS, cpus, "as many workers as usable CPUs"))
    if Kind.OVERHEAD_BOUND_LOADER in case.found:
        wanted.append((Kind.OVERHEAD_BOUND_LOADER, 0, "no queue to pay for"))
    mapped = case.found.get(Kind.BATCH_PAGE_FAULTS)
    if mapped is not None and any(p.setting == "num_workers" for p in mapped.predictions):
        why = "a batch made by the loop itself lies in memory that it has mapped"
        wanted.append((Kind.BATCH_PAGE_FAULTS, 0, why))
    if Kind.IDLE_WORKERS in case.found and workers is not None:
        busy = workers.n_workers - workers.n_idle_workers
        wanted.append((Kind.IDLE_WORKERS, max(1, busy), "the idle workers made nothing"))
    if Kind.LOOP_SLOWED_BY_WORKERS in case.found and (few := fewer_that_keep_up(case.facts)):
        why = "they make a batch in a step's time, and fewer run beside the loop at once"
        wanted.append((Kind.LOOP_SLOWED_BY_WORKERS, few, why))
    out = []
    for kind, count, why in wanted:
        if count < n:
            out += case.propose(
                kind,
                changes={"num_workers": count},
                predicted_ms=None,
                how=f"{why}; what that gains, only a trial tells",
            )
    return out


def all_cpus(case: Case) -> list[Candidate]:
    """Workers that share a core, on all CPUs again."""
    step_ms, explained_ms = case.facts.step_ms, case.explained_ms(Kind.WORKERS_SHARE_A_CORE)
    if step_ms is None or explained_ms is None or not case.loader.settings.num_workers:
        return []
    return case.propose(
        Kind.WORKERS_SHARE_A_CORE,
        changes={"worker_cpus": "all"},
        predicted_ms=max(
            least_without_ms(case.facts, explained_ms) or 0.0,
            (cpu_bound_ms(case.facts) or 0.0) * pace_kept(case.facts),
        ),
        how=f"the step less the {fmt.ms(explained_ms)} that sharing a core explains, at best",
    )


def loading_threads(case: Case) -> list[Candidate]:
    """Threads of the training process in place of workers, or of the loop itself."""
    loader, machine = case.loader, case.facts.machine
    kinds = [kind for kind in _IN_THREADS if _threads_may_help(case, kind)]
    if not kinds or loader.kind != "map" or loader.batch_size is None or machine is None:
        return []
    n = max(MIN_THREADS, min(MAX_THREADS, math.floor(machine.cpus_per_rank)))
    changes: dict[str, Value] = {"threads": n, "num_workers": 0}
    if loader.settings.background not in (None, "off"):
        changes["background"] = "off"
    drawn = loader.randomness or loader.augmentations
    return case.propose(
        *kinds,
        changes=changes,
        predicted_ms=None,
        how="what the interpreter lock leaves to threads next to the loop, only a trial tells",
        caution=_IN_THREAD_CAUTION + (_THREADS_DRAW if drawn else ""),
    )


def _threads_may_help(case: Case, kind: Kind) -> bool:
    finding, workers = case.found.get(kind), case.facts.workers
    if finding is None or case.explained_ms(kind) is None:
        return False
    if kind is Kind.OVERHEAD_BOUND_LOADER:  # handing over, not Python's own time
        return finding.evidence.get("receive_ms_per_batch") is not None
    if kind is not Kind.LOADER_IN_MAIN_PROCESS:
        return True
    share = workers.cpu_share if workers is not None else None
    waits = share is not None and share < MAX_WAITING_CPU_SHARE
    return waits or decoding_share(case.facts) >= MIN_UNLOCKED_SHARE


def fewer_threads(case: Case) -> list[Candidate]:
    """Where threads were seen to fight; without an accelerator also where several are at work.

    Threads that wait for one another by spinning look like threads at work, so only a trial tells:
    a loop that rightly uses all its CPUs is tried too, and then nothing is said.
    """
    facts, finding = case.facts, case.found.get(Kind.THREAD_OVERSUBSCRIPTION)
    fights = finding is not None and finding.evidence.get("threads_of") == "loop"
    if not fights and (has_accelerator(facts) or not threads_at_work(facts)):
        return []
    predicted_ms, how = None, "nothing: only a trial can tell"
    if fights and finding is not None and finding.share is not None and facts.step_ms is not None:
        predicted_ms = facts.step_ms * (1.0 - finding.share)
        how = f"the {fmt.share(finding.share)} of its time that threads wait for a CPU"
    out = []
    for n in fewer(facts):
        out += case.propose(
            Kind.THREAD_OVERSUBSCRIPTION,
            changes={"num_threads": n},
            predicted_ms=predicted_ms,
            how=how,
            caution=_OTHER_SUMS,
        )
    return out


def collector(case: Case) -> list[Candidate]:
    """Python's garbage collector kept from the steps, where it was seen to stop the loop."""
    finding = case.found.get(Kind.GC_PAUSES)
    step, step_ms = case.facts.step, case.facts.step_ms
    seen = step.collecting if step is not None else None
    if finding is None or finding.share is None or seen is None or step_ms is None:
        return []
    if asked_for(seen):
        return []  # the line that asks is to change
    out = []
    if mostly_full(seen):
        out += case.propose(
            Kind.GC_PAUSES,
            changes={"gc": "frozen"},
            predicted_ms=None,
            how="what lives before the freeze is looked at no more; what that is, a trial tells",
        )
    return out + case.propose(
        Kind.GC_PAUSES,
        changes={"gc": "manual"},
        predicted_ms=_at_this_pace(case, (1.0 - finding.share) * step_ms),
        how=f"the step less the {fmt.share(finding.share)} of it in collections",
        caution=_UNCOLLECTED,
    )


def collector_in_workers(case: Case) -> list[Candidate]:
    """Workers whose garbage collector leaves the dataset alone, or seldom starts at all."""
    step_ms, explained_ms = case.facts.step_ms, case.explained_ms(Kind.GC_IN_WORKERS)
    if step_ms is None or explained_ms is None or not case.loader.settings.num_workers:
        return []
    predicted_ms = _at_this_pace(case, least_without_ms(case.facts, explained_ms))
    out = []
    for how, caution in (("frozen", None), ("rarely", _SELDOM_COLLECTED)):
        out += case.propose(
            Kind.GC_IN_WORKERS,
            changes={"worker_gc": how},
            predicted_ms=predicted_ms,
            how=f"the step less the {fmt.ms(explained_ms)} that collections in workers explain, at "
            "best",
            caution=caution,
        )
    return out


def _startup_matters(case: Case, predicted_ms: float | None) -> bool:
    steps, method = case.loader.steps_per_epoch, case.loader.settings.start_method
    machine, step = case.facts.machine, case.facts.step
    if not steps or predicted_ms is None or (step is not None and step.changed is not None):
        return False  # kept workers would miss what the loop changes of the dataset
    if method is None and machine is not None and machine.start_method in STARTUP_MS:
        startup_ms = STARTUP_MS[machine.start_method]
    else:
        startup_ms = STARTUP_MS[method or "fork"]
    return startup_ms >= MIN_STARTUP_SHARE * (steps * predicted_ms + startup_ms)
