"""How an epoch of a stream was dealt out to its workers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFacts:
    """One whole epoch, from its first batch to the last worker's end."""

    batches: tuple[int, ...]  # that each worker made, by worker
    ended_s: tuple[float, ...]  # when each had no more, from the epoch's begin
    epoch_s: float
    n_epochs: int = 1  # seen whole; this is the one with the median loss

    @property
    def lost_share(self) -> float:
        """Of the workers' time, what was idle because their data had come to its end.

        With batches dealt out evenly the epoch would be shorter by as much, where it waits for the
        workers.
        """
        idle = sum(self.epoch_s - at_s for at_s in self.ended_s)
        return idle / (len(self.ended_s) * self.epoch_s)

    def left_at(self, share: float) -> int:
        """Workers that still had data after this share of the epoch."""
        return sum(at_s >= share * self.epoch_s for at_s in self.ended_s)
