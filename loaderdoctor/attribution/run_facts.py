"""What a run counts and logs next to its windows: the whole wall, and what a pool's workers hold.

Of what lies outside the steps, how often it comes is known from all steps of the run, how long it
takes from those that nothing of ours changed. What was seen too rarely to know its period has none.

Looks at workers' memory and the log of what they made tell how much they have and how it grows; the
log alone what a trial's workers got of a storage next to the loop's own. A step that more workers
left as long may be noise; how long each of its hundred batches waited is not. By Little's law the
pool's rate is its busy workers / the time of a batch: where twice as many wait twice as long, they
only share what there is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from loaderdoctor.estimate import mean
from loaderdoctor.facts.host import GrowthFacts, MoreReaders, Readers, WorkerMemoryFacts
from loaderdoctor.facts.loop import OutsideFacts, PoolTrial, StepFacts, WallFacts
from loaderdoctor.facts.step import MODERATE_SHARE
from loaderdoctor.instrument.wire.protocol import WindowDone
from loaderdoctor.instrument.wire.record_file import Outcome
from loaderdoctor.instrument.wire.records import OutsideRecord, WallRecord
from loaderdoctor.instrument.wire.worker_log import Batches, WorkerLog
from loaderdoctor.units import NS_PER_MS, NS_PER_S

# The first of so many also pays for cold caches and the start of a pool that then lives on.
MIN_WITHOUT_FIRST = 3
# Fewer steps with something behind them than this say nothing of what else lies there: the noise
# of a single step may be as large.
MIN_CROSSINGS = 3
MS_PER_S = 1000.0
# The step behind a pass is slower than others, as caches went cold: 36 ms for 16, behind 200 ms.
# What is left of it is other work only if it takes longer than a step, and this part of what is
# known by name there.
MIN_OF_KNOWN = 0.25


def wall_facts(record: WallRecord | None, step: StepFacts | None) -> WallFacts | None:
    """All of the time, spread over the training steps; None without an account or a step."""
    if record is None or step is None:
        return None
    seen = [_part(one, record, step) for one in record.outside if one.n_timed]
    parts = [part for part in seen if part.what != "training"]
    crossing_s = _rest_of_crossing_s(record, step)
    if crossing_s is not None and crossing_s < 0.0:
        parts = _no_more_than_seen(parts, record, crossing_s)
    known = [*parts, *_other(record, step, crossing_s)]
    whole_ms = step.wall_ms.value + sum(p.ms_per_step or 0.0 for p in known)
    # Other work is what is left of two sums: small, it is their noise.
    kept = [
        p for p in known if p.what != "other" or (p.ms_per_step or 0.0) >= MODERATE_SHARE * whole_ms
    ]
    return WallFacts(
        step_ms=step.wall_ms.value,
        outside=tuple(sorted(kept, key=lambda p: -(p.ms_per_step or 0.0))),
        n_steps=record.n_steps,
        elsewhere=tuple(part for part in seen if part.what == "training"),
    )


def _part(one: OutsideRecord, record: WallRecord, step: StepFacts) -> OutsideFacts:
    at_epoch_end = 2 * one.n_at_epoch_end > one.n
    is_pass = one.what == "pass"
    return OutsideFacts(
        what=_what(one) if is_pass else "saving",
        site=one.site,
        seconds=_seconds(one),
        n=one.n,
        every_steps=_every_steps(one, record, step, at_epoch_end=at_epoch_end),
        at_epoch_end=at_epoch_end,
        in_steps=record.in_steps and not at_epoch_end,
        wait_share=one.wait_ns / one.timed_ns if is_pass and one.timed_ns else None,
        n_batches=one.n_batches / one.n_timed if is_pass else None,
        with_grad=is_pass and 2 * one.n_with_grad > one.n_batches,
    )


def _what(one: OutsideRecord) -> Literal["training", "gradients", "validation"]:
    """What passes over a loader are for, by what follows most of their batches."""
    if not one.works:
        return "validation"
    return "training" if one.trains else "gradients"


def _seconds(one: OutsideRecord) -> float:
    """What it takes once."""
    if one.n_timed >= MIN_WITHOUT_FIRST:
        return (one.timed_ns - one.first_ns) / (one.n_timed - 1) / NS_PER_S
    return one.timed_ns / one.n_timed / NS_PER_S


def _every_steps(
    one: OutsideRecord, record: WallRecord, step: StepFacts, *, at_epoch_end: bool
) -> float | None:
    """Training steps from one to the next, on average; None: seen once, at no epoch's end."""
    if at_epoch_end and step.steps_per_epoch and record.n_epochs:
        return step.steps_per_epoch * max(record.n_epochs, one.n_visits) / one.n
    if one.n_visits < 2:
        return step.steps_per_epoch if at_epoch_end else None
    between = (one.last_step - one.first_step) / (one.n_visits - 1)
    return between * one.n_visits / one.n


