"""A trial while it is being measured: its visits, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from loaderdoctor.attribution.step import WindowTimes, window_times
from loaderdoctor.instrument.protocol import WindowDone
from loaderdoctor.settings import Settings

Phase = Literal["calibrate", "rank", "confirm"]
NS_PER_MS = 1e6
MIN_RANKED = 3  # with fewer ranked rounds the calibration counts too
NS_PER_S = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One timed window of a trial. `round` counts within its phase; trials pair by it."""

    phase: Phase
    round: int
    window: WindowDone
    wall_s: float  # the whole visit by the command's clock: opening, warm-up, window, closing

    @property
    def times(self) -> WindowTimes:
        """The window's mean step, milliseconds."""
        return window_times(self.window)

    @property
    def window_s(self) -> float:
        """Time within the measured steps."""
        return sum(self.window.host_step_ns) / NS_PER_S

    @property
    def boundary_ms(self) -> float | None:
        """One epoch boundary: as the trial timed it, else as its window met it."""
        if self.window.boundary_ns is not None:
            return self.window.boundary_ns / NS_PER_MS
        return self.times.boundary_ms


@dataclass(slots=True, kw_only=True)
class Trial:
    """One combination of settings in a sweep; grows as it is visited."""

    index: int  # 0 is the loop as it is
    settings: Settings
    status: Literal["ok", "failed", "skipped"] = "ok"
    reason: str | None = None
    visits: list[Visit] = field(default_factory=list)
    profiles: list[WindowDone] = field(default_factory=list)  # windows with a trace, never timed
    dropped: bool = False  # no longer visited: far behind, and the budget is short

    @property
    def alive(self) -> bool:
        """Whether it is still worth a visit."""
        return self.status == "ok" and not self.dropped

    def of(self, phase: Phase) -> list[Visit]:
        """Its visits of one phase, in order."""
        return [visit for visit in self.visits if visit.phase == phase]

    @property
    def ranked(self) -> list[Visit]:
        """Visits that rank it: the ranked rounds, with the calibration where they are too few.

        Calibration windows are short, and the first of them meet cold caches.
        """
        rounds = self.of("rank")
        return rounds if len(rounds) >= MIN_RANKED else [*self.of("calibrate"), *rounds]

    def fail(self, status: Literal["failed", "skipped"], reason: str) -> None:
        """No further visits. What it measured before stays, but is not ranked."""
        self.status = status
        self.reason = reason
