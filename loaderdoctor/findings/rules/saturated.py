"""More workers would not help: the CPU is full, storage is slow, a batch is, or data costs little.

The last is where a batch costs most by being handed over, or by fetching each sample alone.
"""

from __future__ import annotations

from loaderdoctor import format as fmt
from loaderdoctor.facts import Facts
from loaderdoctor.facts.step import MODERATE_SHARE
from loaderdoctor.findings import Finding, Kind, Prediction, Severity
from loaderdoctor.findings.capacity import (
    MAX_WAITING_CPU_SHARE,
    SATURATED_CPU_SHARE,
    all_batches_ms,
    all_receiving_ms,
    batch_ms,
    cpu_cores_used,
    cpu_saturated,
    cpus_words,
    fed_workers,
    may_explain,
    pool_falls_short_ms,
    rest_ms,
    wanted_cpu_share,
)
from loaderdoctor.findings.exposure import input_cost, loader_id, num_workers
from loaderdoctor.findings.input_parts import (
    contention_cost,
    making_cost,
    may_contend,
    stall_cost,
    startup_ms_per_step,
    unmapped_cost,
)
from loaderdoctor.findings.line_names import hot_evidence, hot_sentence
from loaderdoctor.findings.rules.storage import helps, kept_on

# A sample below this costs what Python costs, not what its data does. On 2 cores indexing a
# TensorDataset takes 0.012 ms a sample, an MNIST image through PIL, ToTensor and Normalize
# 0.106 ms. At the former workers hurt (20000 rows, batch 256: 204 ms an epoch without, 626 ms with
# two, 12 ms sliced), at the latter they help.
MAX_OVERHEAD_SAMPLE_MS = 0.03
# Of batches that cost much to hand over.
_LIGHTER = "fewer tensors in a batch, or more samples."


def cpu_saturated_workers(facts: Facts) -> Finding | None:
    """The workers fall short and the usable CPUs are full: more workers can't help.

    Decides on: CPU time of workers and training process against the usable CPUs, over the plain
    windows, and exposed input time; or a pool that burns CPU and is as large as the CPUs feed. A
    pool that keeps up counts too, where removing it gains more than the loop ever waits for it;
    one that outnumbers full CPUs also where noise may be all of that gain: as many workers as CPUs
    are then tried, of which more rounds would not tell.
    Abstains: no workers, machine not known, or the workers' CPU time not recorded.
    Fooled by: other programs on the same CPUs, where the system does not tell how long workers
    queue for one: their load then reads as room.
    """
    n, cost, machine = num_workers(facts), input_cost(facts), facts.machine
    if not n or cost is None or machine is None:
        return None
    short, crowded = pool_falls_short_ms(facts), _outnumbers_full_cpus(facts, n)
    competes = contention_cost(facts) is not None or (crowded and may_contend(facts))
    if short == 0.0 and not competes:
        return None
    fills = bool(short) and _fills_the_cpus(facts, n)
    if not cpu_saturated(facts) and not fills and not (crowded and competes):
        return None
    used = cpu_cores_used(facts)
    busy = f"{used:.1f} of " if used is not None else "all of "
    cpu = facts.step.cpu if facts.step is not None else None
    others = cpu.other_cores if cpu is not None else None
    other_load = ""
    if others is not None and used is not None and not cpu_saturated(facts):
        other_load = f" with this loop and {others:.1f} with other programs,"
    wait_ms = facts.step.raw_wait_ms if facts.step is not None and competes else None
    said = f"the loop still waits {cost.of_step}"
    if wait_ms is not None:  # what it waits is the least of it
        would = "may" if cost.severity == Severity.UNCERTAIN else "would"
        keeps_up = (
            "the workers keep up" if short == 0.0 else "the workers are not what it waits for"
        )
        said = (
            f"{keeps_up}: the loop waits {fmt.ms(wait_ms)} a step for a batch. Yet batches that "
            f"cost nothing {would} save {cost.of_step}: making them takes CPUs from the loop"
        )
    outnumber = n > machine.cpus_per_rank
    return Finding(
        kind=Kind.CPU_SATURATED_WORKERS,
        severity=cost.severity,
        share=cost.share,
        loader=loader_id(facts),
        summary=(
            f"{busy}{cpus_words(machine)} are busy{other_load} and {said}. "
            f"{'Try as many workers as CPUs, or make' if outnumber else 'Make'} each sample "
            f"cheaper, cache it, or move work to the accelerator.{hot_sentence(facts)}"
        ),
        predictions=(no_more_workers("No CPU is left for more workers."),),
        evidence={
            "num_workers": n,
            "usable_cpus": machine.usable_cpus,
            "cpu_cores_used": used,
            **hot_evidence(facts),
            "worker_cpu_share": facts.workers.cpu_share if facts.workers is not None else None,
            "batch_ms": batch_ms(facts),
            "rest_of_step_ms": rest_ms(facts),
            "raw_wait_ms_per_step": wait_ms,
            **cost.as_input,
        },
        advice=("Start only as many workers as there are CPUs. " if outnumber else "")
        + "Make each sample cheaper (smaller files, fewer or faster transforms), cache "
        "decoded samples, or move transforms to the accelerator.",
    )