def _rest_of_crossing_s(record: WallRecord, step: StepFacts) -> float | None:
    """What a crossing holds besides its step, the loader and what is known by name; may be < 0."""
    if record.in_steps or record.n_crossings < MIN_CROSSINGS:
        return None
    rest_ns = record.crossings_ns - record.crossings_loader_ns - record.crossings_known_ns
    return rest_ns / record.n_crossings / NS_PER_S - step.within_epoch_ms.value / MS_PER_S


def _no_more_than_seen(
    parts: list[OutsideFacts], record: WallRecord, crossing_s: float
) -> list[OutsideFacts]:
    """Parts behind a step that leave it less than a step takes: the step's own work is in them.

    So it is where the host waits, at the beginning of a pass, for the accelerator to finish the
    steps before.
    """
    known_s = record.crossings_known_ns / record.n_crossings / NS_PER_S
    scale = max(0.0, 1.0 + crossing_s / known_s) if known_s > 0.0 else 1.0
    return [p if p.at_epoch_end else replace(p, seconds=p.seconds * scale) for p in parts]


def _other(record: WallRecord, step: StepFacts, crossing_s: float | None) -> list[OutsideFacts]:
    """What else lies behind such steps, and between epochs."""
    found = []
    behind = [x for x in record.outside if 2 * x.n_at_epoch_end <= x.n and x.n_visits > 1]
    if crossing_s is not None and behind and _is_work(crossing_s, record, step):
        often = max(behind, key=lambda x: x.n_visits)
        every = (often.last_step - often.first_step) / (often.n_visits - 1)
        found.append(_rest(crossing_s, record.n_crossings, every, at_epoch_end=False))
    if record.n_gaps and step.steps_per_epoch:
        rest_ns = record.gaps_ns - record.gaps_loader_ns - record.gaps_known_ns
        rest_s = rest_ns / record.n_gaps / NS_PER_S
        # A loop that leaves its passes early ends few epochs: what lies between two passes is in
        # its steps then.
        every = max(step.steps_per_epoch, record.n_steps / (record.n_epochs + 1))
        found.append(_rest(rest_s, record.n_gaps, every, at_epoch_end=True))
    return [part for part in found if part.seconds > 0.0]


def _is_work(crossing_s: float, record: WallRecord, step: StepFacts) -> bool:
    known_s = record.crossings_known_ns / record.n_crossings / NS_PER_S
    return crossing_s > max(step.within_epoch_ms.value / MS_PER_S, MIN_OF_KNOWN * known_s)


def _rest(seconds: float, n: int, every: float, *, at_epoch_end: bool) -> OutsideFacts:
    return OutsideFacts(
        what="other",
        site=None,
        seconds=seconds,
        n=n,
        every_steps=every,
        at_epoch_end=at_epoch_end,
    )


# Two looks give a difference, and no pace that could be seen to go on.
MIN_LOOKS = 4
# Of either pool: each mean is over so many whole cycles (a batch of each worker), or none is told.
MIN_CYCLES = 4
# Of either pool's batches, this part is of workers that told how long they queued for a CPU; what
# the others waited may be that queue. One that is killed may not have told it, nor a log cut short.
MIN_TOLD = 0.8

Span = tuple[int, int]


def worker_memory_facts(
    windows: Sequence[WindowDone], log: WorkerLog | None
) -> WorkerMemoryFacts | None:
    """Of the loop's own workers, at the ends of its plain windows; None where none were seen."""
    looks = [w for w in windows if w.pool_memory is not None]
    if not looks:
        return None
    seen = [w.pool_memory for w in looks if w.pool_memory is not None]
    return WorkerMemoryFacts(
        n_workers=seen[-1].n,
        worker_bytes=max(x.largest_bytes for x in seen),
        growth=_growth(looks, log) if log is not None else None,
    )


