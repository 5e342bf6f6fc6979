"""Where the step goes: shares that sum to one by construction, and from when on one matters."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal

Bound = Literal["input", "copy", "communication", "compute", "host", "outside", "unknown"]
VerdictSeverity = Literal["high", "moderate", "none", "uncertain"]

# A fifth of the step: worth acting on, and what the user should do first. A twentieth: the smallest
# share that stands out from the run-to-run noise of such loops (repeats of the 12 traced cases
# spread by 0.3-12 % of a step, median 3 %: `spread_ms` in traces/truth.json).
HIGH_SHARE = 0.20
MODERATE_SHARE = 0.05
# A share counts as shown where the lower end of its interval is as high, but for two points: nearer
# an ablation does not settle it. With the lower end above 0 alone, drift made up to one run in 35
# of a loop with 2 % input moderate (`benchmarks/false_alarms.py`, "raw").
SETTLED_TO_SHARE = 0.02
HIGH_MIN_LOW_SHARE = HIGH_SHARE - SETTLED_TO_SHARE
MODERATE_MIN_LOW_SHARE = MODERATE_SHARE - SETTLED_TO_SHARE


def shown_severity(share: float, low: float | None) -> Literal["high", "moderate", "uncertain"]:
    """Of a share of `MODERATE_SHARE` or more: what the lower end of its interval bears.

    None: a single trace, without an interval.
    """
    if share >= HIGH_SHARE and (low is None or low >= HIGH_MIN_LOW_SHARE):
        return "high"
    return "moderate" if low is None or low >= MODERATE_MIN_LOW_SHARE else "uncertain"


SUM_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Each instant of the window in exactly one share; None = not applicable or not recorded.

    Raises ValueError when built with a negative share or a sum other than 1: a wrong one
    cannot exist.
    """

    compute: float | None
    communication: float | None
    copy: float | None
    input: float | None
    host: float | None
    other: float | None

    def __post_init__(self) -> None:
        present = [v for v in self.as_dict().values() if v is not None]
        if any(not (-SUM_TOLERANCE <= v <= 1 + SUM_TOLERANCE) for v in present):
            raise ValueError(f"share outside 0..1: {self.as_dict()}")
        total = math.fsum(present)
        if abs(total - 1.0) > SUM_TOLERANCE:
            raise ValueError(f"shares sum to {total!r}, not 1: {self.as_dict()}")

    def as_dict(self) -> dict[str, float | None]:
        """By name, in the order of the identity."""
        return {name: getattr(self, name) for name in _NAMES}


_NAMES = tuple(field.name for field in fields(Shares))


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """Time per step that overlapped with busier work: reported next to the shares, never inside."""

    input_ms: float | None
    copy_ms: float | None
