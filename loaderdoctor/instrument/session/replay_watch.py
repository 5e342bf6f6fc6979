"""Notices a loop that trains on after its loader ran out: it replays batches from memory."""

from __future__ import annotations

N_REPLAYED = 20  # optimizer steps without any fetch after the loader ran out

NOTE = "batches-replayed"
REPLAYED = (
    "the loop trains on without fetching, as with itertools.cycle, which replays the batches of "
    "the first epoch from memory (and keeps them all). Steps are told by the optimizer from here "
    "on; the loader costs them nothing."
)


class ReplayWatch:
    """Counts the optimizer steps between a loader's end and its next fetch."""

    def __init__(self) -> None:
        self._ran_out = False
        self._n = 0
        self._optimizer: int | None = None

    def ran_out(self) -> None:
        """The step's loader found its epoch at the end."""
        self._ran_out = True
        self._n = 0
        self._optimizer = None

    def fetched(self) -> None:
        """The step's loader is about to fetch."""
        self._ran_out = False

    def worked(self, optimizer: int) -> bool:
        """An optimizer (its id) stepped: whether batches are being replayed, told once."""
        if not self._ran_out:
            return False
        if self._optimizer is None:
            self._optimizer = optimizer
        self._n += optimizer == self._optimizer
        if self._n < N_REPLAYED:
            return False
        self._ran_out = False
        return True
