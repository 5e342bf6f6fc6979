"""The disk and the memory behind the dataset: cold caches, many small files, RAM running out."""

from __future__ import annotations

import re

from loaderdoctor import format as fmt
from loaderdoctor.facts.shares import MODERATE_SHARE
from loaderdoctor.facts.whole import Facts
from loaderdoctor.facts.workers import WorkerFacts
from loaderdoctor.findings.capacity import MAX_WAITING_CPU_SHARE, in_flight_bytes, rest_ms
from loaderdoctor.findings.exposure import copy_cost, exposed, input_cost, loader_id, severity
from loaderdoctor.findings.input_parts import making_cost
from loaderdoctor.findings.line_names import at, line_evidence, seen, seen_enough
from loaderdoctor.findings.model import Finding, Kind
from loaderdoctor.findings.storage_words import helps
from loaderdoctor.hazards import MIN_AVAILABLE_BYTES

# A disk and the page cache differ by several times. Half as much again is what imports, first
# allocations and clock ramps add to a first epoch without any disk.
MIN_FIRST_TOUCH_RATIO = 2.0
# A read that misses the page cache waits at least for a flash read, some 0.1 ms; what is smaller
# is a warm-up of interpreter and allocator.
MIN_EXTRA_MS = 0.05
# Lines are sampled: opening files is the cause where a good part of the samples lie there.
MIN_OPEN_LINE_SHARE = 0.33
# Swap in use is often a leftover; with little free memory it is not.
MIN_SWAP_BYTES = 256 * 1024**2
LOW_AVAILABLE_BYTES = 1024**3

_OPENS = re.compile(
    r"\bopen\(|imread\(|\.load\(|read_image\(|read_file\(|read_bytes\(|read_text\(|_loader\("
    r"|fromfile\(|decode_image\("
)


def _cold_batch_ms(workers: WorkerFacts, first_ms: float) -> float:
    """A batch of samples that are all touched for the first time.

    Batches of the windows are no base for it: they may be cold themselves, all or in part.
    """
    made_of = workers.n_samples / max(1, workers.n_batches)
    return first_ms * made_of + max(0.0, workers.batch_ms - workers.fetch_ms)


def cold_storage(facts: Facts) -> Finding | None:
    """The first pass over the data is slow, later ones find it in memory.

    Decides on: time of a sample at its first touch / later ones, where the cold pace is slower than
    the rest of the step; the difference is what it explains.
    Abstains: only one pass was seen, or sample times were not recorded.
    Fooled by: a dataset that caches samples itself, which looks the same (and is as real).
    """
    workers, rest = facts.workers, rest_ms(facts)
    if workers is None or rest is None:
        return None
    ratio, first_ms = workers.first_touch_ratio, workers.first_touch_ms
    if ratio is None or first_ms is None:
        return None
    if ratio < MIN_FIRST_TOUCH_RATIO or first_ms * (1.0 - 1.0 / ratio) < MIN_EXTRA_MS:
        return None
    cold_ms = _cold_batch_ms(workers, first_ms) / max(1, workers.n_workers)
    if cold_ms <= rest:
        return None
    whole = input_cost(facts)
    cost = whole.part(cold_ms - rest) if whole is not None else None
    return Finding(
        kind=Kind.COLD_STORAGE,
        severity=cost.severity if cost is not None else severity(0.0),
        share=cost.share if cost is not None else None,
        loader=loader_id(facts),
        summary=(
            f"A sample takes {ratio:.1f}x as long the first time as later, from the page cache: a "
            f"cold epoch hands out a batch every {fmt.ms(cold_ms)} while the rest of the step "
            f"takes {fmt.ms(rest)}. Judge settings on warm epochs, or copy the data to faster "
            "storage first."
        ),
        evidence={
            "first_touch_ratio": ratio,
            "cold_ms_per_batch": cold_ms,
            "rest_of_step_ms": rest,
            "input_ms_per_step": cost.ms if cost is not None else None,
            "step_ms": facts.step_ms,
        },
        advice="Copy the data to local storage or memory before the first epoch, or read it once "
        "in order.",
    )


