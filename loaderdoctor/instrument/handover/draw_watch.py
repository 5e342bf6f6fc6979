"""Whether making a batch draws from the generators that torch seeds in each worker.

Runs where batches are made. Reading the states takes about 20 µs a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from loaderdoctor.instrument.dataset.draws import states


class WatchedCollate:
    """A collate function that gives (batch, whether something was drawn for it).

    For its process's first batch the states must have been noted (`note`), after it was seeded.
    """

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate
        self._before: tuple[Any, ...] | None = None

    def note(self) -> None:
        """The next batch begins here."""
        self._before = states()

    def __call__(self, samples: Any) -> tuple[Any, bool]:
        """Collate, and compare with the states behind the batch before."""
        batch = self._collate(samples)
        before, self._before = self._before, states()
        return batch, before is not None and before != self._before


class NotingInit:
    """A worker_init_fn that calls the user's and then notes the states for the first batch."""

    def __init__(self, init: Callable[[int], None] | None, collate: WatchedCollate) -> None:
        self._init = init
        self._collate = collate

    def __call__(self, worker_id: int) -> None:
        """Runs in a worker that torch has just seeded."""
        if self._init is not None:
            self._init(worker_id)
        self._collate.note()