def storage_bound_workers(facts: Facts) -> Finding | None:
    """The workers fall short while they wait for storage or the network, not for the CPU.

    Decides on: wall time of making a batch less CPU time and less waiting for a free CPU, a CPU
    with room, and exposed input time.
    Abstains: no workers, or the workers' CPU time not recorded.
    Fooled by: waiting of any other kind (sleep, a lock, a rate limit), which looks the same.
    """
    n, cost, workers = num_workers(facts), making_cost(facts), facts.workers
    if not n or cost is None or workers is None or workers.cpu_share is None:
        return None
    waiting = 1 - workers.cpu_share - (workers.run_wait_share or 0.0)
    if waiting <= 1 - MAX_WAITING_CPU_SHARE or cpu_saturated(facts):
        return None
    if cost.share < MODERATE_SHARE:
        return None
    return Finding(
        kind=Kind.STORAGE_BOUND_WORKERS,
        severity=cost.severity,
        share=cost.share,
        loader=loader_id(facts),
        summary=(
            f"The {fmt.count(n, 'worker')} {fmt.verb(n, 'spend')} {fmt.share(waiting)} of each "
            f"batch's {fmt.ms(workers.batch_ms)} waiting (storage, network), not "
            f"computing{kept_on(facts)}, and the loop waits {cost.of_step}. Faster storage, packed "
            "files or a cache help."
        ),
        predictions=(
            Prediction(
                sentence="Workers that wait may outnumber the CPUs: more of them would wait at "
                "once.",
                setting="num_workers",
                which="more",
            ),
        ),
        evidence={
            "num_workers": n,
            "worker_cpu_share": workers.cpu_share,
            "batch_ms": workers.batch_ms,
            "fetch_ms": workers.fetch_ms,
            "rest_of_step_ms": rest_ms(facts),
            "cpu_cores_used": cpu_cores_used(facts),
            **hot_evidence(facts),
            **cost.as_input,
        },
        advice="Keep the data on faster storage, pack small files, or cache samples in memory."
        + helps(facts),
    )


def no_more_workers(sentence: str) -> Prediction:
    """That more workers gain nothing, for this reason."""
    return Prediction(sentence=sentence, setting="num_workers", which="more", gains=False)


def _fills_the_cpus(facts: Facts, n_workers: int) -> bool:
    """Whether a pool that computes, rather than waits, has all the workers the CPUs can feed."""
    share, limit = wanted_cpu_share(facts), fed_workers(facts)
    if share is None or limit is None:
        return False
    return share >= MAX_WAITING_CPU_SHARE and n_workers >= limit


def _outnumbers_full_cpus(facts: Facts, n_workers: int) -> bool:
    """Whether there are more workers than CPUs, which they, the loop and others keep busy."""
    used, machine = cpu_cores_used(facts), facts.machine
    if used is None or machine is None or n_workers <= machine.cpus_per_rank:
        return False
    cpu = facts.step.cpu if facts.step is not None else None
    others = (cpu.other_cores or 0.0) if cpu is not None else 0.0
    return used + others >= SATURATED_CPU_SHARE * machine.cpus_per_rank


