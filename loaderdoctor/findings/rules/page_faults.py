"""Memory that the training thread maps page by page: its batches', and its own in each step."""

from __future__ import annotations

from loaderdoctor import format as fmt
from loaderdoctor.facts.shares import MODERATE_SHARE
from loaderdoctor.facts.whole import Facts
from loaderdoctor.findings.exposure import Cost, has_accelerator, loader_id, num_workers
from loaderdoctor.findings.input_parts import mapping_cost
from loaderdoctor.findings.model import Finding, Kind, Prediction

# Fewer a step are not memory of each step: 0 to 5 were left where glibc kept it
# (`benchmarks/allocator.py`).
MIN_FAULTS = 100
MAX_WAITING_SHARE = 0.9  # beyond this a step is mostly waiting, and what is left no measure
KEEP_FREED_MEMORY = (
    "Start the script with MALLOC_TRIM_THRESHOLD_=4000000000 MALLOC_MMAP_MAX_=0 in its "
    "environment: glibc then keeps what is freed and hands it out again. The process stays as "
    "large as it once was, so mind it where memory is short."
)


def batch_page_faults(facts: Facts) -> Finding | None:
    """The loop maps each batch's shared memory page by page and frees it: work that no wait shows.

    Decides on: minor page faults of the training thread, a step, with real batches against ready
    ones, times the CPU time that mapping and dropping a batch was measured to take; at most what
    the loader costs by ablation beyond the loop's wait.
    Abstains: no workers, no ablation, faults not counted (outside Linux), no batch was thrown away
    to be measured, or another thread is the first to read them.
    Fooled by: batches that something else keeps alive, which are freed elsewhere; a loop that
    writes into its batches, whose faults are more and smaller than those of reading.
    """
    part = mapping_cost(facts)
    ablation = facts.ablation
    pages = ablation.pages if ablation is not None else None
    if part is None or pages is None or ablation is None or ablation.input_ms is None:
        return None
    wait_ms = facts.step.raw_wait_ms if facts.step is not None else None
    return Finding(
        kind=Kind.BATCH_PAGE_FAULTS,
        severity=part.severity,
        share=part.share,
        loader=loader_id(facts),
        summary=(
            f"The loop waits only {fmt.ms(wait_ms)} for its loader, yet each batch of "
            f"{fmt.n_bytes(pages.batch_bytes)} comes in shared memory new to this process: reading "
            f"it first takes {pages.faults_per_batch:,} page faults ({fmt.ms(pages.touch_ms)}), "
            f"dropping it {fmt.ms(pages.release_ms)}, together {part.of_step}, on the training "
            "thread."
        ),
        predictions=_predictions(facts, part.ms),
        evidence={
            "batch_bytes": pages.batch_bytes,
            "page_faults_per_step": pages.faults_per_step,
            "extra_page_faults_per_step": pages.extra_faults_per_step,
            "page_faults_per_batch": pages.faults_per_batch,
            "touch_ms_per_batch": pages.touch_ms,
            "release_ms_per_batch": pages.release_ms,
            "input_ms_per_step": ablation.input_ms.value,
            "raw_wait_ms_per_step": wait_ms,
            "num_workers": num_workers(facts),
            "step_ms": part.step_ms,
        },
        advice="Hand over fewer bytes (half as wide a type halves the faults and the freeing), or "
        "let the workers write into shared tensors that are used again.",
    )


def allocator_page_faults(facts: Facts) -> Finding | None:
    """Each step frees memory and fetches it again: page faults on the training thread.

    Decides on: minor page faults of the training thread, a step, that are left with ready batches
    in every round (so they are not the batches', nor those of a slow start), times what a fault was
    measured to cost here, longer by what the thread waits for a CPU; with an accelerator at most
    the host's share of the step.
    Abstains: no ablation, faults not counted or not timed (outside Linux), or malloc is not glibc's
    as it comes (musl, jemalloc, tcmalloc, MALLOC_ variables).
    Fooled by: files that the loop itself maps and reads, which fault too; huge pages, whose faults
    are few and large, so that it says nothing or too little.
    """
    machine, ablation, step_ms = facts.machine, facts.ablation, facts.step_ms
    faults = ablation.synthetic_faults_per_step if ablation is not None else None
    if machine is None or machine.allocator != "glibc" or machine.fault_us is None:
        return None
    if ablation is None or faults is None or not step_ms or faults < MIN_FAULTS:
        return None
    # CPU time takes longer where the thread waits for a CPU, as all of the step does.
    cost_ms = faults * machine.fault_us / 1e3 / (1.0 - _waiting_share(facts))
    if has_accelerator(facts):
        host = facts.share("host")
        if host is None:
            return None
        cost_ms = min(cost_ms, host * step_ms)
    cost = Cost(ms=cost_ms, share=min(1.0, cost_ms / step_ms), low_share=None, step_ms=step_ms)
    if cost.share < MODERATE_SHARE:
        return None
    return Finding(
        kind=Kind.ALLOCATOR_PAGE_FAULTS,
        severity=cost.severity,
        share=cost.share,
        summary=(
            f"The loop's memory goes back to the system and is fetched again in each step: "
            f"{faults:,.0f} page faults a step on the training thread, without the loader too, at "
            f"{machine.fault_us:.1f} µs of CPU time each on this machine. Keeping it is predicted "
            f"to save {cost.of_step}; it was not tried."
        ),
        evidence={
            "page_faults_per_step": faults,
            "fault_us": machine.fault_us,
            "cost_ms_per_step": cost_ms,
            "step_ms": step_ms,
        },
        advice=KEEP_FREED_MEMORY,
    )


def _predictions(facts: Facts, mapped_ms: float) -> tuple[Prediction, ...]:
    made = []
    loader = facts.main_loader
    if has_accelerator(facts) and loader is not None and not loader.settings.pin_memory:
        made.append(
            Prediction(
                sentence="pin_memory=True would leave that to the pin-memory thread.",
                setting="pin_memory",
                value=True,
            )
        )
    # Its samples at least the loop would then have to make; collating into memory that is mapped
    # already takes far less than the workers take for it.
    if facts.workers is not None and facts.workers.fetch_ms < mapped_ms:
        made.append(
            Prediction(
                sentence="With num_workers=0 the loop would make its batches in memory that it "
                "has mapped already.",
                setting="num_workers",
                value=0,
            )
        )
    return tuple(made)


def _waiting_share(facts: Facts) -> float:
    """How much of its time the training thread stood ready without a CPU; 0 where not told."""
    cpu = facts.step.cpu if facts.step is not None else None
    share = cpu.train_wait_share if cpu is not None else None
    return min(MAX_WAITING_SHARE, max(0.0, share or 0.0))
