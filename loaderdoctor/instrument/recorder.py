"""What a window collects besides its step times."""

from __future__ import annotations

from dataclasses import dataclass, field

from loaderdoctor.instrument.protocol import BoundaryRecord


@dataclass(slots=True)
class Recorder:
    """Filled by the session while a window is measured.

    A fetch is (loader index, start, end, thread), nanoseconds of CLOCK_MONOTONIC.
    """

    fetches: list[tuple[int, int, int, int]] = field(default_factory=list)
    boundaries: list[BoundaryRecord] = field(default_factory=list)
