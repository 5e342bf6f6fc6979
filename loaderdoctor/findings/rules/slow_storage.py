"""Why storage is slow: each read takes long, all of them share a bandwidth, or there are too many.

A pool that waits looks alike in all three. What tells latency from bandwidth is what more readers
get: of a latency each gets as much as before, of a bandwidth they only share it. So those two are
said only where the run has tried more workers. How long each of their batches waited, next to those
of the pool as it is, says so first; the steps of that trial only where records do not.
"""

from __future__ import annotations

from dataclasses import dataclass

from loaderdoctor import format as fmt
from loaderdoctor.estimate import Estimate
from loaderdoctor.facts import Facts
from loaderdoctor.facts.host import WorkerFacts
from loaderdoctor.facts.loop import PoolTrial
from loaderdoctor.facts.step import MODERATE_SHARE
from loaderdoctor.findings import EvidenceValue, Finding, Kind
from loaderdoctor.findings.capacity import MAX_WAITING_CPU_SHARE, main_cpu_ms, rest_ms
from loaderdoctor.findings.exposure import Cost, loader_id, num_workers
from loaderdoctor.findings.input_parts import making_cost
from loaderdoctor.findings.rules.storage import cached, file_system_of, helps, kept_on

# More workers must be this many times as many, or noise says as much as they do.
MIN_MORE = 1.5
# Of what more readers save where each gets as much as before: from the first part on it is latency,
# below the second they share one bandwidth. `tests/scripts/causes/objects.py` on two busy CPUs, 8
# readers against 2: 0.97 for 12 ms a request, -0.03 for a shared 16 MB a second.
MIN_LATENCY_PART = 0.5
MAX_BANDWIDTH_PART = 0.25
# A read of a whole small file is one call, of a large one some 100 KiB or more at once. Python's
# own buffer asks for 8 KiB.
MAX_SMALL_READ_BYTES = 16 * 1024
MIN_READS_PER_SAMPLE = 16
# A call that the page cache answers takes some microseconds.
MIN_READ_WAIT_MS = 0.05
# Below this a batch's bytes are those of the loader's own pipes: the data came through sockets or a
# mapping, which the system does not count.
MIN_KNOWN_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class _More:
    """A trial of more workers, and what of their ideal gain came true: 1 latency, 0 bandwidth."""

    trial: PoolTrial
    part: Estimate
    by_rates: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting:
    """A pool, or the loop itself, that waits while it makes batches."""

    workers: WorkerFacts
    cost: Cost
    wait_ms: float  # of making a batch


def latency_bound_storage(facts: Facts) -> Finding | None:
    """Each read takes long, and more of them at once get as much each: latency, not bandwidth.

    Decides on: how long a batch waited for each of more workers tried in the running loop / for
    each of the pool as it is (else their steps / what they would be if each worker got as much as
    before); only where making a batch is mostly waiting.
    Abstains: no trial of more workers, an interval that does not tell, CPU times not recorded,
    steps that deny what the waits say, or workers that read no more than the loader's own pipes
    where neither a remote file system nor a client of one is known (a stream that computes).
    Fooled by: any other wait that many can do at once, such as a sleep, next to reads.
    """
    waiting = _waiting(facts) if _reads_storage(facts) else None
    seen = _more_readers(facts, waiting) if waiting is not None else None
    if waiting is None or seen is None:
        return None
    if not _is_latency(seen.part):
        return None
    return _finding(
        facts,
        Kind.LATENCY_BOUND_STORAGE,
        waiting,
        f"Reading waits for each request{kept_on(facts)}, {fmt.ms(waiting.wait_ms)} a batch"
        f"{_reads_words(facts, waiting.workers)}, and not for bandwidth: "
        f"{_measured(facts, seen)}.",
        _evidence(seen),
        "Keep more requests in flight: more workers, or a thread pool in the dataset's "
        "__getitems__; and ask for more at once, as packed shards do.",
    )


def bandwidth_bound_storage(facts: Facts) -> Finding | None:
    """More readers get no more together: the storage, or the way to it, gives all it has.

    Decides on: as `latency-bound-storage`, where each of more workers waits as much longer as they
    are more; by steps alone, where next to nothing came true although the CPUs had room.
    Abstains: no trial of more workers, an interval that does not tell, CPUs that more would fill
    where steps alone are known, steps that deny what the waits say, or no reads, as there.
    Fooled by: a lock that all workers share next to reads, which looks the same.
    """
    waiting = _waiting(facts) if _reads_storage(facts) else None
    seen = _more_readers(facts, waiting) if waiting is not None else None
    if waiting is None or seen is None or not _is_bandwidth(seen.part):
        return None
    if not seen.by_rates and not _room(facts, waiting.workers, seen.trial):
        return None
    rate = _rate(facts, waiting.workers)
    about = f", about {fmt.n_bytes(rate)} a second in all" if rate is not None else ""
    return _finding(
        facts,
        Kind.BANDWIDTH_BOUND_STORAGE,
        waiting,
        f"The storage gives all it has{kept_on(facts)}{about}: {_measured(facts, seen)}. Making "
        f"a batch waits {fmt.ms(waiting.wait_ms)} of its {fmt.ms(waiting.workers.batch_ms)}"
        f"{_reads_words(facts, waiting.workers)}.",
        {**_evidence(seen), "bytes_per_s": rate},
        "Read fewer bytes (smaller or better compressed samples, lower resolution), or copy the "
        "data to a local disk or memory before training. More workers only share what there is.",
    )


