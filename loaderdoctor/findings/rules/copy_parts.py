"""Host-to-device copies of a trace, and the part of the copy cost that some of them explain."""

from __future__ import annotations

from collections.abc import Iterable

from loaderdoctor.facts.trace import CopyFacts
from loaderdoctor.facts.whole import Facts
from loaderdoctor.findings.exposure import Cost

# Tensors below this are copied in microseconds, pinned or not (a label vector, a scalar): that
# they are not pinned says nothing about the batch. 64 KiB is also where CUDA stops staging a
# pageable copy synchronously inside the call.
MIN_TENSOR_BYTES = 64 * 1024
# A blocking call holds the thread at least as long as the device copies; a non-blocking one
# returns within a small part of it.
MIN_BLOCKED_PART = 0.5


def copies_from(facts: Facts, source: str) -> tuple[CopyFacts, ...]:
    """The trace's host-to-device copies from this kind of memory; empty where not recorded."""
    copies: Iterable[CopyFacts] = facts.trace.copies if facts.trace is not None else ()
    return tuple(c for c in copies if c.source == source)


def explained_by(facts: Facts, cost: Cost, copies: Iterable[CopyFacts]) -> Cost:
    """The part of the copy cost that these copies pay, as the trace divides it among all."""
    all_ms = sum(c.exposed_ms_per_step for c in facts.trace.copies) if facts.trace else 0.0
    mine_ms = sum(c.exposed_ms_per_step for c in copies)
    return cost.part(cost.ms * mine_ms / all_ms) if all_ms > 0 else cost.part(0.0)


def bandwidth_gb_per_s(copies: Iterable[CopyFacts]) -> float | None:
    """Bytes over device time of these copies; None where none ran."""
    copies = tuple(copies)
    busy_ms = sum(c.busy_ms_per_step for c in copies)
    n_bytes = sum(c.bytes_per_step for c in copies)
    return n_bytes / busy_ms / 1e6 if busy_ms > 0 else None
