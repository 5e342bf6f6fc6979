"""What the loop's batches cost to make lately: in workers by their sums, else in this process."""

from __future__ import annotations

from pathlib import Path

from loaderdoctor.instrument.wire.worker_sums import WorkerSums, read_all
from loaderdoctor.tuning.candidates import BatchCost
from loaderdoctor.units import NS_PER_MS

# Batches that a mean needs; so many are timed with their CPU in this process (two system calls).
MIN_BATCHES = 8
ENOUGH_BATCHES = 64


class BatchCosts:
    """Of one loader."""

    def __init__(self, sums_folder: Path) -> None:
        self._folder = sums_folder
        self._seen: dict[Path, WorkerSums] = {}
        self._latest: BatchCost | None = None
        self._n = self._make_ns = self._cpu_ns = 0  # in this process

    @property
    def wants_cpu(self) -> bool:
        """Whether CPU time of fetches in this process is to be measured still."""
        return self._n < ENOUGH_BATCHES

    def fetched(self, took_ns: int, cpu_ns: int) -> None:
        """A batch that was made in this process, its CPU time measured."""
        self._n += 1
        self._make_ns += took_ns
        self._cpu_ns += cpu_ns
        if self._n >= MIN_BATCHES:
            self._latest = _cost(self._n, self._make_ns, self._cpu_ns)

    def latest(self) -> BatchCost | None:
        """Of the batches since the last call, where they are enough; else what was known before."""
        found = dict(read_all(self._folder))
        n = make_ns = cpu_ns = 0
        for path, now in found.items():
            before = self._seen.get(path)
            n += now.n_batches - (before.n_batches if before else 0)
            make_ns += now.make_ns - (before.make_ns if before else 0)
            cpu_ns += now.cpu_ns - (before.cpu_ns if before else 0)
        if n >= MIN_BATCHES:
            self._seen, self._latest = found, _cost(n, make_ns, cpu_ns)
        return self._latest


def _cost(n: int, make_ns: int, cpu_ns: int) -> BatchCost:
    return BatchCost(make_ms=make_ns / n / NS_PER_MS, cpu_ms=cpu_ns / n / NS_PER_MS)
