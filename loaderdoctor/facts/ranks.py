"""One rank of a job next to the others."""

from __future__ import annotations

from dataclasses import dataclass

from loaderdoctor.facts.loop import StepFacts
from loaderdoctor.facts.shares import Shares


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """One rank of a job, from its trace, next to the others. Milliseconds a step."""

    rank: int
    host: str | None
    source: str  # its trace
    n_steps: int
    wall_ms: float
    own_ms: float  # wall_ms without what it waits for peers
    shares: Shares  # of own_ms
    peer_wait_ms: float | None  # in collectives that a later rank had not come to; None: unknown

    def part_ms(self, name: str) -> float | None:
        """One share in milliseconds a step; None where it was not recorded."""
        share: float | None = getattr(self.shares, name)
        return None if share is None else share * self.own_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStep:
    """One rank's step in plain windows."""

    rank: int
    host: str
    step: StepFacts | None
