"""One rank of a job that the others wait for, and what makes it late."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from loaderdoctor import format as fmt
from loaderdoctor.facts.shares import MODERATE_SHARE
from loaderdoctor.facts.whole import Facts, RankFacts
from loaderdoctor.findings.exposure import severity
from loaderdoctor.findings.model import Finding, Kind

# Waits are told apart to within the time a thread takes to wake: half a millisecond between two
# gloo ranks on two busy cores. What is below this explains nothing.
MIN_WAIT_MS = 0.5

_CAUSES = {
    "input": "getting its batches",
    "copy": "copying its batches to the device",
    "compute": "computing",
    "host": "host work",
}
_REMEDIES = {
    "input": "Look at what this rank reads: its shard, its storage, the CPUs left for its workers.",
    "copy": "Look at its link to the host: PCIe width, NUMA node, a shared switch.",
    "compute": "Look at its device: clock, temperature, other programs; and at uneven batches.",
    "host": "Look at what only this rank does (logging, saving) and at its CPU.",
}


def slow_rank(facts: Facts) -> Finding | None:
    """The other ranks wait in collectives for one that comes late in every step.

    Decides on: what the other ranks wait for a later one (median) beyond what this rank waits
    itself, as a share of the step; and which part of its step is longest beyond its peers'.
    Abstains: one rank, or no collectives that could be matched between the traces.
    Fooled by: collectives of several process groups under one name, told apart by time alone; a
    rank that is slow only while it is profiled.
    """
    waiting = [r for r in facts.ranks if r.peer_wait_ms is not None]
    if len(waiting) < 2:
        return None
    slow = min(waiting, key=lambda r: r.peer_wait_ms or 0.0)
    others = [r for r in waiting if r is not slow]
    typical_ms = median(r.peer_wait_ms or 0.0 for r in others)
    cost_ms = typical_ms - (slow.peer_wait_ms or 0.0)
    wall_ms = median(r.wall_ms for r in others)
    if wall_ms <= 0 or cost_ms < MIN_WAIT_MS or cost_ms / wall_ms < MODERATE_SHARE:
        return None
    share = min(1.0, cost_ms / wall_ms)
    cause, excess_ms = _cause(slow, others)
    where = f" ({slow.host})" if slow.host and len({r.host for r in waiting}) > 1 else ""
    because = (
        f"{_CAUSES[cause]} takes it {fmt.ms(slow.part_ms(cause))} a step, {fmt.ms(excess_ms)} more "
        "than its peers"
        if cause is not None
        else "no part of its step stands out"
    )
    who = f"{len(others)} other ranks wait" if len(others) > 1 else "other rank waits"
    return Finding(
        kind=Kind.SLOW_RANK,
        severity=severity(share),
        share=share,
        summary=(
            f"Rank {slow.rank}{where} is late in every step: {because}. The {who} "
            f"{fmt.ms(typical_ms)} of {fmt.ms(wall_ms)} a step for it in collectives, which is not "
            "communication."
        ),
        evidence={
            "rank": slow.rank,
            "host": slow.host,
            "cause": cause,
            "cause_ms_per_step": slow.part_ms(cause) if cause is not None else None,
            "beyond_peers_ms_per_step": excess_ms if cause is not None else None,
            "peer_wait_ms_per_step": typical_ms,
            "own_peer_wait_ms_per_step": slow.peer_wait_ms,
            "n_ranks": len(facts.ranks),
            "step_ms": wall_ms,
        },
        advice=_REMEDIES[cause] if cause is not None else None,
    )


def _cause(slow: RankFacts, others: Sequence[RankFacts]) -> tuple[str | None, float]:
    """The part of the slow rank's step that is longest beyond the median of its peers (ms)."""
    excess = {}
    for part in _CAUSES:
        own = slow.part_ms(part)
        theirs = [v for r in others if (v := r.part_ms(part)) is not None]
        if own is not None and theirs:
            excess[part] = own - median(theirs)
    cause = max(excess, key=lambda part: excess[part], default=None)
    if cause is None or excess[cause] < MIN_WAIT_MS:
        return None, 0.0
    return cause, excess[cause]
