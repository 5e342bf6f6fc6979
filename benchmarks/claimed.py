"""The input share that a report claims, and how far it may be from a truth by its own interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

NOT_COMPARED = "not-compared"  # the warning that the share is the loop's waits alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Of the step, 0…1. A share without an interval claims to be exact, or is told to be open."""

    share: float
    low: float
    high: float

    def reaches(self, truth: float) -> float:
        """How far the interval reaches towards the truth."""
        return self.high - self.share if truth > self.share else self.share - self.low


def claimed_input(report: dict[str, Any]) -> Claim | None:
    """What it says of the loader's share: bounded by what was seen to carry it, where that was.

    The bare difference of the rounds (`ablation.ci_ms`) may be many times as wide. None: no share.
    """
    share = (report["shares"] or {}).get("input")
    if share is None:
        return None
    ablation = report["ablation"] or {}
    _, bounds = (ablation.get("claims") or {}).get("input_ms") or (None, None)
    bounds = bounds or (ablation.get("ci_ms") or {}).get("input_ms")
    if bounds is None:
        is_open = any(warning["kind"] == NOT_COMPARED for warning in report.get("warnings", ()))
        return Claim(share=share, low=share, high=1.0 if is_open else share)
    wall_ms: float = report["step"]["wall_ms"]
    low, high = (min(1.0, max(0.0, ms / wall_ms)) for ms in bounds)
    return Claim(share=share, low=min(low, share), high=max(high, share))
