"""Candidates that change who makes the batches: more, fewer, kept workers, another order."""

from __future__ import annotations

import math
from collections.abc import Mapping

from loaderdoctor import format as fmt
from loaderdoctor.advice.plan import Candidate
from loaderdoctor.advice.proposal import proposal
from loaderdoctor.facts.whole import Facts
from loaderdoctor.findings.capacity import (
    MAX_WAITING_CPU_SHARE,
    pool_ms,
    stall_cost,
    worker_limit,
    workers_needed,
)
from loaderdoctor.findings.exposure import input_cost
from loaderdoctor.findings.input_parts import startup_ms_per_step
from loaderdoctor.findings.model import Finding, Kind
from loaderdoctor.instrument.wire.records import LoaderRecord
from loaderdoctor.settings import DEFAULT_PREFETCH_FACTOR, Value

# Starting a pool of forked workers: first waits of 54-70 ms were measured on 2 cores, 116-161 ms
# with eight workers in case `respawn_each_epoch`. Spawned ones take about 3 s.
STARTUP_MS = {"fork": 150.0, "spawn": 3000.0, "forkserver": 3000.0}
# Start-up under this share of the epoch is not worth keeping workers for.
MIN_STARTUP_SHARE = 0.05

_WORKER_KINDS = (Kind.LOADER_IN_MAIN_PROCESS, Kind.TOO_FEW_WORKERS, Kind.STORAGE_BOUND_WORKERS)
# What a loop that makes its own batches suffers from, and need not in a thread.
_LOOP_KINDS = (
    Kind.LOADER_IN_MAIN_PROCESS,
    Kind.OVERHEAD_BOUND_LOADER,
    Kind.COLLATE_BOUND,
    Kind.DATASET_FORMAT_BOUND,
    Kind.SAMPLER_BOUND,
    Kind.MANY_SMALL_FILES,
)
Found = Mapping[Kind, Finding]


