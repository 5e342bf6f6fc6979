"""`cache`: samples kept in host memory, as they were when first made."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from loaderdoctor.instrument.memory import available_bytes
from loaderdoctor.instrument.withheld import Withheld

# Of the free memory; workers that touch what they inherit by fork copy the pages they touch.
MAX_SHARE_OF_FREE_MEMORY = 0.40
FILL_LIMIT_S = 60.0
# Samples after which the time and the bytes of the rest are foretold.
N_PROBED = 16
MIN_PROBED_S = 0.5


class CachedDataset(Dataset[Any]):
    """The samples of a dataset, made once, all of them, before any worker starts.

    Random augmentation stays as it was drawn. Raises Withheld where they don't fit, or making
    them takes too long.
    """

    def __init__(self, dataset: Any, n: int | None = None) -> None:
        if isinstance(dataset, IterableDataset):
            raise Withheld("the dataset is an iterable one: its samples have no numbers to keep")
        self.fill_s = 0.0
        self.n_bytes = 0
        self._n = len(dataset)
        self._samples: list[Any] = []
        self._fill(dataset, self._n if n is None else min(n, self._n))

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: int) -> Any:
        return self._samples[index]

    def _fill(self, dataset: Any, n: int) -> None:
        room = int((available_bytes() or 0) * MAX_SHARE_OF_FREE_MEMORY)
        began = time.monotonic()
        for i in range(n):
            try:
                self._samples.append(dataset[i])
            except (KeyError, TypeError) as error:
                raise Withheld(f"samples are not numbered 0, 1, 2, …: {error!r}") from error
            self.n_bytes += _size(self._samples[-1])
            share = (i + 1) / n
            passed = time.monotonic() - began
            probed = i + 1 >= N_PROBED and passed > MIN_PROBED_S
            if self.n_bytes > room or (probed and self.n_bytes > room * share):
                raise Withheld(
                    f"the samples take about {int(self.n_bytes / share)} bytes and {room} may be "
                    "used"
                )
            if passed > FILL_LIMIT_S or (probed and passed > FILL_LIMIT_S * share):
                raise Withheld(
                    f"making all samples once would take about {passed / share:.0f} s, more than "
                    f"{FILL_LIMIT_S:.0f} s"
                )
        self.fill_s = time.monotonic() - began


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
