"""What a report claims of the input, and what of its verdict a truth from outside does not allow.

The distance of the shares may be as large as the report's own interval says; the verdict may not: a
report that calls a loop healthy without having compared anything is wrong where it is not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

NOT_COMPARED = "not-compared"  # the warning that the share is the loop's waits alone
POINTS = 0.05
HIGH, MODERATE = 0.20, 0.05  # of the step: below, input can't be called so
NONE = (None, "none", "unknown")  # no bound
MARGIN = 0.03  # or the noise


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


def together(*noises: float) -> float:
    """The noise of a difference of figures that were measured apart: their errors are independent.

    Each is twice a standard error, or as far as a 95 % interval reaches.
    """
    return math.hypot(*noises)


def bound_share(report: dict[str, Any]) -> float | None:
    """Of the step, of a cause that may well be the larger one, where the verdict names one.

    What lies outside the steps is told over the step without it, as the truth's input share is: a
    truth that times steps alone does not deny it.
    """
    bound = report["verdict"]["bound"]
    if bound == "outside":
        wall = report.get("wall")
        return wall["outside_ms"] / wall["step_ms"] if wall and wall["step_ms"] else None
    share: float | None = (report["shares"] or {}).get(bound)
    return share if bound in ("copy", "host") else None


def verdict_wrong(said: dict[str, Any], share: float, noise: float) -> list[str]:
    """What of `bound` and `severity` an input share with this noise of its own does not allow.

    `said`: these, `bound_share` and the claim. Only a verdict that calls itself uncertain has the
    claim's interval for an excuse.
    """
    wrong = []
    bound, severity = said["bound"], said["severity"]
    needed = {"high": HIGH, "moderate": MODERATE}.get(severity)
    if bound == "input" and needed is not None and share < needed - max(MARGIN, noise):
        wrong.append(f"false {severity}")
    if bound in NONE:
        wrong.append("no verdict")
    claim = said.get("claim")
    if severity == "uncertain" and claim:
        noise += Claim(**claim).reaches(share)
    own = said.get("bound_share") or 0.0
    if bound not in ("input", *NONE) and share - max(POINTS, noise) > max(MODERATE, own):
        wrong.append(f"bound: input, not {bound}")
    return wrong