def more_workers(facts: Facts, loader: LoaderRecord, found: Found) -> list[Candidate]:
    """The worker count the arithmetic asks for, capped by the machine, and its neighbours."""
    kinds = tuple(k for k in _WORKER_KINDS if k in found)
    needed, limit = workers_needed(facts), worker_limit(facts)
    if not kinds or needed is None:
        return []
    n = loader.settings.num_workers or 0
    cap = limit if limit is not None else needed
    target = min(needed, cap)
    # Batches vary: half as many again absorb what the mean hides. Fewer show whether less will do.
    counts = {target, min(cap, math.ceil(1.5 * target)), max(1, target // 2)}
    out = []
    for count in sorted(c for c in counts if c > n):
        predicted, how = pool_ms(facts, count)
        more: dict[str, Value] = {"num_workers": count}
        if _startup_matters(facts, loader, predicted):
            more["persistent_workers"] = True
        if limit is not None and needed > limit:
            how += f"; {needed} workers would keep up, this machine feeds about {limit}"
        made = proposal(loader, facts, kinds, more, predicted, how, None)
        if made is not None:
            out.append(made)
    return out


def kept_workers(facts: Facts, loader: LoaderRecord, found: Found) -> list[Candidate]:
    per_step, step_ms, cost = startup_ms_per_step(facts), facts.step_ms, input_cost(facts)
    if Kind.WORKER_STARTUP_EACH_EPOCH not in found or per_step is None or step_ms is None:
        return []
    if cost is not None:
        per_step = cost.part(per_step).ms  # what is hidden saves nothing
    made = proposal(
        loader,
        facts,
        (Kind.WORKER_STARTUP_EACH_EPOCH,),
        {"persistent_workers": True},
        max(0.0, step_ms - per_step),
        f"the step less {fmt.ms(per_step)} of worker start-up spread over the epoch",
        "Workers keep their copy of the dataset: changes the script makes to it between epochs no "
        "longer reach them.",
    )
    return [made] if made is not None else []


def other_order(facts: Facts, loader: LoaderRecord, found: Found) -> list[Candidate]:
    if Kind.HEAD_OF_LINE_STALL not in found or not loader.settings.num_workers:
        return []
    predicted, how = pool_ms(facts, loader.settings.num_workers, in_order=False)
    step_ms, stall = facts.step_ms, stall_cost(facts)
    if predicted is not None and step_ms is not None and stall is not None:
        # Workers started anew, an uneven pace: another order saves none of those.
        left_ms = step_ms - stall.ms
        if left_ms > predicted:
            predicted, how = left_ms, f"the step less the {fmt.ms(stall.ms)} behind slow batches"
    kinds = (Kind.HEAD_OF_LINE_STALL,)
    prefetch = 2 * (loader.settings.prefetch_factor or DEFAULT_PREFETCH_FACTOR)
    made = (
        proposal(
            loader,
            facts,
            kinds,
            {"in_order": False},
            predicted,
            how,
            "Batches arrive in another order each run: results are no longer reproducible bit for "
            "bit, and a sampler's order (curriculum, buckets) is lost.",
        ),
        proposal(
            loader,
            facts,
            kinds,
            {"prefetch_factor": prefetch},
            None,
            "a longer queue absorbs slow batches; how far, only a trial tells",
            "Holds twice as many batches in memory.",
        ),
    )
    return [c for c in made if c is not None]


def background_thread(facts: Facts, loader: LoaderRecord, found: Found) -> list[Candidate]:
    """A background thread around a loader of the loop's own process, or none where it burns.

    It overlaps what waits or releases the interpreter lock (decoding in C does, Python does not).
    Which of it a batch is made of shows only in a trial; what waits is known to overlap.
    """
    share = facts.workers.cpu_share if facts.workers is not None else None
    on = loader.settings.background in ("host", "device")
    answered = tuple(kind for kind in _LOOP_KINDS if kind in found)
    predicted: float | None = None
    if Kind.GIL_CONTENTION in found and on:
        n = min(workers_needed(facts) or 1, worker_limit(facts) or 1)
        predicted, how = pool_ms(facts, n)
        answered = (Kind.GIL_CONTENTION,)
        changes: dict[str, Value] = {"background": "off", "num_workers": n}
    elif answered and not on and not loader.settings.num_workers and loader.library is None:
        changes = {"background": "host"}
        how = "it overlaps what releases the interpreter lock; how much that is, only a trial tells"
        if share is not None and share < MAX_WAITING_CPU_SHARE:
            predicted, how = pool_ms(facts, 1)
    else:
        return []
    made = proposal(loader, facts, answered, changes, predicted, how, None)
    return [made] if made is not None else []


def fewer_workers(facts: Facts, loader: LoaderRecord, found: Found) -> list[Candidate]:
    """Fewer workers where more only compete, idle, or cost more than they make."""
    n, machine = loader.settings.num_workers or 0, facts.machine
    wanted: list[tuple[Kind, int, str]] = []
    if Kind.CPU_SATURATED_WORKERS in found and machine is not None:
        cpus = max(1, math.floor(machine.usable_cpus))
        wanted.append((Kind.CPU_SATURATED_WORKERS, cpus, "as many workers as usable CPUs"))
    if Kind.OVERHEAD_BOUND_LOADER in found:
        wanted.append((Kind.OVERHEAD_BOUND_LOADER, 0, "no queue to pay for"))
    mapped = found.get(Kind.BATCH_PAGE_FAULTS)
    if mapped is not None and any(p.setting == "num_workers" for p in mapped.predictions):
        why = "a batch made by the loop itself lies in memory that it has mapped"
        wanted.append((Kind.BATCH_PAGE_FAULTS, 0, why))
    if Kind.IDLE_WORKERS in found and facts.workers is not None:
        busy = facts.workers.n_workers - facts.workers.n_idle_workers
        wanted.append((Kind.IDLE_WORKERS, max(1, busy), "the idle workers made nothing"))
    out = []
    for kind, count, why in wanted:
        if count < n:
            made = proposal(
                loader,
                facts,
                (kind,),
                {"num_workers": count},
                None,
                f"{why}; what that gains, only a trial tells",
                None,
            )
            out += [made] if made is not None else []
    return out


def _startup_matters(facts: Facts, loader: LoaderRecord, predicted_ms: float | None) -> bool:
    steps, method = loader.steps_per_epoch, loader.settings.start_method
    if not steps or predicted_ms is None:
        return False
    if method is None and facts.machine is not None and facts.machine.start_method in STARTUP_MS:
        startup_ms = STARTUP_MS[facts.machine.start_method]
    else:
        startup_ms = STARTUP_MS[method or "fork"]
    return startup_ms >= MIN_STARTUP_SHARE * (steps * predicted_ms + startup_ms)
