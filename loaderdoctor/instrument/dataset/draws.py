"""The generators that a dataset may draw from in this process: whether it did, and put back."""

from __future__ import annotations

import ctypes
import functools
import pickle
import random
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

# NumPy's Mersenne Twister in memory: 624 words and how many of them are used up.
_TWISTER = "MT19937"
_TWISTER_BYTES = 624 * 4 + 4


def states() -> tuple[Any, ...]:
    """Of Python's, NumPy's and torch's global generators in this process; equal if none drew."""
    numpy: Any = sys.modules.get("numpy")
    legacy: tuple[Any, ...] = ()
    if numpy is not None:
        state = numpy.random.get_state(legacy=False)
        # Arrays are compared by their bytes.
        if state.get("bit_generator") == _TWISTER:
            words, used = state["state"]["key"].tobytes(), state["state"]["pos"]
            legacy = (words, used, state["has_gauss"], state["gauss"])
        else:
            legacy = (pickle.dumps(state),)
    return random.getstate(), legacy, torch.get_rng_state().numpy().tobytes()


def glimpse() -> tuple[Any, ...]:
    """The same for a twelfth of the time (5 us for 60), for each batch that a worker makes.

    The getters of Python and NumPy make lists of 624 numbers; here they are read where they lie.
    Not seen: that NumPy keeps the second of two normal numbers for the next draw (`states` is).
    """
    numpy: Any = sys.modules.get("numpy")
    legacy = b""
    if numpy is not None:
        made: Any = getattr(getattr(numpy.random.mtrand, "_rand", None), "_bit_generator", None)
        if type(made).__name__ != _TWISTER:  # another was set, or another NumPy
            return states()
        legacy = ctypes.string_at(made.ctypes.state_address, _TWISTER_BYTES)
    of_python = _pythons(getattr(random, "_inst", None))
    python = random.getstate() if of_python is None else of_python()
    return python, legacy, torch.get_rng_state().numpy().tobytes()


@functools.cache
def _pythons(generator: Any) -> Callable[[], tuple[Any, ...]] | None:
    """What reads the words of Python's generator and how many are used; None where they lie else.

    CPython has them behind an object's head, which is made sure of.
    """
    head = object.__basicsize__
    if sys.implementation.name != "cpython" or type(generator) is not random.Random:
        return None
    if type(generator).__basicsize__ < head + _TWISTER_BYTES:
        return None
    at = id(generator) + head
    used, *words = struct.unpack("=i624I", ctypes.string_at(at, _TWISTER_BYTES))
    if (*words, used) != generator.getstate()[1]:
        return None
    return lambda: (ctypes.string_at(at, _TWISTER_BYTES), getattr(generator, "gauss_next", None))


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
