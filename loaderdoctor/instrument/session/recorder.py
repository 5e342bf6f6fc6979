"""What a window collects besides its step times."""

from __future__ import annotations

from dataclasses import dataclass, field

from loaderdoctor.instrument.wire.records import BoundaryRecord, FetchRecord


@dataclass(slots=True)
class Recorder:
    """Filled by the session while a window is measured.

    A fetch is (loader index, start, end, thread), nanoseconds of CLOCK_MONOTONIC.
    """

    fetches: list[tuple[int, int, int, int]] = field(default_factory=list)
    boundaries: list[BoundaryRecord] = field(default_factory=list)

    def fetch_records(self) -> tuple[FetchRecord, ...]:
        """The fetches as the command gets them."""
        return tuple(
            FetchRecord(loader=loader, start_ns=start, end_ns=end, thread=thread)
            for loader, start, end, thread in self.fetches
        )
