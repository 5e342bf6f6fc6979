"""More workers would not help: the CPU is full, or the storage is slow."""

from __future__ import annotations

from loaderdoctor import format as fmt
from loaderdoctor.facts.shares import MODERATE_SHARE
from loaderdoctor.facts.whole import Facts
from loaderdoctor.findings.capacity import (
    MAX_WAITING_CPU_SHARE,
    batch_ms,
    cpu_cores_used,
    cpu_saturated,
    cpus_words,
    fed_workers,
    pool_falls_short_ms,
    rest_ms,
    wanted_cpu_share,
)
from loaderdoctor.findings.exposure import input_cost, loader_id, num_workers
from loaderdoctor.findings.input_parts import contention_cost, making_cost
from loaderdoctor.findings.line_names import hot_evidence, hot_sentence
from loaderdoctor.findings.model import Finding, Kind, Prediction
from loaderdoctor.findings.storage_words import helps, where


def cpu_saturated_workers(facts: Facts) -> Finding | None:
    """The workers fall short and the usable CPUs are full: more workers can't help.

    Decides on: CPU time of workers and training process against the usable CPUs, over the plain
    windows, and exposed input time; or a pool that burns CPU and is as large as the CPUs feed. A
    pool that keeps up counts too, where removing it gains more than the loop ever waits for it.
    Abstains: no workers, machine not known, or the workers' CPU time not recorded.
    Fooled by: other programs on the same CPUs, where the system does not tell how long workers
    queue for one: their load then reads as room.
    """
    n, cost, machine = num_workers(facts), input_cost(facts), facts.machine
    if not n or cost is None or machine is None:
        return None
    short, competes = pool_falls_short_ms(facts), contention_cost(facts) is not None
    if short == 0.0 and not competes:
        return None
    if not cpu_saturated(facts) and not (short and _fills_the_cpus(facts, n)):
        return None
    used = cpu_cores_used(facts)
    busy = f"{used:.1f} of " if used is not None else "all of "
    cpu = facts.step.cpu if facts.step is not None else None
    others = cpu.other_cores if cpu is not None else None
    other_load = ""
    if others is not None and used is not None and not cpu_saturated(facts):
        other_load = f" with this loop and {others:.1f} with other programs,"
    return Finding(
        kind=Kind.CPU_SATURATED_WORKERS,
        severity=cost.severity,
        share=cost.share,
        loader=loader_id(facts),
        summary=(
            f"{busy}{cpus_words(machine)} are busy{other_load} and the loop still "
            f"waits {cost.of_step}. Make each sample cheaper, cache it, or move work to the "
            f"accelerator.{hot_sentence(facts)}"
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
            "input_ms_per_step": cost.ms,
            "step_ms": cost.step_ms,
        },
        advice="Make each sample cheaper (smaller files, fewer or faster transforms), cache "
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
            f"computing{where(facts)}, and the loop waits {cost.of_step}. Faster storage, packed "
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
            "input_ms_per_step": cost.ms,
            "step_ms": cost.step_ms,
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
