"""Which part bounds the step, and how much that matters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from loaderdoctor.facts.shares import (
    HIGH_MIN_LOW_SHARE,
    HIGH_SHARE,
    MODERATE_MIN_LOW_SHARE,
    MODERATE_SHARE,
    Bound,
    Shares,
    VerdictSeverity,
)

# Ties go to the earlier one.
_FED: tuple[Literal["input", "copy", "communication"], ...] = ("input", "copy", "communication")


def verdict_from_shares(
    shares: Shares | None, low: Mapping[str, float] | None = None, *, enough_steps: bool = True
) -> tuple[Bound, VerdictSeverity]:
    """The first line that applies.

    Too little recorded: unknown. Largest of input, copy, communication at least 20 %: that one,
    high. Host at least 20 %: host, high. Largest of the three at least 5 %: that one, moderate.
    Else compute: health, not a disease; unknown where more of the rest is `other`. Input goes
    before host because profiling inflates host.

    `low` holds lower confidence bounds of shares by name, where there are any: a high needs one
    above 5 %, a moderate one above 0; else the bound stands and the severity is `uncertain`.
    Shares that were not recorded can't win.
    """
    if shares is None or not enough_steps:
        return "unknown", "none"
    values = shares.as_dict()
    largest = max(_FED, key=lambda name: values[name] or 0.0)
    share = values[largest] or 0.0
    if share >= HIGH_SHARE:
        return largest, _shown("high", _bound(low, largest), HIGH_MIN_LOW_SHARE)
    if (values["host"] or 0.0) >= HIGH_SHARE:
        return "host", _shown("high", _bound(low, "host"), HIGH_MIN_LOW_SHARE)
    if share >= MODERATE_SHARE:
        return largest, _shown("moderate", _bound(low, largest), MODERATE_MIN_LOW_SHARE)
    if (values["other"] or 0.0) > (values["compute"] or 0.0):
        return "unknown", "none"  # of most of it nothing was recorded, least of all health
    return "compute", "none"


def _bound(low: Mapping[str, float] | None, name: str) -> float | None:
    return None if low is None else low.get(name)


def _shown(
    severity: Literal["high", "moderate"], low: float | None, needed: float
) -> VerdictSeverity:
    """The severity if nothing speaks against it, else `uncertain`."""
    return severity if low is None or low > needed else "uncertain"
