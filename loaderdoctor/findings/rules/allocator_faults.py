"""Memory that malloc gives back after each step: the next step fetches it anew, page by page."""

from __future__ import annotations

from loaderdoctor.advice.proposal import has_accelerator
from loaderdoctor.facts.shares import MODERATE_SHARE
from loaderdoctor.facts.whole import Facts
from loaderdoctor.findings.exposure import Cost
from loaderdoctor.findings.model import Finding, Kind

# Fewer a step are no memory of each step: 0 to 5 were left where glibc kept it
# (`benchmarks/allocator.py`).
MIN_FAULTS = 100
MAX_WAITING_SHARE = 0.9  # beyond this a step is mostly waiting, and what is left no measure
ADVICE = (
    "Start the script with MALLOC_TRIM_THRESHOLD_=4000000000 MALLOC_MMAP_MAX_=0 in its "
    "environment: glibc then keeps what is freed and hands it out again. The process stays as "
    "large as it once was, so mind it where memory is short."
)


def allocator_page_faults(facts: Facts) -> Finding | None:
    """Each step frees memory to the system and fetches it anew: page faults on the training thread.

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
            f"The loop's memory goes back to the system and is fetched anew in each step: "
            f"{faults:,.0f} page faults a step on the training thread, with ready batches too, at "
            f"{machine.fault_us:.1f} µs of CPU time each on this machine. Keeping it is predicted "
            f"to save {cost.of_step}; it was not tried."
        ),
        evidence={
            "page_faults_per_step": faults,
            "fault_us": machine.fault_us,
            "cost_ms_per_step": cost_ms,
            "step_ms": step_ms,
        },
        advice=ADVICE,
    )


def _waiting_share(facts: Facts) -> float:
    """How much of its time the training thread stood ready without a CPU; 0 where not told."""
    cpu = facts.step.cpu if facts.step is not None else None
    share = cpu.train_wait_share if cpu is not None else None
    return min(MAX_WAITING_SHARE, max(0.0, share or 0.0))
