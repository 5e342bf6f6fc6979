"""What the hints about computing share: when they are worth saying, and the form they take.

A hint names a flag or a line that makes the step's own work shorter. It is never the verdict, and
says nothing while the step waits for its batches: shorter work would only make it wait longer.
"""

from __future__ import annotations

from collections.abc import Mapping

from loaderdoctor.facts.shares import HIGH_SHARE
from loaderdoctor.facts.trace import ComputeFacts
from loaderdoctor.facts.whole import Facts
from loaderdoctor.findings.exposure import exposed
from loaderdoctor.findings.model import EvidenceValue, Finding, Kind, Severity

# With less than half of the step in kernels, most of what shorter kernels save is idle already:
# `gpu_resident` in `traces/` has 0.4 ms of kernels in a step of 3.3 ms.
MIN_COMPUTE_SHARE = 0.5


def input_first(facts: Facts) -> bool:
    """Whether the step waits for batches so much that nothing else matters yet."""
    cost = exposed(facts, "input")
    return cost is not None and cost.share >= HIGH_SHARE


def compute_bound(facts: Facts) -> bool:
    """Whether an accelerator's kernels are at least half of the step; False where unknown."""
    if facts.trace is None or not facts.trace.has_accelerator:
        return False
    share = facts.share("compute")
    if share is None:
        share = facts.trace.shares.compute
    return share is not None and share >= MIN_COMPUTE_SHARE


def computing(facts: Facts) -> ComputeFacts | None:
    """How the traced steps compute; None without such a trace."""
    return facts.trace.compute if facts.trace is not None else None


def step_share(facts: Facts, ms_per_step: float) -> float:
    """Device time of a traced step as a share of the plain step, where that was measured."""
    step_ms = facts.step_ms
    assert facts.trace is not None
    wall_ms = step_ms if step_ms and facts.trace.has_accelerator else facts.trace.wall_ms
    return min(1.0, ms_per_step / wall_ms) if wall_ms > 0 else 0.0


def hint(
    kind: Kind,
    *,
    share: float | None,
    summary: str,
    evidence: Mapping[str, EvidenceValue],
    advice: str,
) -> Finding:
    """A finding of low severity; `share` is the most that the change can gain, where known."""
    return Finding(
        kind=kind,
        severity=Severity.LOW,
        share=share,
        summary=summary,
        evidence=evidence,
        advice=advice,
    )
