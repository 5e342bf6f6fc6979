"""Whether a dataset makes the same sample each time it is asked: what may be kept in memory."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

# A flip for every second sample goes unseen in 32 with a chance of 2**-32, an erasing of one in
# ten in 32 with one of 0.2 %. Slow samples stop it earlier, but for the fewest.
N_SAMPLES = 32
MIN_SAMPLES = 8
LIMIT_S = 0.5


def varying_sample(dataset: Any, n: int) -> int | None:
    """The index of a sample that came out differently when it was made twice; None where none did.

    Looks at a few spread over the first `n`. Raises what the dataset raises.
    """
    began = time.monotonic()
    for done, index in enumerate(dict.fromkeys(k * n // N_SAMPLES for k in range(N_SAMPLES))):
        if not same(dataset[index], dataset[index]):
            return index
        if done + 1 >= MIN_SAMPLES and time.monotonic() - began > LIMIT_S:
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
