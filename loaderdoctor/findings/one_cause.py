"""Findings about the same time are one cause: the gravest, with the others as its aspects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from loaderdoctor.facts.shares import MODERATE_SHARE
from loaderdoctor.facts.whole import Facts
from loaderdoctor.findings.model import Finding, Kind

# By the part of the step that they explain. In none: `gc-in-workers` and `uneven-shards`, whose
# time is in what making batches and waiting for the pool cost, but whose remedy no other brings, so
# that each is told as a cause of its own; `gc-pauses`, which come wherever the loop makes objects;
# `slow-rank`, which is another rank's time.
PARTS: Mapping[str, tuple[Kind, ...]] = {
    "input": (
        Kind.MAIN_GUARD_MISSING,
        Kind.LOADER_IN_MAIN_PROCESS,
        Kind.TOO_FEW_WORKERS,
        Kind.CPU_SATURATED_WORKERS,
        Kind.STORAGE_BOUND_WORKERS,
        Kind.OVERHEAD_BOUND_LOADER,
        Kind.WORKER_STARTUP_EACH_EPOCH,
        Kind.ITERATOR_RECREATED,
        Kind.HEAD_OF_LINE_STALL,
        Kind.SAMPLER_BOUND,
        Kind.COLLATE_BOUND,
        Kind.DATASET_FORMAT_BOUND,
        Kind.WORKERS_SHARE_A_CORE,
        Kind.THREAD_OVERSUBSCRIPTION,
        Kind.IDLE_WORKERS,
        Kind.GIL_CONTENTION,
        Kind.BATCH_PAGE_FAULTS,
        Kind.PIN_THREAD_BOUND,
        Kind.COLD_STORAGE,
        Kind.MANY_SMALL_FILES,
        Kind.LATENCY_BOUND_STORAGE,
        Kind.BANDWIDTH_BOUND_STORAGE,
        Kind.MANY_SMALL_READS,
        Kind.RETRIED_REQUESTS,
        Kind.MEMORY_SHORT,
    ),
    "copy": (
        Kind.PIN_INEFFECTIVE,
        Kind.PAGEABLE_COPY,
        Kind.BLOCKING_COPY,
        Kind.COPY_NOT_OVERLAPPED,
        Kind.MANY_SMALL_COPIES,
        Kind.WIDE_DTYPE_COPY,
    ),
    "host": (Kind.SYNC_EVERY_STEP, Kind.LAUNCH_BOUND, Kind.WORK_BETWEEN_STEPS),
}
# Two findings of one part overlap where together they explain more than there is of it. Shares are
# estimates: what they exceed it by may be this much of the step, the least that is a finding.
MAX_EXCESS = MODERATE_SHARE


def with_aspects(found: Sequence[Finding], facts: Facts) -> tuple[Finding, ...]:
    """The findings in their order, but each aspect right behind its cause, which it names.

    A finding is an aspect where the causes before it leave too little of the same part of the step
    for it to be time of its own: `loader-in-main-process` of 68 %, and `collate-bound` of 68 % too.
    """
    causes: list[list[Finding]] = []
    for finding in found:
        part = _part(finding)
        alike = [group for group in causes if part is not None and _part(group[0]) == part]
        whole = facts.share(part) if part is not None else None
        share = finding.share
        if not alike or share is None or whole is None or _other_loader(alike, finding):
            causes.append([finding])
            continue
        taken = sum(group[0].share or 0.0 for group in alike)
        if share <= max(0.0, whole - taken) + MAX_EXCESS:
            causes.append([finding])
        else:
            alike[0].append(replace(finding, aspect_of=alike[0][0].kind))
    return tuple(finding for group in causes for finding in group)


def _part(finding: Finding) -> str | None:
    if finding.evidence.get("threads_of") == "loop":
        return None
    return next((part for part, kinds in PARTS.items() if finding.kind in kinds), None)


def _other_loader(alike: Sequence[Sequence[Finding]], finding: Finding) -> bool:
    """Whether it is about another loader than the cause that it would be an aspect of."""
    loader = alike[0][0].loader
    return finding.loader is not None and loader is not None and finding.loader != loader
