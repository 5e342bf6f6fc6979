"""What worker processes have to themselves, as seen at the end of windows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthFacts:
    """Workers that lived through several windows; means per worker."""

    n_workers: int
    first_bytes: float
    last_bytes: float
    n_samples: float  # that one made between these two looks
    took_s: float
    late_part: float  # of the growth, what came in the later half of these samples: 0.5 if steady
    # Containers of the dataset that became longer in a worker: path, entries at first and last.
    grown: tuple[tuple[str, int, int], ...] = ()
    # By how much more malloc held free in a worker at last, as the worker told it; None: not told.
    heap_freed_bytes: float | None = None

    @property
    def grew_bytes(self) -> float:
        """Between the first and the last look."""
        return self.last_bytes - self.first_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMemoryFacts:
    """Pages that no other process has, of the loop's own workers."""

    n_workers: int  # at the last look
    worker_bytes: int  # the most that one of them was seen to have
    growth: GrowthFacts | None = None  # None: none lived long enough to tell