def many_small_reads(facts: Facts) -> Finding | None:
    """Each sample is read in many small pieces, and each waits for the storage.

    Decides on: the system's count of read calls of the workers and their bytes, per sample, where
    making a batch is mostly waiting.
    Abstains: read calls or CPU times not recorded, so few bytes that they are of the loader's own
    pipes (a stream that computes its samples: 18 reads of 11 bytes), or the page cache answers.
    Fooled by: waiting for something else next to many reads that cost nothing.
    """
    waiting = _waiting(facts)
    reads = waiting.workers.reads if waiting is not None else None
    if waiting is None or reads is None or not waiting.workers.n_samples:
        return None
    samples = waiting.workers.n_samples / max(1, waiting.workers.n_batches)
    size, calls = reads.bytes_per_batch / max(1.0, reads.calls_per_batch), reads.calls_per_batch
    if reads.bytes_per_batch < MIN_KNOWN_BYTES:
        return None
    if size > MAX_SMALL_READ_BYTES or calls < MIN_READS_PER_SAMPLE * samples:
        return None
    if waiting.wait_ms / calls < MIN_READ_WAIT_MS:
        return None
    return _finding(
        facts,
        Kind.MANY_SMALL_READS,
        waiting,
        f"A sample is read in {calls / samples:,.0f} pieces of {fmt.n_bytes(size)}"
        f"{kept_on(facts)}, {fmt.ms(waiting.wait_ms / calls)} each: {fmt.ms(waiting.wait_ms)} of "
        f"the {fmt.ms(waiting.workers.batch_ms)} that a batch takes.",
        {"reads_per_sample": calls / samples, "bytes_per_read": size},
        "Ask for more at once: read a file whole, open it with a larger buffer "
        "(open(path, buffering=1 << 20)), or pack samples into shards that are read in order.",
    )


def _reads_storage(facts: Facts) -> bool:
    """Whether workers were seen to read, or what sockets and mappings bring lies somewhere remote.

    Of 14 runs that were told latency or bandwidth, seven read files, 340 KB a batch and more, and
    seven, which wait for something else, 190 to 410 B.
    """
    reads = facts.workers.reads if facts.workers is not None else None
    if reads is not None and reads.bytes_per_batch >= MIN_KNOWN_BYTES:
        return True
    loader = facts.main_loader
    if loader is None:
        return False
    return bool(loader.clients) or any(file_system_of(kind) for kind in loader.file_systems)


def _waiting(facts: Facts) -> _Waiting | None:
    workers, cost = facts.workers, making_cost(facts)
    share = workers.waiting_share if workers is not None else None
    if workers is None or cost is None or share is None or cost.share < MODERATE_SHARE:
        return None
    if share <= 1 - MAX_WAITING_CPU_SHARE:
        return None
    return _Waiting(workers=workers, cost=cost, wait_ms=share * workers.batch_ms)


def _more_readers(facts: Facts, waiting: _Waiting) -> _More | None:
    """The trial of most workers and what it says of them.

    None without workers: the first one already gains by overlap, at whatever rate the storage has.
    """
    n = num_workers(facts)
    trials = [t for t in facts.pool_trials if n and t.num_workers >= MIN_MORE * n]
    for trial in sorted(trials, key=lambda t: -t.num_workers):
        steps, rates = _by_steps(facts, waiting, trial), _by_rates(waiting.workers, trial)
        if rates is None:
            told = steps
        elif steps is not None and (
            (_is_latency(rates.part) and _is_bandwidth(steps.part))
            or (_is_bandwidth(rates.part) and _is_latency(steps.part))
        ):
            return None
        else:
            told = rates
        if told is not None:
            return told
    return None


def _by_rates(workers: WorkerFacts, trial: PoolTrial) -> _More | None:
    """From the waits of each batch: where twice as many readers wait as long, each gets as much."""
    seen = trial.readers
    if seen is None or workers.run_wait_share is None or seen.few.busy <= 0:
        return None
    more, few, many = seen.many.busy / seen.few.busy, seen.few.wait_ms, seen.many.wait_ms
    if more < MIN_MORE or few.low <= 0 or not many.bounded:
        return None
    part = Estimate(
        value=(more - many.value / few.value) / (more - 1.0),
        low=(more - many.high / few.low) / (more - 1.0),
        high=(more - many.low / few.high) / (more - 1.0),
        n=many.n,
    )
    return _More(trial=trial, part=part, by_rates=True)


