"""What the loop's batches cost to make lately: in workers by their sums, else in this process.

Known by the settings that made them: a trial's workers may crowd each other, the best's need not.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from loaderdoctor.instrument.wire.record_file import WorkerSums, read_sums
from loaderdoctor.settings import Settings
from loaderdoctor.tuning.candidates import BatchCost
from loaderdoctor.units import NS_PER_MS

# Batches that a mean needs; so many are timed with their CPU in this process (two system calls).
MIN_BATCHES = 8
ENOUGH_BATCHES = 64


class BatchCosts:
    """Of one loader."""

    def __init__(self, sums_folder: Path, others: Callable[[], int] = lambda: 0) -> None:
        """`others`: batches that other loaders' workers gave so far; their sums look the same."""
        self._folder = sums_folder
        self._others = others
        self._seen: dict[Path, WorkerSums] = {}
        self._others_seen = 0
        self._serving: Settings | None = None
        self._known: dict[Settings, BatchCost] = {}
        self._n = self._make_ns = self._cpu_ns = 0  # in this process

    @property
    def wants_cpu(self) -> bool:
        """Whether CPU time of fetches in this process is to be measured still."""
        return self._n < ENOUGH_BATCHES

    def serves(self, settings: Settings | None) -> None:
        """These make all batches now; None: several pools do."""
        if settings is self._serving or settings == self._serving:
            return
        self._serving = settings
        if settings is not None:
            self._begin(dict(read_sums(self._folder)), self._others())

    def fetched(self, took_ns: int, cpu_ns: int) -> None:
        """A batch that was made in this process, its CPU time measured."""
        self._n += 1
        self._make_ns += took_ns
        self._cpu_ns += cpu_ns
        if self._n >= MIN_BATCHES and self._serving is not None:
            self._known[self._serving] = _cost(self._n, self._make_ns, self._cpu_ns)

    def of(self, settings: Settings) -> BatchCost | None:
        """Of their batches since the last call, where they are enough; else what was known."""
        if settings == self._serving:
            self._look(settings)
        return self._known.get(settings)

    def _look(self, serving: Settings) -> None:
        found, others = dict(read_sums(self._folder)), self._others()
        if others != self._others_seen:
            self._begin(found, others)  # theirs are among these
            return
        n = make_ns = cpu_ns = 0
        for path, now in found.items():
            before = self._seen.get(path)
            n += now.n_batches - (before.n_batches if before else 0)
            make_ns += now.make_ns - (before.make_ns if before else 0)
            cpu_ns += now.cpu_ns - (before.cpu_ns if before else 0)
        if n >= MIN_BATCHES:
            self._seen, self._known[serving] = found, _cost(n, make_ns, cpu_ns)

    def _begin(self, found: dict[Path, WorkerSums], others: int) -> None:
        self._seen, self._others_seen = found, others


def _cost(n: int, make_ns: int, cpu_ns: int) -> BatchCost:
    return BatchCost(make_ms=make_ns / n / NS_PER_MS, cpu_ms=cpu_ns / n / NS_PER_MS)
