"""The generators that a dataset may draw from in this process: whether it did, and put back."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def states() -> tuple[Any, ...]:
    """Of Python's, NumPy's and torch's global generators in this process; equal if none drew."""
    numpy: Any = sys.modules.get("numpy")
    legacy: tuple[Any, ...] = ()
    if numpy is not None:
        name, keys, *rest = numpy.random.get_state()
        legacy = (name, keys.tobytes(), *rest)
    return random.getstate(), legacy, torch.get_rng_state().numpy().tobytes()


@contextmanager
def put_back() -> Iterator[None]:
    """What is drawn within is not drawn for what comes after: the loop's own draws stay."""
    numpy: Any = sys.modules.get("numpy")
    python, legacy = random.getstate(), numpy.random.get_state() if numpy is not None else None
    torchs = torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        torch.set_rng_state(torchs)
        if legacy is not None:
            numpy.random.set_state(legacy)
