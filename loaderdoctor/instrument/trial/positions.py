"""Where a trial begins in data that the loop goes through in one order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch.utils.data import BatchSampler, Sampler, SequentialSampler

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.trial.data_axes import TrialData

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


class FromHere(Sampler[int]):
    """The indexes 0 … n - 1 in order: of the first epoch those from `first` on, later all."""

    def __init__(self, n: int, first: int) -> None:
        self._n, self._first = n, first

    def __iter__(self) -> Iterator[int]:
        first, self._first = self._first, 0
        return iter(range(first, self._n))

    def __len__(self) -> int:
        return self._n


def from_batch(loader: DataLoader[Any], data: TrialData, n_batches: int) -> TrialData:
    """The trial's data from behind so many batches of the loop's epoch on, where order is known.

    Samples that lie in order of their length make batches of another cost at each place: from the
    first on, a trial looked 3.1 times as fast as a loop that was in the middle of them. The first
    ones in the place of all (`cache` in part) can't be gone on with: raises TrialRefused.
    """
    sampler: Any = loader.sampler
    sequential = type(sampler) is SequentialSampler and data.sampler is sampler
    batched = type(loader.batch_sampler) is BatchSampler and loader.batch_size is not None
    if not n_batches or not sequential or not batched:
        return data
    if getattr(data.dataset, "n_kept", len(sampler)) < len(sampler):
        raise TrialRefused(
            "its batches come in the dataset's order and differ in shape: the first samples can't "
            "stand for those that the loop is at"
        )
    n, first = len(sampler), n_batches * (loader.batch_size or 1)
    return replace(data, sampler=FromHere(n, first)) if first < n else data
