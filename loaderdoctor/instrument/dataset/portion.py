"""`portion`: an epoch of the first samples of the dataset only."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, RandomSampler, Sampler, SequentialSampler

from loaderdoctor.errors import TrialRefused


class FirstSamples(Sampler[int]):
    """The indexes below `n` of a sampler of the user's own, in its order."""

    def __init__(self, inner: Any, n: int) -> None:
        self._inner = inner
        self._n = n

    def __iter__(self) -> Iterator[int]:
        return (index for index in self._inner if index < self._n)

    def __len__(self) -> int:
        """About: samplers that draw more or fewer samples than there are don't say which."""
        return min(self._n, len(self._inner))


def first_part(loader: DataLoader[Any], portion: float) -> Sampler[int] | Any:
    """A sampler over the first `portion` of the loader's dataset, otherwise like the loader's own.

    Raises Withheld where samples can't be told by number.
    """
    dataset: Any = loader.dataset
    if isinstance(dataset, IterableDataset):
        raise TrialRefused("the dataset is an iterable one: its first part can't be told")
    if loader.batch_sampler is not None and loader.batch_size is None:
        raise TrialRefused("a batch_sampler of its own decides which samples make a batch")
    n = n_first(len(dataset), portion)
    sampler: Any = loader.sampler
    if type(sampler) is SequentialSampler:
        return SequentialSampler(range(n))
    if type(sampler) is RandomSampler and sampler._num_samples is None:
        return RandomSampler(range(n), replacement=sampler.replacement, generator=sampler.generator)
    return FirstSamples(sampler, n)


def n_first(n: int, portion: float) -> int:
    """How many of `n` samples the portion is, at least one."""
    return max(1, math.ceil(portion * n - 1e-9))
