"""Copies that wait because their source memory is not pinned, or the call blocks."""

from __future__ import annotations

from loaderdoctor import format as fmt
from loaderdoctor.facts.shares import MODERATE_SHARE
from loaderdoctor.facts.whole import Facts
from loaderdoctor.findings.exposure import (
    MIN_BLOCKED_PART,
    MIN_TENSOR_BYTES,
    bandwidth_gb_per_s,
    copies_from,
    copy_cost,
    explained_by,
    loader_id,
    severity,
)
from loaderdoctor.findings.model import Finding, Kind, Prediction


def pin_ineffective(facts: Facts) -> Finding | None:
    """pin_memory=True, and yet the batch reaches the loop unpinned.

    Decides on: the loader's setting against the pinned flag of the batch's tensors, or of what the
    loop copies. Of all rules the one that needs no exposure to fire, as a hint: the user asked for
    pinning and does not get it.
    Abstains: no batch tensor of some size was seen; no accelerator (torch then pins nothing, and
    says so itself).
    Fooled by: a loop that makes new tensors from the batch (indexing, .float()) and copies those.
    """
    loader = facts.main_loader
    if loader is None or not loader.settings.pin_memory:
        return None
    if facts.machine is not None and facts.machine.device_name is None:
        return None
    on_host = [t for t in loader.batch if t.device == "cpu" and t.n_bytes >= MIN_TENSOR_BYTES]
    if on_host:
        unpinned = sum(t.n_bytes for t in on_host if not t.pinned)
        what = next((t.path for t in on_host if not t.pinned), "")
    else:
        sent = [t for t in facts.transfers if t.n_bytes >= MIN_TENSOR_BYTES]
        unpinned = sum(t.n_bytes for t in sent if not t.pinned)
        what = next((t.site for t in sent if not t.pinned), "")
    if not unpinned:
        return None
    cost = copy_cost(facts)
    paid = f" The step pays {cost.of_step} for its copies." if cost is not None else ""
    kind = f" of type {loader.batch_type}" if loader.batch_type else ""
    return Finding(
        kind=Kind.PIN_INEFFECTIVE,
        severity=cost.severity if cost is not None else severity(0.0),
        share=cost.share if cost is not None else None,
        loader=loader.id,
        summary=(
            f"pin_memory=True has no effect: {fmt.n_bytes(unpinned)} of the batch{kind} reach the "
            "loop unpinned. Give the batch class a pin_memory() method, or return tensors, tuples "
            f"or dicts.{paid}"
        ),
        evidence={
            "unpinned_bytes_per_step": unpinned,
            "batch_type": loader.batch_type,
            "first_unpinned": what,
            "copy_ms_per_step": cost.ms if cost is not None else None,
            "step_ms": facts.step_ms,
        },
        advice="Define pin_memory(self) on the batch class so that it pins its tensors and returns "
        "self: DataLoader calls it.",
    )


def pageable_copy(facts: Facts) -> Finding | None:
    """Host-to-device copies from pageable memory that the step waits for.

    Decides on: exposed copy time (ablation, else the trace's pageable copies) / step time, where
    the copies come from pageable memory by the trace or the loop's own calls.
    Abstains: no accelerator, or neither names the source memory.
    Fooled by: another program's kernels on the same GPU, unseen in this trace.
    """
    cost = copy_cost(facts)
    if cost is None:
        return None
    copies = copies_from(facts, "pageable")
    explained = explained_by(facts, cost, copies)
    n_bytes = sum(c.bytes_per_step for c in copies)
    if not copies:
        sent = [t for t in facts.transfers if not t.pinned and t.n_bytes >= MIN_TENSOR_BYTES]
        if not sent or (facts.trace is not None and facts.trace.copies):
            return None
        explained, n_bytes = cost, float(sum(t.n_bytes for t in sent))
    if explained.share < MODERATE_SHARE:
        return None
    blocking = any(t.non_blocking and not t.pinned for t in facts.transfers)
    useless = " non_blocking=True does nothing for pageable memory." if blocking else ""
    return Finding(
        kind=Kind.PAGEABLE_COPY,
        severity=explained.severity,
        share=explained.share,
        loader=loader_id(facts),
        summary=(
            f"The step waits {explained.of_step} for {fmt.n_bytes(n_bytes)} copied from pageable "
            f"memory.{useless}"
        ),
        predictions=(
            Prediction(
                sentence="pin_memory=True and non_blocking=True together would let the copy run at "
                "full speed next to the step.",
                setting="pin_memory",
                value=True,
            ),
        ),
        evidence={
            "exposed_copy_ms_per_step": explained.ms,
            "step_ms": cost.step_ms,
            "bytes_per_step": n_bytes,
            "bandwidth_gb_per_s": bandwidth_gb_per_s(copies),
            "host_blocked_ms_per_step": sum(c.host_blocked_ms_per_step for c in copies)
            if copies
            else None,
            "n_copies_per_step": sum(c.n_per_step for c in copies) if copies else None,
        },
    )


def blocking_copy(facts: Facts) -> Finding | None:
    """Copies from pinned memory whose call still waits for them: non_blocking is missing.

    Decides on: exposed copy time / step time, with pinned copies that hold the thread for at least
    half of their device time, or calls of the loop without non_blocking.
    Abstains: no accelerator, no exposed copy, or no pinned source.
    Fooled by: a loop that needs the copied data at once on the host's side; then nothing is gained.
    """
    cost = copy_cost(facts)
    if cost is None:
        return None
    pinned = copies_from(facts, "pinned")
    sent = [t for t in facts.transfers if t.pinned and t.n_bytes >= MIN_TENSOR_BYTES]
    blocked_ms = sum(c.host_blocked_ms_per_step for c in pinned)
    if sent:
        sites = sorted({t.site for t in sent if not t.non_blocking})
        if not sites:
            return None
    elif pinned and blocked_ms >= MIN_BLOCKED_PART * sum(c.busy_ms_per_step for c in pinned):
        sites = []
    else:
        return None
    explained = explained_by(facts, cost, pinned) if pinned else cost
    if explained.share < MODERATE_SHARE:
        return None
    at = f" at {', '.join(sites[:3])}" if sites else ""
    return Finding(
        kind=Kind.BLOCKING_COPY,
        severity=explained.severity,
        share=explained.share,
        loader=loader_id(facts),
        summary=(
            f"The batch is pinned, but the copy{at} blocks the loop: {explained.of_step}. "
            "The loop could go on while it runs."
        ),
        predictions=(
            Prediction(
                sentence="non_blocking=True would let it.", setting="non_blocking", value=True
            ),
        ),
        evidence={
            "exposed_copy_ms_per_step": explained.ms,
            "host_blocked_ms_per_step": blocked_ms if pinned else None,
            "step_ms": cost.step_ms,
            "sites": ", ".join(sites) or None,
            "bytes_per_step": sum(c.bytes_per_step for c in pinned) if pinned else None,
        },
    )
