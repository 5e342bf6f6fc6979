"""Times the garbage collections of the training process."""

from __future__ import annotations

import gc
from time import perf_counter_ns
from typing import Any, Final

from loaderdoctor.instrument.wire.beats import Collections

# Shorter ones are told from their sum alone: a loop makes thousands of young collections.
NOTED_NS: Final = 1_000_000
MAX_NOTED: Final = 256


class CollectionTimes:
    """Since it was installed; a collection costs a microsecond more meanwhile."""

    def __init__(self) -> None:
        self._began_ns = 0
        self._n = self._total_ns = self._longest_ns = 0
        self._noted: list[tuple[int, int]] = []

    def install(self) -> None:
        """Listen from now on."""
        gc.callbacks.append(self._called)

    def remove(self) -> None:
        """Leave `gc` as it was."""
        if self._called in gc.callbacks:
            gc.callbacks.remove(self._called)

    def take(self) -> tuple[Collections, list[tuple[int, int]]]:
        """Sums since the last time, and (begin, end) of the long ones."""
        sums = Collections(n=self._n, total_ns=self._total_ns, longest_ns=self._longest_ns)
        noted, self._noted = self._noted, []
        self._n = self._total_ns = self._longest_ns = 0
        return sums, noted

    def _called(self, phase: str, info: dict[str, Any]) -> None:
        now = perf_counter_ns()
        if phase == "start":
            self._began_ns = now
            return
        began, self._began_ns = self._began_ns, 0
        if not began:
            return
        took = now - began
        self._n += 1
        self._total_ns += took
        if took > self._longest_ns:
            self._longest_ns = took
        if took >= NOTED_NS and len(self._noted) < MAX_NOTED:
            self._noted.append((began, now))