def many_small_files(facts: Facts) -> Finding | None:
    """Each sample opens its own file, and the workers wait for that.

    Decides on: stack samples of lines that open or read files, CPU share of making a batch, and the
    exposed input time that making batches explains.
    Abstains: too few stack samples or no CPU times recorded, or the pool keeps up with the step.
    Fooled by: one large file opened again for each sample; keep it open then.
    """
    workers, cost = facts.workers, making_cost(facts)
    if workers is None or cost is None or workers.cpu_share is None:
        return None
    if workers.cpu_share >= MAX_WAITING_CPU_SHARE:
        return None
    hotspots = [x for x in workers.lines if x.code is not None and _OPENS.search(x.code)]
    share = min(1.0, sum(x.share for x in hotspots))
    if not seen_enough(hotspots) or share < MIN_OPEN_LINE_SHARE:
        return None
    part = cost.part(cost.ms * share)
    if part.share < MODERATE_SHARE:
        return None
    hottest = max(hotspots, key=lambda x: x.share)
    return Finding(
        kind=Kind.MANY_SMALL_FILES,
        severity=part.severity,
        share=part.share,
        loader=loader_id(facts),
        summary=(
            f"{seen(*hotspots)} of making a batch is opening and reading a file per sample"
            f"{at(hottest)}, while the loop waits {cost.of_step}. Pack the samples into few "
            "large files (LMDB, webdataset, TFRecord)."
        ),
        evidence={
            "open_share_of_batch": share,
            "cpu_share": workers.cpu_share,
            **line_evidence(hottest),
            "input_ms_per_step": cost.ms,
            "step_ms": cost.step_ms,
        },
        advice="Pack the samples into a few large files that are read in order (LMDB, webdataset, "
        "TFRecord), or copy them to local storage." + helps(facts),
    )


def memory_short(facts: Facts) -> Finding | None:
    """Batches in flight (pinned ones can't be swapped) while host memory runs out.

    Decides on: memory available against the batches the loader keeps ready, and swap in use.
    Abstains: memory not recorded, or neither workers nor pinning hold batches.
    Fooled by: memory another program is about to give back.
    """
    machine, loader = facts.machine, facts.main_loader
    if machine is None or machine.memory_available_bytes is None or loader is None:
        return None
    settings = loader.settings
    if not settings.num_workers and not settings.pin_memory:
        return None
    n, available = settings.num_workers or 0, machine.memory_available_bytes
    held = (in_flight_bytes(facts, n, settings.prefetch_factor) or 0) * machine.ranks_here
    swapping = (machine.swap_used_bytes or 0) >= MIN_SWAP_BYTES and available < LOW_AVAILABLE_BYTES
    if available >= max(MIN_AVAILABLE_BYTES, held) and not swapping:
        return None
    cost = input_cost(facts) or copy_cost(facts)
    known = exposed(facts, "input")
    if cost is None and known is not None and not swapping:
        return None
    swap = (
        f" with {fmt.n_bytes(machine.swap_used_bytes)} in swap" if machine.swap_used_bytes else ""
    )
    pinned = "pinned " if settings.pin_memory else ""
    n_ranks = machine.ranks_here
    whose = f"the loaders of {n_ranks} ranks keep" if n_ranks > 1 else "the loader keeps"
    return Finding(
        kind=Kind.MEMORY_SHORT,
        severity=cost.severity if cost is not None else severity(0.0),
        share=cost.share if cost is not None else None,
        loader=loader.id,
        summary=(
            f"Only {fmt.n_bytes(available)} of host memory are available{swap}, and {whose} "
            f"up to {fmt.n_bytes(held)} of {pinned}batches ready. Use fewer workers or a "
            "smaller prefetch_factor, and keep data out of tmpfs."
        ),
        evidence={
            "memory_available_bytes": available,
            "swap_used_bytes": machine.swap_used_bytes,
            "in_flight_bytes": held,
            "num_workers": n,
            "pin_memory": settings.pin_memory,
            "step_ms": facts.step_ms,
        },
        advice="Lower num_workers or prefetch_factor; pinning and tmpfs take memory that can't be "
        "swapped or reclaimed.",
    )
