"""What a tuner asks for, what it tried, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from loaderdoctor.estimate import Estimate
from loaderdoctor.settings import Settings

State = Literal["watching", "trying", "resting", "confirming", "returning", "done"]
Verdict = Literal["kept", "slower", "not-separable", "too-dear", "failed", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Settings to go over to: at the next batch, or where the next epoch begins."""

    settings: Settings  # complete
    at_epoch: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One setting that was tried, or would have been."""

    settings: Settings  # complete
    verdict: Verdict
    at_step: int
    step_ms: Estimate | None = None
    against_ms: Estimate | None = None  # the best before it
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What tuning came to so far."""

    state: State
    own: Settings
    chosen: Settings
    chosen_at_step: int | None  # None: the loop's own settings stay
    proven: bool  # held against the loop's own once more
    own_ms: Estimate | None
    chosen_ms: Estimate | None
    n_steps: int
    lost_steps: float  # to trying, in steps of the pace that the run has
    lost_ms: float
    run_ms: float  # since tuning began
    saved_ms: float  # against the loop's own pace, of the steps that were made; trying included
    tried: tuple[Tried, ...]


def in_vain(settings: Settings, tried: Iterable[Tried]) -> bool:
    """Whether the same with workers that are kept was tried, and was no better."""
    kept = replace(settings, persistent_workers=True)
    worse = ("slower", "not-separable", "too-dear")
    return kept != settings and any(x.settings == kept and x.verdict in worse for x in tried)
