"""A running loop that is only played: it answers windows, and time passes on its own clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from loaderdoctor.instrument.wire.protocol import Ended, Note, Observed, WindowDone, WindowRequest


class Played:
    """What a sweep or a diagnosis asks of a script run; `_one` says what a window comes to."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.ended: Ended | None = None
        self.notes: list[Note] = []
        self.observed: Observed

    def clock(self) -> float:
        return self.now_s

    def wait_observed(self, timeout_s: float) -> Observed:
        return self.observed

    def stop(self, to_end: bool = False) -> None:
        self.ended = Ended(how="stopped", exit_code=0, n_steps=0)

    def measure(
        self,
        requests: Sequence[WindowRequest],
        on_event: Callable[[Any], None] | None = None,
        timeout_s: float | None = None,
    ) -> list[WindowDone]:
        return [self._one(request) for request in requests]

    def _one(self, request: WindowRequest) -> WindowDone:
        raise NotImplementedError
