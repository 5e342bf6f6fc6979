"""One thing that is told of a run while it goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "input-begins",
    "input-ends",
    "input-bound",
    "slower",
    "faster",
    "drift",
    "stalls",
    "pauses",
    "collections",
    "memory-fills",
    "shm-fills",
    "rank-behind",
    "workers-died",
    "tuned",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """What happened, when, and what to do. `text` is whole sentences for a line on a terminal."""

    kind: Kind
    at_s: float  # seconds since the epoch: when it began
    step: int
    text: str
    cause: str | None = None  # of `causes`, a word for programs; None: none was seen
    advice: str | None = None

    @property
    def line(self) -> str:
        """All of it."""
        return self.text if self.advice is None else f"{self.text} {self.advice}"
