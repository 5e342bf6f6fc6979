"""What a batch costs is not its data: it is handing it over, or fetching each sample alone."""

from __future__ import annotations

from loaderdoctor import format as fmt
from loaderdoctor.facts.shares import MODERATE_SHARE
from loaderdoctor.facts.whole import Facts
from loaderdoctor.findings.capacity import (
    all_batches_ms,
    all_receiving_ms,
    may_explain,
    pool_falls_short_ms,
)
from loaderdoctor.findings.exposure import loader_id, num_workers
from loaderdoctor.findings.input_parts import unmapped_cost
from loaderdoctor.findings.model import Finding, Kind, Prediction
from loaderdoctor.findings.rules.saturated import no_more_workers

# A sample below this costs what Python costs, not what its data does. On 2 cores indexing a
# TensorDataset takes 0.012 ms a sample, an MNIST image through PIL, ToTensor and Normalize
# 0.106 ms. At the former workers hurt (20000 rows, batch 256: 204 ms an epoch without, 626 ms with
# two, 12 ms sliced), at the latter they help.
MAX_OVERHEAD_SAMPLE_MS = 0.03


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
            f"A sample takes {1000 * sample_ms:.0f} µs: the {cost.of_step} are the overhead of "
            "fetching one sample at a time and collating them, not the data. Slice whole batches "
            f"or keep the dataset on the device.{instead}"
        ),
        predictions=(no_more_workers("More workers would add the price of a queue."),),
        evidence={
            "sample_us": 1000 * sample_ms,
            "batch_ms": workers.batch_ms,
            "fetch_ms": workers.fetch_ms,
            "collate_ms": workers.collate_ms,
            "num_workers": n,
            "batch_size": loader.batch_size,
            "input_ms_per_step": cost.ms,
            "step_ms": cost.step_ms,
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
            ),
            no_more_workers("More workers would not make receiving cheaper."),
        ),
        evidence={
            "receive_ms_per_batch": received_ms,
            "batch_ms": made_ms,
            "sample_us": 1000 * sample_ms if tiny and sample_ms is not None else None,
            "worker_idle_share": workers.idle_share,
            "num_workers": n,
            "input_ms_per_step": cost.ms,
            "step_ms": cost.step_ms,
        },
        advice="Make the batches in the loop (num_workers=0), or let each cost less to hand over: "
        "fewer tensors in a batch, or more samples.",
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
