"""`--memory-history`: torch's memory snapshot of the loop, and what recording it costs.

The cost is measured as all costs are: windows with and without, in shuffled order each round. The
snapshot is of the last round, saved after its time was taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import msgspec

from loaderdoctor.attribution.step import usable, window_times
from loaderdoctor.diagnosis.gather import Gatherer
from loaderdoctor.estimate import Estimate, mean
from loaderdoctor.instrument.wire.protocol import WindowDone, WindowRequest

N_ROUNDS = 3  # the fewest for an interval
# Events the allocator keeps, the latest: some kilobytes each with their stacks, so up to some
# hundred megabytes on disk. A training step makes hundreds to some thousands.
MAX_ENTRIES = 100_000
NAME = "memory_snapshot.pickle"

NOT_APPLICABLE = (
    "--memory-history does not apply: torch records the history of CUDA and ROCm memory only, and "
    "this loop uses no such device. Nothing was recorded."
)

Measure = Callable[[Sequence[WindowRequest]], Sequence[WindowDone]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryHistory:
    """What came of it; `path` None: no snapshot, for the reason given."""

    path: Path | None = None
    n_entries: int = 0
    overhead: Estimate | None = None  # steps with it / steps without; None: not measured
    reason: str | None = None


def record(
    gatherer: Gatherer, measure: Measure, path: Path, *, seed: int = 0, n_rounds: int = N_ROUNDS
) -> MemoryHistory:
    """Record, save to `path`, measure the cost. Never raises for a window that did not come."""
    device = gatherer.evidence.observed.device
    if device is None or not device.startswith("cuda"):
        return MemoryHistory(reason=NOT_APPLICABLE)
    rng, ratios = Random(seed), []
    saved: WindowDone | None = None
    for n in range(n_rounds):
        without = gatherer.request("plain")
        recording = msgspec.structs.replace(
            gatherer.request("plain"),
            memory_entries=MAX_ENTRIES,
            snapshot_path=str(path.resolve()) if n == n_rounds - 1 else None,
        )
        windows = [without, recording]
        rng.shuffle(windows)
        done = {window.id: window for window in measure(windows)}
        plain, recorded = done.get(without.id), done.get(recording.id)
        if recorded is None or not usable(recorded):
            why = recorded.reason if recorded is not None else None
            why = why or "the script ended before it was recorded"
            return MemoryHistory(reason=f"--memory-history: {why}.")
        saved = recorded
        if plain is not None and usable(plain):
            ratios.append(window_times(recorded).within_ms / window_times(plain).within_ms)
    if saved is None or saved.snapshot_path is None:
        return MemoryHistory(reason="--memory-history: the snapshot was not saved.")
    return MemoryHistory(
        path=Path(saved.snapshot_path),
        n_entries=saved.snapshot_entries,
        overhead=mean(ratios) if ratios else None,
    )
