"""Every rule in plain sight, and what is left of their findings once they have been compared."""

from __future__ import annotations

from dataclasses import dataclass, replace

from loaderdoctor.facts import Facts
from loaderdoctor.facts.step import NO_SHARES
from loaderdoctor.findings import Finding, Kind, Rule, Severity, with_aspects
from loaderdoctor.findings.exposure import severity
from loaderdoctor.findings.rules import (
    batch_making,
    compute_hints,
    contention,
    copies,
    host,
    memory,
    outside,
    saturated,
    slow_storage,
    slowed_compute,
    starved,
    storage,
    streams,
    threads,
)

RULES: tuple[Rule, ...] = (
    starved.main_guard_missing,
    starved.loader_in_main_process,
    starved.too_few_workers,
    saturated.cpu_saturated_workers,
    saturated.storage_bound_workers,
    saturated.overhead_bound_loader,
    batch_making.worker_startup_each_epoch,
    batch_making.iterator_recreated,
    saturated.head_of_line_stall,
    streams.sampler_bound,
    batch_making.collate_bound,
    batch_making.dataset_format_bound,
    contention.workers_share_a_core,
    threads.thread_oversubscription,
    starved.idle_workers,
    starved.workers_just_keep_up,
    contention.gil_contention,
    threads.loop_slowed_by_workers,
    contention.batch_page_faults,
    contention.allocator_page_faults,
    contention.pin_thread_bound,
    copies.pin_ineffective,
    copies.pageable_copy,
    copies.blocking_copy,
    copies.copy_not_overlapped,
    copies.many_small_copies,
    copies.wide_dtype_copy,
    host.sync_every_step,
    host.launch_bound,
    host.work_between_steps,
    outside.time_outside_steps,
    outside.trains_elsewhere,
    storage.cold_storage,
    storage.many_small_files,
    slow_storage.latency_bound_storage,
    slow_storage.bandwidth_bound_storage,
    slow_storage.many_small_reads,
    storage.retried_requests,
    streams.samples_repeated,
    streams.uneven_shards,
    streams.shuffle_collapsed,
    storage.memory_short,
    memory.workers_copy_dataset,
    memory.worker_memory_grows,
    slowed_compute.slow_rank,
    outside.pass_before_training,
    slowed_compute.recompilation,
    slowed_compute.autotuning_each_shape,
    slowed_compute.compute_depends_on_new_shapes,
    memory.gc_pauses,
    memory.gc_in_workers,
    slowed_compute.gpu_throttled,
    compute_hints.subnormal_numbers,
    compute_hints.data_parallel,
    compute_hints.tf32_off,
    compute_hints.grad_not_set_to_none,
    compute_hints.cudnn_benchmark_off,
    compute_hints.bias_before_batchnorm,
    compute_hints.padding_waste,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrule:
    """Where `winner` is found, `losers` would contradict or repeat it, for this reason."""

    winner: Kind
    losers: tuple[Kind, ...]
    reason: str
    # The winner must explain at least this part of the loser's share.
    min_part: float = 0.0
    low_too: bool = True  # whether a winner that is only a hint overrules


OVERRULES: tuple[Overrule, ...] = (
    Overrule(
        winner=Kind.ITERATOR_RECREATED,
        losers=(
            Kind.LOADER_IN_MAIN_PROCESS,
            Kind.TOO_FEW_WORKERS,
            Kind.CPU_SATURATED_WORKERS,
            Kind.STORAGE_BOUND_WORKERS,
            Kind.OVERHEAD_BOUND_LOADER,
            Kind.WORKER_STARTUP_EACH_EPOCH,
            Kind.HEAD_OF_LINE_STALL,
            Kind.IDLE_WORKERS,
            Kind.GIL_CONTENTION,
            Kind.LOOP_SLOWED_BY_WORKERS,
            Kind.BATCH_PAGE_FAULTS,
            Kind.SAMPLER_BOUND,
        ),
        reason="with an iterator per step no queue ever fills, so the pool cannot be judged",
    ),
    Overrule(
        winner=Kind.OVERHEAD_BOUND_LOADER,
        losers=(
            Kind.MAIN_GUARD_MISSING,
            Kind.LOADER_IN_MAIN_PROCESS,
            Kind.TOO_FEW_WORKERS,
            Kind.CPU_SATURATED_WORKERS,
            Kind.COLLATE_BOUND,
            Kind.GIL_CONTENTION,
            Kind.LOOP_SLOWED_BY_WORKERS,
        ),
        reason="these call for workers or blame collating, which is part of the same overhead",
    ),
    Overrule(
        winner=Kind.OVERHEAD_BOUND_LOADER,
        losers=(Kind.THREAD_OVERSUBSCRIPTION,),
        reason="workers would be fewer, or none; the loop's own threads may cost more than that",
        min_part=1.0,
    ),
    Overrule(
        winner=Kind.WORKERS_SHARE_A_CORE,
        losers=(
            Kind.CPU_SATURATED_WORKERS,
            Kind.TOO_FEW_WORKERS,
            Kind.STORAGE_BOUND_WORKERS,
            Kind.THREAD_OVERSUBSCRIPTION,
        ),
        reason="workers waiting for one core look short of CPU, of other workers or of data",
    ),
    Overrule(
        winner=Kind.THREAD_OVERSUBSCRIPTION,
        losers=(
            Kind.CPU_SATURATED_WORKERS,
            Kind.GIL_CONTENTION,
            Kind.LOOP_SLOWED_BY_WORKERS,
        ),
        reason="the CPU is full of threads that compete, which is the cause worth naming",
    ),
    Overrule(
        winner=Kind.CPU_SATURATED_WORKERS,
        losers=(Kind.TOO_FEW_WORKERS,),
        reason="no CPU is left for more workers",
    ),
    Overrule(
        winner=Kind.IDLE_WORKERS,
        losers=(Kind.TOO_FEW_WORKERS,),
        reason="more workers would idle too",
    ),
    Overrule(
        winner=Kind.IDLE_WORKERS,
        losers=(Kind.UNEVEN_SHARDS,),
        reason="workers without any shard are the extreme of it, and said as such",
    ),
    Overrule(
        winner=Kind.UNEVEN_SHARDS,
        losers=(Kind.TOO_FEW_WORKERS,),
        reason="more workers would share the same shards",
        min_part=0.5,
        low_too=False,
    ),
    Overrule(
        winner=Kind.PIN_THREAD_BOUND,
        losers=(Kind.TOO_FEW_WORKERS,),
        reason="batches are ready and wait to be pinned",
    ),
    Overrule(
        winner=Kind.PIN_THREAD_BOUND,
        losers=(Kind.OVERHEAD_BOUND_LOADER,),
        reason="however cheap a sample is, batches wait to be pinned, which slices need as well",
        min_part=0.5,
    ),
    Overrule(
        winner=Kind.SAMPLER_BOUND,
        losers=(Kind.MAIN_GUARD_MISSING, Kind.LOADER_IN_MAIN_PROCESS, Kind.TOO_FEW_WORKERS),
        reason="the sampler stays in the training process whatever the workers do",
        min_part=0.5,
    ),
    Overrule(
        winner=Kind.HEAD_OF_LINE_STALL,
        losers=(Kind.TOO_FEW_WORKERS,),
        reason="ready batches are waiting: the pool is out of order, not too small",
        min_part=2.0,
    ),
    Overrule(
        winner=Kind.PIN_INEFFECTIVE,
        losers=(Kind.PAGEABLE_COPY,),
        reason="it would advise pin_memory=True, which the user has already",
    ),
    Overrule(
        winner=Kind.WORK_BETWEEN_STEPS,
        losers=(Kind.LAUNCH_BOUND,),
        reason="the launches are the smaller part, and the profiler makes them look larger",
        min_part=1.0,
    ),
    Overrule(
        winner=Kind.RECOMPILATION,
        losers=(
            Kind.COMPUTE_DEPENDS_ON_NEW_SHAPES,
            Kind.WORK_BETWEEN_STEPS,
            Kind.LAUNCH_BOUND,
            Kind.ALLOCATOR_PAGE_FAULTS,
        ),
        reason="compiling is Python between the steps' operators, and allocates",
        min_part=0.5,
    ),
    Overrule(
        winner=Kind.AUTOTUNING_EACH_SHAPE,
        losers=(Kind.COMPUTE_DEPENDS_ON_NEW_SHAPES, Kind.CUDNN_BENCHMARK_OFF),
        reason="the autotuner is what works again for each shape",
    ),
    Overrule(
        winner=Kind.COMPUTE_DEPENDS_ON_NEW_SHAPES,
        losers=(Kind.WORK_BETWEEN_STEPS, Kind.ALLOCATOR_PAGE_FAULTS),
        reason="that work is done for each new shape, which is what to change",
        min_part=0.5,
    ),
    Overrule(
        winner=Kind.LATENCY_BOUND_STORAGE,
        losers=(Kind.STORAGE_BOUND_WORKERS,),
        reason="it says what about the storage is slow",
    ),
    Overrule(
        winner=Kind.BANDWIDTH_BOUND_STORAGE,
        losers=(
            Kind.STORAGE_BOUND_WORKERS,
            Kind.TOO_FEW_WORKERS,
            Kind.LOADER_IN_MAIN_PROCESS,
            Kind.MANY_SMALL_FILES,
        ),
        reason="more readers were seen to get no more, so their number and requests are no cause",
    ),
    Overrule(
        winner=Kind.MANY_SMALL_READS,
        losers=(Kind.STORAGE_BOUND_WORKERS,),
        reason="it says what about the storage is slow",
    ),
    Overrule(
        winner=Kind.RETRIED_REQUESTS,
        losers=(
            Kind.STORAGE_BOUND_WORKERS,
            Kind.LATENCY_BOUND_STORAGE,
            Kind.MANY_SMALL_READS,
            Kind.MANY_SMALL_FILES,
            Kind.COLD_STORAGE,
        ),
        reason="what is waited for is a pause of the client's, not the storage",
        min_part=0.5,
    ),
    Overrule(
        winner=Kind.GC_PAUSES,
        losers=(Kind.WORK_BETWEEN_STEPS, Kind.LAUNCH_BOUND),
        reason="collections come within any line that makes objects, or between two launches",
        min_part=0.5,
    ),
    Overrule(
        winner=Kind.GC_IN_WORKERS,
        losers=(Kind.COLD_STORAGE,),
        reason="a worker's first full collections come with samples that it touches first",
        min_part=0.5,
    ),
    Overrule(
        winner=Kind.MANY_SMALL_COPIES,
        losers=(Kind.COPY_NOT_OVERLAPPED,),
        reason="what such copies cost is the calls, which a side stream pays as well",
        min_part=1.0,
    ),
)

_ORDER = {
    Severity.HIGH: 0,
    Severity.MODERATE: 1,
    Severity.UNCERTAIN: 2,
    Severity.LOW: 3,
    Severity.NONE: 4,
}


def find(facts: Facts) -> tuple[Finding, ...]:
    """The findings of every rule, worst first, without those that a better one overrules.

    What is the same time seen from another side follows its cause.
    """
    trace = facts.trace
    if trace is not None and (trace.wall_ms <= 0 or trace.shares == NO_SHARES):
        facts = replace(facts, trace=None)  # without length, or a part that is known, it shows none
    if not facts.has_steps:
        return ()  # every rule speaks of what a step costs
    found = [of_whole_wall(x, facts) for rule in RULES if (x := rule(facts)) is not None]
    kept = without_overruled(found)
    if facts.only_reads:  # nothing that is known of waits for these batches
        kept = [replace(x, severity=Severity.LOW) for x in kept]
    ordered = sorted(kept, key=lambda x: (_ORDER[x.severity], -(x.share or 0.0)))
    return with_aspects(ordered, facts)


_OF_ALL_TIME = frozenset({Kind.TIME_OUTSIDE_STEPS, Kind.TRAINS_ELSEWHERE})


def of_whole_wall(finding: Finding, facts: Facts) -> Finding:
    """No graver than its part of all the run's time, of which the step may be a small one."""
    wall = facts.wall
    if wall is None or finding.share is None or finding.kind in _OF_ALL_TIME:
        return finding
    if wall.total_ms <= wall.step_ms or finding.severity in (Severity.NONE, Severity.LOW):
        return finding
    graver = severity(finding.share * wall.step_ms / wall.total_ms)
    if _ORDER[graver] <= _ORDER[finding.severity]:
        return finding
    return replace(finding, severity=graver)


def without_overruled(found: list[Finding]) -> list[Finding]:
    """Findings that no other one contradicts or repeats; an overruled one still overrules none."""
    by_kind = {x.kind: x for x in found}
    gone: set[Kind] = set()
    for rule in OVERRULES:
        winner = by_kind.get(rule.winner)
        if winner is None or rule.winner in gone:
            continue
        if winner.severity is Severity.LOW and not rule.low_too:
            continue
        for kind in rule.losers:
            loser = by_kind.get(kind)
            if loser is not None and (winner.share or 0.0) >= rule.min_part * (loser.share or 0.0):
                gone.add(kind)
    return [x for x in found if x.kind not in gone]