def _by_steps(facts: Facts, waiting: _Waiting, trial: PoolTrial) -> _More | None:
    """From the trial's steps and what they would be if each worker got as much as before."""
    rest = rest_ms(facts)
    if rest is None or not trial.gain_ms.bounded:
        return None
    ideal_ms = max(rest, waiting.workers.batch_ms / trial.num_workers)
    room_ms = trial.own_ms - ideal_ms
    if room_ms < MODERATE_SHARE * trial.own_ms:
        return None
    return _More(trial=trial, part=trial.gain_ms.scaled(1.0 / room_ms))


def _is_latency(part: Estimate) -> bool:
    return part.value >= MIN_LATENCY_PART and part.low >= MAX_BANDWIDTH_PART


def _is_bandwidth(part: Estimate) -> bool:
    return part.value <= MAX_BANDWIDTH_PART and part.high <= MIN_LATENCY_PART


def _evidence(seen: _More) -> dict[str, EvidenceValue]:
    few = seen.trial.readers.few if seen.trial.readers is not None else None
    many = seen.trial.readers.many if seen.trial.readers is not None else None
    return {
        "num_workers_tried": seen.trial.num_workers,
        "part_of_ideal": seen.part.value,
        "readers": few.busy if few is not None else None,
        "readers_tried": many.busy if many is not None else None,
        "wait_ms_per_batch_tried": many.wait_ms.value if many is not None else None,
        "batches_per_s": few.batches_per_s if few is not None else None,
        "batches_per_s_tried": many.batches_per_s if many is not None else None,
    }


def _room(facts: Facts, workers: WorkerFacts, trial: PoolTrial) -> bool:
    """Whether the CPUs could have fed that many workers at the pace they have now."""
    if facts.machine is None or workers.cpu_share is None:
        return False
    main = main_cpu_ms(facts) or 0.0
    step_ms = max(trial.step_ms.value, 1e-6)
    wanted = trial.num_workers * workers.cpu_share + main / step_ms
    return wanted <= facts.machine.cpus_per_rank


def _rate(facts: Facts, workers: WorkerFacts) -> float | None:
    """Bytes a second that all workers read together; None where the system does not count them."""
    reads, step_ms = workers.reads, facts.step_ms
    if reads is None or reads.bytes_per_batch < MIN_KNOWN_BYTES or not step_ms:
        return None
    return reads.bytes_per_batch / step_ms * 1000.0


def _measured(facts: Facts, seen: _More) -> str:
    n, trial, readers = num_workers(facts) or 0, seen.trial, seen.trial.readers
    if seen.by_rates and readers is not None:
        few, many = readers.few, readers.many
        per_s = fmt.number(few.batches_per_s)
        return (
            f"with num_workers={trial.num_workers} making a batch waits "
            f"{fmt.ms(many.wait_ms.value)}, with {n} {fmt.ms(few.wait_ms.value)}, and together "
            f"they make {fmt.number(many.batches_per_s)} batches a second, with {n} {per_s}"
        )
    return (
        f"a step takes {fmt.ms(trial.step_ms.value)} with num_workers={trial.num_workers}, and "
        f"{fmt.ms(trial.own_ms)} with {n}"
    )


def _reads_words(facts: Facts, workers: WorkerFacts) -> str:
    reads = workers.reads
    if reads is None or reads.bytes_per_batch < MIN_KNOWN_BYTES:
        return ""
    read = f" for {fmt.n_bytes(reads.bytes_per_batch)} in {reads.calls_per_batch:,.0f} reads"
    return read + cached(facts)


def _finding(
    facts: Facts,
    kind: Kind,
    waiting: _Waiting,
    summary: str,
    evidence: dict[str, EvidenceValue],
    advice: str,
) -> Finding:
    workers, cost, reads = waiting.workers, waiting.cost, waiting.workers.reads
    return Finding(
        kind=kind,
        severity=cost.severity,
        share=cost.share,
        loader=loader_id(facts),
        summary=summary,
        evidence={
            **evidence,
            "num_workers": num_workers(facts),
            "wait_ms_per_batch": waiting.wait_ms,
            "batch_ms": workers.batch_ms,
            "bytes_per_batch": reads.bytes_per_batch if reads is not None else None,
            "reads_per_batch": reads.calls_per_batch if reads is not None else None,
            "page_cache_share": 1.0 - reads.disk_share if reads is not None else None,
            **cost.as_input,
        },
        advice=advice + helps(facts),
    )
