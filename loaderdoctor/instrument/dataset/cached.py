"""`cache`: samples kept in host memory, as they were when first made."""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.dataset.own_copy import looked_at
from loaderdoctor.instrument.system.machine import available_bytes

# Of the free memory; workers that touch what they inherit by fork copy the pages they touch.
MAX_SHARE_OF_FREE_MEMORY = 0.40
FILL_LIMIT_S = 60.0
# Samples after which the time and the bytes of the rest are foretold.
N_PROBED = 16
MIN_PROBED_S = 0.5
# Samples made twice, to see whether they vary. A flip for every second sample goes unseen in 32
# with a chance of 2**-32, an erasing of one in ten in 32 with one of 0.2 %. Slow samples stop it
# earlier, but for the fewest.
N_COMPARED = 32
MIN_COMPARED = 8
COMPARE_LIMIT_S = 0.5


class CachedDataset(Dataset[Any]):
    """The samples of a dataset, made once, all of them, before any worker starts.

    Random augmentation stays as it was drawn. With a `limit_s` it is a trial of what keeping
    samples gains: those made within that time are given in the others' place, and a dataset whose
    samples vary is refused. `copies` gives a copy each time: for what may change its samples, as a
    collate function of the user's own. `batched`: torch asks `__getitems__` of the dataset where
    it has one. `apart`: they are made by a copy, for a dataset that lives in workers. Raises
    TrialRefused where samples don't fit, or making them takes too long.
    """

    def __init__(
        self,
        dataset: Any,
        n: int | None = None,
        *,
        limit_s: float | None = None,
        copies: bool = False,
        batched: bool = False,
        apart: bool = False,
    ) -> None:
        if isinstance(dataset, IterableDataset):
            raise TrialRefused(
                "the dataset is an iterable one: its samples have no numbers to keep"
            )
        self._copies = copies
        self.fill_s = 0.0
        self.n_bytes = 0
        self._n = len(dataset)
        self._samples: list[Any] = []
        n_wanted = self._n if n is None else min(n, self._n)
        with looked_at(dataset, apart=apart) as made:
            # As torch's fetcher asks: one that is None is none.
            several = getattr(made, "__getitems__", None) if batched else None
            if limit_s is not None:
                _refuse_random(made, n_wanted)
            self._fill(lambda i: _sample(made, several, i), n_wanted, limit_s)

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: int) -> Any:
        if not -self._n <= index < self._n:
            raise IndexError(index)  # a plain `for` over a dataset ends by it
        sample = self._samples[index % self._n % len(self._samples)]
        return fresh(sample) if self._copies else sample

    @property
    def n_kept(self) -> int:
        """Samples in memory."""
        return len(self._samples)

    def _fill(self, make: Callable[[int], Any], n: int, limit_s: float | None) -> None:
        room = int((available_bytes() or 0) * MAX_SHARE_OF_FREE_MEMORY)
        began = time.monotonic()
        for i in range(n):
            self._samples.append(make(i))
            self.n_bytes += _size(self._samples[-1])
            share = (i + 1) / n
            passed = time.monotonic() - began
            probed = i + 1 >= N_PROBED and passed > MIN_PROBED_S
            enough = limit_s is not None and passed > limit_s and i + 1 >= N_PROBED
            if self.n_bytes > room or ((probed or enough) and self.n_bytes > room * share):
                raise TrialRefused(
                    f"the samples take about {int(self.n_bytes / share)} bytes and {room} may be "
                    "used"
                )
            if enough:
                break
            if limit_s is None and (
                passed > FILL_LIMIT_S or (probed and passed > FILL_LIMIT_S * share)
            ):
                raise TrialRefused(
                    f"making all samples once would take about {passed / share:.0f} s, more than "
                    f"{FILL_LIMIT_S:.0f} s"
                )
        self.fill_s = time.monotonic() - began


def fresh(sample: Any) -> Any:
    """A copy of the sample: whatever is done to it, the sample stays as it was."""
    kind = type(sample)
    if kind in (str, bytes, int, float, bool, type(None)):
        return sample
    if kind is dict:
        return {key: fresh(value) for key, value in sample.items()}
    if kind is list or kind is tuple:
        return kind(map(fresh, sample))
    if kind is Tensor and not sample.requires_grad and not vars(sample):
        return sample.clone()
    return copy.deepcopy(sample)


def _sample(dataset: Any, several: Callable[[list[int]], Any] | None, index: int) -> Any:
    try:
        if several is None:
            return dataset[index]
        made = several([index])
    except (KeyError, TypeError) as error:
        raise TrialRefused(f"samples are not numbered 0, 1, 2, …: {error!r}") from error
    if not isinstance(made, (list, tuple)) or len(made) != 1:
        raise TrialRefused(
            "the dataset's __getitems__ makes whole batches: there is no sample to keep"
        )
    return made[0]


def _refuse_random(dataset: Any, n: int) -> None:
    try:
        index = varying_sample(dataset, n)
    except (KeyError, TypeError) as error:
        raise TrialRefused(f"samples are not numbered 0, 1, 2, …: {error!r}") from error
    if index is not None:
        raise TrialRefused(
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


def varying_sample(dataset: Any, n: int) -> int | None:
    """The index of a sample that came out differently when it was made twice; None where none did.

    Looks at a few spread over the first `n`. Raises what the dataset raises.
    """
    began = time.monotonic()
    for done, index in enumerate(dict.fromkeys(k * n // N_COMPARED for k in range(N_COMPARED))):
        if not same(dataset[index], dataset[index]):
            return index
        if done + 1 >= MIN_COMPARED and time.monotonic() - began > COMPARE_LIMIT_S:
            break
    return None


def same(a: Any, b: Any) -> bool:
    """Whether two samples hold the same; objects of unknown make by their attributes."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and _equal(a, b)
    if isinstance(a, np.ndarray):
        return bool(a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes())
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float):
        return a == b or (a != a and b != b)
    if hasattr(a, "tobytes"):  # a picture
        return bool(a.tobytes() == b.tobytes())
    attributes = getattr(a, "__dict__", None)
    return same(attributes, vars(b)) if isinstance(attributes, dict) else bool(a == b)


def _equal(a: Tensor, b: Tensor) -> bool:
    if a.layout != torch.strided:
        return same(a.to_dense(), b.to_dense())
    return bool(torch.equal(a, b) or torch.allclose(a, b, rtol=0, atol=0, equal_nan=True))