def _growth(looks: Sequence[WindowDone], log: WorkerLog) -> GrowthFacts | None:
    """Of the workers that were there at the last look, back to the first that all of them saw."""
    by_time = [(w.end_ns, dict(w.pool_memory.by_pid)) for w in looks if w.pool_memory is not None]
    pids = set(by_time[-1][1])
    kept = [(at_ns, sizes) for at_ns, sizes in by_time if pids <= set(sizes)]
    if len(kept) < MIN_LOOKS:
        return None
    batches = log.batches.where(np.isin(log.batches.pid, sorted(pids)))
    at = np.array([at_ns for at_ns, _ in kept])
    size = np.array([sum(sizes[pid] for pid in pids) / len(pids) for _, sizes in kept])
    ends, counts = batches.end_ns, np.cumsum(batches.n_samples[np.argsort(batches.end_ns)])
    made = np.append(0, counts)[np.searchsorted(np.sort(ends), at, side="right")] / len(pids)
    n_samples = float(made[-1] - made[0])
    grew = float(size[-1] - size[0])
    if n_samples <= 0:
        return None
    middle = float(np.interp((made[0] + made[-1]) / 2, made, size))
    return GrowthFacts(
        n_workers=len(pids),
        first_bytes=float(size[0]),
        last_bytes=float(size[-1]),
        n_samples=n_samples,
        took_s=float(at[-1] - at[0]) / NS_PER_S,
        late_part=(float(size[-1]) - middle) / grew if grew > 0 else 0.0,
        grown=_grown(log, pids),
        heap_freed_bytes=_heap_freed(log, pids),
    )


def _grown(log: WorkerLog, pids: set[int]) -> tuple[tuple[str, int, int], ...]:
    """Containers that grew in all of these workers: entries of the one that has most."""
    processes = [p for p in log.processes if p.pid in pids]
    if not processes:
        return ()
    names = set.intersection(*({name for name, _, _ in p.grown} for p in processes))
    most = max(processes, key=lambda p: sum(b - a for _, a, b in p.grown))
    return tuple(x for x in most.grown if x[0] in names)


def _heap_freed(log: WorkerLog, pids: set[int]) -> float | None:
    """Mean of the workers that told it."""
    told = [p.heap_freed_bytes for p in log.processes if p.pid in pids]
    known = [n for n in told if n is not None]
    return sum(known) / len(known) if known else None


def with_readers(
    trials: Sequence[PoolTrial], log: WorkerLog | None, loader: str | None, plain: Sequence[Span]
) -> tuple[PoolTrial, ...]:
    """Each trial with what its workers got, next to those of `loader` in `plain` windows.

    Unchanged where the records do not tell. All times in are CLOCK_MONOTONIC nanoseconds.
    """
    if log is None or not trials:
        return tuple(trials)
    own = [i for i in log.iterators if i.loader == loader and loader is not None]
    datasets = {i.dataset for i in own}
    few = _readers(log, {i.serial for i in own}, plain)
    if few is None:
        return tuple(trials)
    found = []
    for trial in trials:
        serials = {
            i.serial
            for i in log.iterators
            if i.loader is None and i.dataset in datasets and i.num_workers == trial.num_workers
        }
        many = _readers(log, serials, trial.spans_ns)
        readers = MoreReaders(few=few, many=many) if many is not None else None
        found.append(replace(trial, readers=readers))
    return tuple(found)


def _readers(log: WorkerLog, serials: Collection[int], spans: Sequence[Span]) -> Readers | None:
    """The workers of these iterators in these windows; None where too little is told of them."""
    total_ns = sum(end - start for start, end in spans)
    batches = log.batches
    mine = (batches.outcome == Outcome.OK) & np.isin(batches.serial, sorted(serials))
    mine &= batches.worker >= 0
    n_workers = max((i.num_workers for i in log.iterators if i.serial in serials), default=0)
    if not n_workers or total_ns <= 0:
        return None
    cycles: list[float] = []
    making_ns = n_made = n_told = 0
    queued = {
        p.pid: p.run_wait_share
        for p in log.processes
        if p.role == "worker" and p.run_wait_share is not None
    }
    for start, end in spans:
        made = batches.where(mine & (batches.end_ns > start) & (batches.end_ns <= end))
        making_ns += int((made.end_ns - made.begin_ns).sum())
        n_made += len(made)
        waits = _wait_ms(made.where(np.isin(made.pid, list(queued))), queued)
        n_told += len(waits)
        whole = len(waits) - len(waits) % n_workers
        cycles += waits[:whole].reshape(-1, n_workers).mean(axis=1).tolist()
    if n_told < MIN_TOLD * n_made:
        return None
    if len(cycles) < MIN_CYCLES:
        return None
    return Readers(
        busy=making_ns / total_ns,
        wait_ms=mean(cycles),
        batches_per_s=n_made / total_ns * NS_PER_S,
    )


def _wait_ms(made: Batches, queued: Mapping[int, float]) -> NDArray[np.float64]:
    """Of making each batch, what its worker neither computed nor queued for a CPU.

    `queued`: of each worker's time, by its process.
    """
    share = np.array([queued[pid] for pid in made.pid.tolist()], dtype=np.float64)
    making_ns = (made.end_ns - made.begin_ns).astype(np.float64)
    waiting_ns = making_ns * (1.0 - share) - made.process_cpu_ns
    return np.asarray(np.maximum(waiting_ns, 0.0) / NS_PER_MS)
