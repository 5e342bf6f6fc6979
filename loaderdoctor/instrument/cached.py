"""`cache`: samples kept in host memory, as they were when first made."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from loaderdoctor.instrument.memory import available_bytes
from loaderdoctor.instrument.repeatable import varying_sample
from loaderdoctor.instrument.withheld import Withheld

# Of the free memory; workers that touch what they inherit by fork copy the pages they touch.
MAX_SHARE_OF_FREE_MEMORY = 0.40
FILL_LIMIT_S = 60.0
# Samples after which the time and the bytes of the rest are foretold.
N_PROBED = 16
MIN_PROBED_S = 0.5


class CachedDataset(Dataset[Any]):
    """The samples of a dataset, made once, all of them, before any worker starts.

    Random augmentation stays as it was drawn. With a `limit_s` it is a trial of what keeping
    samples gains: those made within that time are given in the others' place, and a dataset whose
    samples vary is refused. Raises Withheld where they don't fit, or making them takes too long.
    """

    def __init__(self, dataset: Any, n: int | None = None, *, limit_s: float | None = None) -> None:
        if isinstance(dataset, IterableDataset):
            raise Withheld("the dataset is an iterable one: its samples have no numbers to keep")
        self.fill_s = 0.0
        self.n_bytes = 0
        self._n = len(dataset)
        self._samples: list[Any] = []
        n_wanted = self._n if n is None else min(n, self._n)
        if limit_s is not None:
            _refuse_random(dataset, n_wanted)
        self._fill(dataset, n_wanted, limit_s)

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: int) -> Any:
        if not -self._n <= index < self._n:
            raise IndexError(index)  # a plain `for` over a dataset ends by it
        return self._samples[index % self._n % len(self._samples)]

    @property
    def n_kept(self) -> int:
        """Samples in memory."""
        return len(self._samples)

    def _fill(self, dataset: Any, n: int, limit_s: float | None) -> None:
        room = int((available_bytes() or 0) * MAX_SHARE_OF_FREE_MEMORY)
        began = time.monotonic()
        for i in range(n):
            self._samples.append(_sample(dataset, i))
            self.n_bytes += _size(self._samples[-1])
            share = (i + 1) / n
            passed = time.monotonic() - began
            probed = i + 1 >= N_PROBED and passed > MIN_PROBED_S
            enough = limit_s is not None and passed > limit_s and i + 1 >= N_PROBED
            if self.n_bytes > room or ((probed or enough) and self.n_bytes > room * share):
                raise Withheld(
                    f"the samples take about {int(self.n_bytes / share)} bytes and {room} may be "
                    "used"
                )
            if enough:
                break
            if limit_s is None and (
                passed > FILL_LIMIT_S or (probed and passed > FILL_LIMIT_S * share)
            ):
                raise Withheld(
                    f"making all samples once would take about {passed / share:.0f} s, more than "
                    f"{FILL_LIMIT_S:.0f} s"
                )
        self.fill_s = time.monotonic() - began


def _sample(dataset: Any, index: int) -> Any:
    try:
        return dataset[index]
    except (KeyError, TypeError) as error:
        raise Withheld(f"samples are not numbered 0, 1, 2, …: {error!r}") from error


def _refuse_random(dataset: Any, n: int) -> None:
    try:
        index = varying_sample(dataset, n)
    except (KeyError, TypeError) as error:
        raise Withheld(f"samples are not numbered 0, 1, 2, …: {error!r}") from error
    if index is not None:
        raise Withheld(
            f"sample {index} came out differently when it was made twice: kept in memory, its "
            "random augmentation would be the same in every epoch, which changes training"
        )


def _size(sample: Any) -> int:
    """Bytes of a sample, what Python adds included."""
    if isinstance(sample, Tensor):
        return sample.numel() * sample.element_size() + 200
    if isinstance(sample, np.ndarray):
        return sample.nbytes + 120
    if isinstance(sample, dict):
        return sys.getsizeof(sample) + sum(map(_size, sample.values()))
    if isinstance(sample, (list, tuple)):
        return sys.getsizeof(sample) + sum(map(_size, sample))
    picture = getattr(sample, "tobytes", None)
    return len(picture()) if callable(picture) else sys.getsizeof(sample)
