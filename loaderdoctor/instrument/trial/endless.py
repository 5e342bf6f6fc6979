"""One iterator for all epochs: a batch sampler that begins again where it ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, Sampler

from loaderdoctor.errors import TrialRefused


class EndlessBatches(Sampler[Any]):
    """The indexes of epoch after epoch; `len` is one epoch's, as the loop knows it.

    Runs in the training process. A sampler that gives nothing ends it, or it would spin.
    """

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches) if isinstance(self._batches, Sized) else 0

    def __iter__(self) -> Iterator[Any]:
        while True:
            n = 0
            for n, batch in enumerate(self._batches, 1):  # noqa: B007 - counts what came
                yield batch
            if n == 0:
                return


def endless(loader: DataLoader[Any]) -> dict[str, Any]:
    """A loader's arguments for its sampling, never ending. Raises Withheld."""
    if isinstance(loader.dataset, IterableDataset):
        raise TrialRefused(
            "an iterable dataset ends by itself: one iterator can't serve all epochs"
        )
    if loader.batch_sampler is None:
        return {"batch_size": None, "sampler": EndlessBatches(loader.sampler)}
    return {"batch_sampler": EndlessBatches(loader.batch_sampler)}