def overhead_bound_loader(facts: Facts) -> Finding | None:
    """Handing batches over costs more than making them, or samples are so small: all is overhead.

    Decides on: what receiving a batch takes the loop once it is ready, against making it, where the
    workers keep up. Else the median time of a sample of a map-style dataset, and its part of
    collating. Both within the exposed input time without mapping batches (`batch-page-faults`).
    Abstains: sample times not recorded, the dataset is a stream, the sampler is what costs, or the
    batches seen made are too cheap to explain the cost.
    Fooled by: a loop whose process is held up by others at that moment, which receiving then seems
    to take. And samples that are cheap but for a rare slow one; the median hides it, so the mean
    must be small too.
    """
    receiving = _receiving(facts)
    if receiving is not None:
        return receiving
    workers, cost, loader = facts.workers, unmapped_cost(facts), facts.main_loader
    if workers is None or cost is None or loader is None or loader.kind != "map":
        return None
    # An epoch's start (its indices, its workers) is no sample's overhead: batches of 0.13 ms were
    # given for 3.74 ms a step, of which 3.6 went by before each epoch of 151 steps.
    cost = cost.part(cost.ms - (startup_ms_per_step(facts) or 0.0))
    if cost.share < MODERATE_SHARE:
        return None
    sample_ms = _sample_ms(facts)
    if sample_ms is None or sample_ms > MAX_OVERHEAD_SAMPLE_MS:
        return None
    if _collate_ms_per_sample(facts) > MAX_OVERHEAD_SAMPLE_MS:
        return None
    if workers.sampler_ms is not None and workers.sampler_ms > cost.ms / 2:
        return None
    seen_ms = workers.batch_ms + (workers.queue_put_ms or 0.0)
    if not may_explain(seen_ms, cost):
        return None
    n = workers.n_workers
    instead = (
        ""
        if not n
        else f" The {fmt.count(n, 'worker')} {fmt.verb(n, 'add')} the price of a queue to it."
    )
    return Finding(
        kind=Kind.OVERHEAD_BOUND_LOADER,
        severity=cost.severity,
        share=cost.share,
        loader=loader.id,
        summary=(
            f"A sample takes {1000 * sample_ms:.0f} µs: the {cost.of_step} go into making so small "
            "samples one at a time and collating them. Slice whole batches or keep the dataset on "
            f"the device.{instead}"
        ),
        predictions=(no_more_workers("More workers would add the price of a queue."),),
        evidence={
            "sample_us": 1000 * sample_ms,
            "batch_ms": workers.batch_ms,
            "fetch_ms": workers.fetch_ms,
            "collate_ms": workers.collate_ms,
            "num_workers": n,
            "batch_size": loader.batch_size,
            **cost.as_input,
        },
        advice="Slice whole batches from tensors in memory (or define __getitems__), or keep the "
        "dataset on the device.",
    )


