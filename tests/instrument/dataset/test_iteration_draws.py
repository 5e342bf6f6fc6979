"""Whether something was drawn from a generator of this process, seen at little cost."""

from __future__ import annotations

import random
import struct
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from loaderdoctor.instrument import dataset
from loaderdoctor.instrument.dataset import glimpse, put_back, states
from loaderdoctor.instrument.handover import WatchedCollate

DRAWS: dict[str, Callable[[], object]] = {
    "python": random.random,
    "python's normal": lambda: random.gauss(0, 1),
    "python's shuffle": lambda: random.shuffle([1, 2, 3]),
    "numpy": np.random.rand,
    "numpy's normal": lambda: np.random.randn(2),  # noqa: NPY002
    "numpy, all words at once": lambda: np.random.bytes(624 * 4),  # noqa: NPY002
    "torch": lambda: torch.rand(1),
    "torch's permutation": lambda: torch.randperm(5),
}


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_is_glimpsed(name: str, in_memory: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not in_memory:  # another Python
        monkeypatch.setattr(dataset, "_pythons", lambda generator: None)
    before = glimpse()
    assert glimpse() == before
    DRAWS[name]()
    assert glimpse() != before


def test_pythons_words_are_read_where_they_lie() -> None:
    found = dataset._pythons(vars(random)["_inst"])
    assert found is not None
    words, kept = found()
    assert (*struct.unpack("=i624I", words)[1:], struct.unpack("=i624I", words)[0]) == (
        random.getstate()[1]
    )
    assert kept == random.getstate()[2]


def test_pythons_generator_may_be_another_one_later(monkeypatch: pytest.MonkeyPatch) -> None:
    before = glimpse()
    other = random.Random(3)
    monkeypatch.setattr(random, "_inst", other)
    monkeypatch.setattr(random, "getstate", other.getstate)
    seen = glimpse()
    assert seen != before
    other.random()
    assert glimpse() != seen


def test_generators_of_its_own_are_no_draws() -> None:
    before = glimpse()
    random.Random(3).random()
    np.random.default_rng(3).normal()
    torch.rand(3, generator=torch.Generator())
    assert glimpse() == before


def test_where_numpys_generator_is_another_all_of_its_state_is_asked_for() -> None:
    numpys: Any = np.random
    before = numpys.get_bit_generator()
    try:
        numpys.set_bit_generator(np.random.PCG64(1))
        seen = glimpse()
        assert seen == states()
        np.random.rand()  # noqa: NPY002
        assert glimpse() != seen
    finally:
        numpys.set_bit_generator(before)


@pytest.mark.parametrize("draw", [*DRAWS, None])
def test_a_batch_says_whether_it_drew(draw: str | None) -> None:
    collate = WatchedCollate(lambda samples: draw and DRAWS[draw]())
    collate.note()
    assert [collate([])[1] for _ in range(3)] == [draw is not None] * 3


def test_a_normal_number_kept_since_its_worker_was_seeded_is_a_draw() -> None:
    np.random.seed(1)  # noqa: NPY002
    np.random.randn()  # the user's worker_init_fn: NumPy keeps the second of the pair  # noqa: NPY002
    collate = WatchedCollate(lambda samples: np.random.randn())  # noqa: NPY002
    collate.note()
    assert collate([])[1]


def test_batches_that_are_compared_with_nothing_are_not_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    collate = WatchedCollate(lambda samples: random.random(), n_batches=2)
    collate.note()
    assert [collate([])[1] for _ in range(2)] == [True, True]
    for name in ("states", "glimpse"):
        monkeypatch.setattr(f"loaderdoctor.instrument.handover.{name}", None)
        monkeypatch.setattr(dataset, name, None)
    assert [collate([])[1] for _ in range(2)] == [False, False]


def test_generators_are_put_back_without_a_word_whatever_numpy_draws_from() -> None:
    numpy: Any = np.random
    before = numpy.get_bit_generator()
    numpy.set_bit_generator(np.random.PCG64(1))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with put_back():
                drawn = np.random.rand()  # noqa: NPY002
            assert np.random.rand() == drawn  # noqa: NPY002
    finally:
        numpy.set_bit_generator(before)