def _receiving(facts: Facts) -> Finding | None:
    """Batches are ready and the loop pays more for taking one than a worker for making it."""
    n, cost, workers = num_workers(facts), unmapped_cost(facts), facts.workers
    received_ms, made_ms = all_receiving_ms(facts), all_batches_ms(facts)
    if not n or cost is None or workers is None or received_ms is None or made_ms is None:
        return None
    if pool_falls_short_ms(facts) != 0.0 or received_ms <= made_ms:
        return None
    part = cost.part(received_ms)
    if part.share < MODERATE_SHARE:
        return None
    step_ms = cost.step_ms - part.ms + made_ms
    sample_ms = _sample_ms(facts)
    tiny = sample_ms is not None and sample_ms <= MAX_OVERHEAD_SAMPLE_MS
    return Finding(
        kind=Kind.OVERHEAD_BOUND_LOADER,
        severity=part.severity,
        share=part.share,
        loader=loader_id(facts),
        summary=(
            f"Taking a ready batch out of the workers' queue (descriptors, unpickling, mapping) "
            f"costs the loop {fmt.ms(received_ms)}, making it costs a worker {fmt.ms(made_ms)}: "
            f"{part.of_step}. The workers wait for work most of the time."
        ),
        predictions=(
            Prediction(
                sentence="num_workers=0 hands nothing over: the loop would make its batches in "
                f"about that time, {fmt.ms(step_ms)} a step.",
                setting="num_workers",
                which="fewer",
                value=0,
                step_ms=step_ms,
                advised=True,
                instead=f"Let each batch cost less to hand over: {_LIGHTER}",
            ),
            no_more_workers("More workers would not make receiving cheaper."),
        ),
        evidence={
            "receive_ms_per_batch": received_ms,
            "batch_ms": made_ms,
            "sample_us": 1000 * sample_ms if tiny and sample_ms is not None else None,
            "worker_idle_share": workers.idle_share,
            "num_workers": n,
            **cost.as_input,
        },
        advice="Make the batches in the loop (num_workers=0), or let each cost less to hand over: "
        f"{_LIGHTER}",
    )


def _sample_ms(facts: Facts) -> float | None:
    """Time of one sample: the median, or the mean where that is what the batch is made of."""
    workers = facts.workers
    if workers is None:
        return None
    mean_ms = (
        workers.fetch_ms * workers.n_batches / workers.n_samples if workers.n_samples > 0 else None
    )
    if workers.sample_ms_quantiles is None:
        return mean_ms
    median_ms = workers.sample_ms_quantiles[3]
    # The mean holds what a rare slow sample costs; twice the limit leaves room for its noise.
    if mean_ms is not None and mean_ms > 2 * MAX_OVERHEAD_SAMPLE_MS:
        return mean_ms
    return median_ms


def _collate_ms_per_sample(facts: Facts) -> float:
    """Collating, spread over the batch; 0 where it was not recorded apart."""
    workers = facts.workers
    if workers is None or workers.collate_ms is None or workers.n_samples <= 0:
        return 0.0
    return workers.collate_ms * workers.n_batches / workers.n_samples


def head_of_line_stall(facts: Facts) -> Finding | None:
    """Ready batches wait behind an earlier slow one, because they are delivered in order.

    Decides on: the time per step that later batches were ready while the loop waited for an
    earlier one, within the exposed input time.
    Abstains: fewer than two workers, order not kept (in_order=False), or not recorded.
    Fooled by: a pool too small by itself, where any order leaves a wait (see too-few-workers).
    """
    workers, cost, stall = facts.workers, input_cost(facts), stall_cost(facts)
    if workers is None or cost is None or stall is None:
        return None
    spread = _sample_spread(facts)
    varied = ""
    if spread is not None:
        varied = (
            f" A sample takes {fmt.ms(spread[0])} at the median, {fmt.ms(spread[1])} at the 99th"
        )
        varied += " percentile."
    return Finding(
        kind=Kind.HEAD_OF_LINE_STALL,
        severity=stall.severity,
        share=stall.share,
        loader=loader_id(facts),
        summary=(
            f"For {stall.of_step} the loop waits for a slow batch while later ones are ready."
            f"{varied}"
        ),
        predictions=(
            Prediction(
                sentence="in_order=False hands them out as they come, if the order is free.",
                setting="in_order",
                value=False,
                advised=True,
                instead="Spread slow samples over the batches.",
            ),
        ),
        evidence={
            "head_of_line_ms_per_step": workers.head_of_line_ms,
            **cost.as_input,
            "num_workers": workers.n_workers,
            "median_sample_ms": spread[0] if spread is not None else None,
            "p99_sample_ms": spread[1] if spread is not None else None,
        },
        advice="Use in_order=False where the order of batches is free, or spread slow samples.",
    )


def _sample_spread(facts: Facts) -> tuple[float, float] | None:
    """Median and 99th percentile of the sample time, ms."""
    quantiles = facts.workers.sample_ms_quantiles if facts.workers is not None else None
    return (quantiles[3], quantiles[6]) if quantiles is not None and len(quantiles) == 8 else None
